import pytest

from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import MAX_FILE_NAME, check_job_name, fold_names, meant_job, natural_key, safe_file_name


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["worker-3"], "worker-3"),
        ([f"worker-{i}" for i in range(64)], "worker-[0-63]"),
        (["worker-5", "worker-0", "worker-2", "worker-1"], "worker-[0-2,5]"),
        ([f"gpu{i:02d}" for i in range(1, 17)], "gpu[01-16]"),
        (["gpu01", "gpu16"], "gpu[01,16]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n08", "n8", "n9", "n10", "n09"], "n[8-9],n[08-10]"),
        (["master-0", "worker-0", "worker-1"], "master-0,worker-[0-1]"),
        (["worker-10", "worker-9", "chief"], "chief,worker-[9-10]"),
        (["node1.example", "node2.example"], "node[1-2].example"),
        (["a,1", "a[2", "a]3", "a1", "a2"], "a,1,a[1-2],a[2,a]3"),
        (["x", "x"], "x"),
        (["w-1", "w-1", "w-2"], "w-[1-2]"),
        (["w" + "1" * 30, "w" + "1" * 29 + "2"], "w" + "1" * 30 + ",w" + "1" * 29 + "2"),
        (["0", "1", "2"], "[0-2]"),
    ],
)
def test_fold_names(names: list[str], folded: str) -> None:
    assert sorted(fold_names(names).split(",")) == sorted(folded.split(","))


def test_folded_groups_are_in_natural_order() -> None:
    assert fold_names(["b-1", "a-10", "a-9", "b-2", "a2-x"]) == "a2-x,a-[9-10],b-[1-2]"


def test_natural_order() -> None:
    names = ["worker-10", "worker-2", "a", "", "worker-02", "master-0", "1", "x" + "9" * 5000]
    assert sorted(names, key=natural_key) == [
        "",
        "1",
        "a",
        "master-0",
        "worker-02",
        "worker-2",
        "worker-10",
        "x" + "9" * 5000,
    ]


@pytest.mark.parametrize("name", ["a", "9", "llama-70b.run_3", "A" * 63])
def test_good_job_names(name: str) -> None:
    check_job_name(name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "empty"),
        ("a/b", "'/'"),
        ("a\nb", r"'\n'"),
        ("训练", r"\u8bad"),
        ("a" * 64, "64 bytes"),
        ("-rf", "start and end"),
        ("..", "start and end"),
        ("a.", "start and end"),
        ("x²", r"'\xb2'"),
    ],
)
def test_bad_job_names_say_why_in_one_line(name: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_job_name(name)
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    assert "letters, digits" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("worker-3", "worker-3"),
        ("a.b_C", "a.b_C"),
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E."),
        ("-x", "%2Dx"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("100%", "100%25"),
        ("a b\0", "a%20b%00"),
        ("节", "%E8%8A%82"),
        ("\udcff", "%ED%B3%BF"),
    ],
)
def test_safe_file_name(name: str, file: str) -> None:
    assert safe_file_name(name) == file


def test_long_names_are_cut_and_stay_different() -> None:
    one, two = safe_file_name("节" * 100 + "a"), safe_file_name("节" * 100 + "b")
    assert one != two
    assert len(one) == len(two) == MAX_FILE_NAME
    assert len(safe_file_name("a" * MAX_FILE_NAME)) == MAX_FILE_NAME
    assert "%h" not in safe_file_name("a" * MAX_FILE_NAME)


@pytest.mark.parametrize(
    ("word", "jobs", "hint"),
    [
        ("train", ["eval", "train-7"], "did you mean 'train-7'?"),
        ("Tra", ["train-10", "train-9", "eval"], "did you mean one of these? train-9, train-10"),
        ("train", [f"train-{n}" for n in range(50)], "did you mean one of these? train-0, train-1, train-2"),
        ("trian-7", ["train-7", "eval"], "did you mean 'train-7'?"),
        ("", ["train-7"], None),
        ("zzz", ["train-7"], None),
        ("train-7", [], None),
    ],
)
def test_jobs_that_a_word_may_be_meant_for(word, jobs, hint):
    assert meant_job(word, jobs) == hint
