from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.slow import LIST, LONG, TESTS, spread


def test_the_list_names_tests_that_are_there():
    gone = []
    for name in LIST.read_text().splitlines():
        file, _, function = name.partition("::")
        path = LIST.parents[1] / file
        if not path.is_file() or f"def {function.rpartition('::')[2]}(" not in path.read_text(encoding="utf-8"):
            gone.append(name)
    assert gone == []


@dataclass
class Item:
    nodeid: str


def test_each_worker_begins_with_its_share_of_the_long_files() -> None:
    items: Any = [Item(f"{path}::test_{number}") for path in "abcdef" for number in range(4)]
    spread_ = spread(items, 2, {"b": "9", "d": "5", "e": "3", "gone": "90"}, ())
    assert sorted(item.nodeid for item in spread_) == [item.nodeid for item in items]
    paths = "".join(item.nodeid[0] for item in spread_)
    assert paths == "bbbbaaaaccccddddeeeeffff"
    spread_ = spread(items, 2, {"b": "9", "d": "5", "e": "3"}, {"d", "f", "gone"})
    assert "".join(item.nodeid[0] for item in spread_) == "ddddeeeeffffbbbbaaaacccc"


@pytest.mark.parametrize("workers", [2, 3, 5, 30])
def test_no_test_is_lost_if_a_share_is_larger_than_a_part(workers: int) -> None:
    items: Any = [Item(f"{path}::test_{number}") for path in "ab" for number in range(7)]
    found = spread(items, workers, {"a": "1.5"}, "ab"[:1])
    assert sorted(item.nodeid for item in found) == [item.nodeid for item in items]


def test_long_files_exist() -> None:
    names = [line.split()[0] for line in LONG.read_text().splitlines()]
    assert len(names) > 20
    assert all((TESTS.parent / name).is_file() for name in names)
