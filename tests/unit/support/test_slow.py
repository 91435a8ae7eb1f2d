from tests.support.slow import LIST


def test_the_list_names_tests_that_are_there():
    gone = []
    for name in LIST.read_text().splitlines():
        file, _, function = name.partition("::")
        path = LIST.parents[1] / file
        if not path.is_file() or f"def {function.rpartition('::')[2]}(" not in path.read_text(encoding="utf-8"):
            gone.append(name)
    assert gone == []
