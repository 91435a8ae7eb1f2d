import tracemalloc

import pytest

from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.selection import Selection, parse_numbers, resolve


def job_of(*workers: Worker, expected: int | None = None) -> Job:
    count = len(workers) if expected is None else expected
    return Job("train", "local", "local", State.RUNNING, "uid", count, tuple(workers))


def eight(without: tuple[int, ...] = ()) -> Job:
    return job_of(
        *(
            Worker(
                f"worker-{i}",
                i,
                {5: State.FAILED, 6: State.HELD}.get(i, State.RUNNING),
                role="master" if i == 0 else "worker",
                pod=f"train-{i}-x7k{i}p",
                host=f"gpu{i // 2:02d}",
            )
            for i in reversed(range(8))
            if i not in without
        ),
        expected=8,
    )


RANKS = RankMap({rank: f"worker-{rank // 4}" for rank in range(32)}, "error files")


def indexes(job: Job, **options: object) -> list[int]:
    return [worker.index for worker in resolve(Selection(**options), job, RANKS)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("0,2-5",), [0, 2, 3, 4, 5]),
        (("5,0",), [0, 5]),
        (("0", "2", "0"), [0, 2]),
        (("6-100",), [6, 7]),
        (("007",), [7]),
        (("worker-3",), [3]),
        (("train-3-x7k3p",), [3]),
        (("gpu01",), [2, 3]),
        (("worker-[0-2,7]",), [0, 1, 2, 7]),
        (("worker-[0-12]",), list(range(8))),
        (("gpu[00-02]",), [0, 1, 2, 3, 4, 5]),
        (("gpu0[0,3]",), [0, 1, 6, 7]),
        (("worker-?",), list(range(8))),
        (("*-[1,2]",), [1, 2]),
        (("worker-[!0-5]",), [6, 7]),
        (("train-[6-7]-*",), [6, 7]),
        (("worker-[0-1],gpu03,4",), [0, 1, 4, 6, 7]),
    ],
)
def test_worker_tokens(tokens: tuple[str, ...], expected: list[int]) -> None:
    assert indexes(eight(), workers=tokens) == expected


def test_a_number_is_an_index_even_where_a_worker_has_that_name() -> None:
    job = job_of(Worker("1", 0, State.RUNNING), Worker("0", 1, State.RUNNING))
    assert [worker.name for worker in resolve(Selection(workers=("0",)), job)] == ["1"]


def test_a_name_wins_over_a_host_and_over_a_pattern() -> None:
    job = job_of(
        Worker("a", 0, State.RUNNING, host="b"),
        Worker("b", 1, State.RUNNING, host="c"),
        Worker("x[1-2]", 2, State.RUNNING),
        Worker("x1", 3, State.RUNNING),
        Worker("[::1]", 4, State.RUNNING),
    )
    assert indexes(job, workers=("b",)) == [1]
    assert indexes(job, workers=("x[1-2]",)) == [2]
    assert indexes(job, workers=("[::1]",)) == [4]


def test_padding_of_folded_ranges_counts() -> None:
    job = job_of(*(Worker(name, i, State.RUNNING) for i, name in enumerate(["n1", "n01", "n10", "n001"])))
    assert indexes(job, workers=("n[1-10]",)) == [0, 2]
    assert indexes(job, workers=("n[01-10]",)) == [1, 2]
    assert indexes(job, workers=("n[001-010]",)) == [3]


def test_kinds_intersect_and_exclude_subtracts() -> None:
    job = eight()
    assert indexes(job, all=True) == list(range(8))
    assert indexes(job, all=True, workers=("1-3",)) == [1, 2, 3]
    assert indexes(job, ranks=("8-15",)) == [2, 3]
    assert indexes(job, ranks=("0", "31")) == [0, 7]
    assert indexes(job, roles=("worker",), workers=("0-2",)) == [1, 2]
    assert indexes(job, roles=("master,worker",)) == list(range(8))
    assert indexes(job, failed=True) == [5, 6]
    assert indexes(job, failed=True, ranks=("0-23",)) == [5]
    assert indexes(job, all=True, exclude=("0-5", "worker-7")) == [6]
    assert indexes(job, exclude=("0-5",)) == [6, 7]


def test_exclude_alone_is_no_selection() -> None:
    assert Selection().empty
    assert Selection(exclude=("0",)).empty
    assert not Selection(all=True).empty
    assert not Selection(failed=True).empty


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"workers": ("9",)}, "no worker with index 9", "worker-[0-7] (index 0-7)"),
        ({"workers": ("0,8-20",)}, "no worker with index 8-20", "index 0-7"),
        ({"workers": ("nodes*",)}, "'nodes*' matches no worker, pod or host", "worker-[0-7]"),
        ({"workers": ("worker-[8-9999999]",)}, "matches no worker", "worker-[0-7]"),
        ({"workers": ("worker-8",)}, "matches no worker", "worker-[0-7]"),
        ({"all": True, "exclude": ("worker-8",)}, "matches no worker", "worker-[0-7]"),
        ({"all": True, "exclude": ("9",)}, "no worker with index 9", "index 0-7"),
        ({"ranks": ("32-40",)}, "holds rank 32-40", "known ranks: 0-31 (error files)"),
        ({"roles": ("ps",)}, "no worker of job train has role 'ps'", "master, worker"),
        ({"workers": ("0",), "failed": True}, "matches no worker", "worker-[0-7]"),
        ({"all": True, "exclude": ("0-7",)}, "matches no worker", "worker-[0-7]"),
    ],
)
def test_nothing_matched_names_what_exists(options: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(NothingMatched) as caught:
        indexes(eight(), **options)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_missing_indexes_are_named_as_missing() -> None:
    job = eight(without=(3, 4))
    with pytest.raises(NothingMatched) as caught:
        indexes(job, workers=("3-4",))
    assert caught.value.message == "workers 3-4 of job train should exist and are missing"
    assert "worker-[0-2,5-7]" in str(caught.value.hint)
    assert "missing: 3-4" in str(caught.value.hint)
    assert indexes(job, workers=("2-4",)) == [2]
    assert indexes(job, all=True, exclude=("3", "0")) == [1, 2, 5, 6, 7]


def test_no_rank_map_leads_to_w() -> None:
    with pytest.raises(NothingMatched) as caught:
        resolve(Selection(ranks=("0",)), eight(), None)
    assert "-w" in str(caught.value.hint)


def test_ranks_of_workers_that_are_gone_do_not_count() -> None:
    with pytest.raises(NothingMatched, match="holds rank 12"):
        indexes(eight(without=(3,)), ranks=("12",))


def test_nobody_failed() -> None:
    with pytest.raises(NothingMatched, match="is Failed or Held"):
        indexes(job_of(Worker("a", 0, State.LOST)), failed=True)


def test_a_job_without_workers() -> None:
    with pytest.raises(NothingMatched) as caught:
        indexes(job_of(expected=4), all=True)
    assert caught.value.hint == "the job has no workers, 4 are expected"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ",",
        "0,,1",
        "3-",
        "-3",
        "-",
        "5-2",
        "1-2-3",
        "a[",
        "a[0-3",
        "a[]",
        "a[3-]",
        "a[5-2]",
        "a[0-3,]",
        "a[1-02]1[",
        "a[01-002]",
        "1-999999999",
        "99999999",
        "1" * 5000,
        "a[" + "1" * 5000 + "]",
        "*-[0-12]",
        "*-[12]",
        "rack[0-1]-n[0-12]",
    ],
)
@pytest.mark.parametrize("option", ["workers", "exclude"])
def test_malformed_tokens(token: str, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        indexes(eight(), all=True, **{option: (token,)})
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("text", ["", "a", "1,", "3-", "5-2", "*", "worker-1", "²", "٣", "+1", " 1", "1_0"])
def test_malformed_numbers(text: str) -> None:
    with pytest.raises(UsageError):
        parse_numbers(text)
    with pytest.raises(UsageError):
        resolve(Selection(ranks=(text,)), eight(), None)


def test_empty_role() -> None:
    with pytest.raises(UsageError):
        indexes(eight(), roles=("master,",))


def test_numbers_are_not_allocated() -> None:
    tracemalloc.start()
    assert parse_numbers("0,2-9999999") == [range(1), range(2, 10_000_000)]
    assert indexes(eight(), workers=("0-9999999", "worker-[0-999999999999]")) == list(range(8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000
