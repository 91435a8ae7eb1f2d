import json
import os
import stat
from pathlib import Path

import pytest

from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.fanout.retry import LastRun, forget, load, save
from atlctl.jobs.errors import AtlctlError, NotAllowed
from tests.unit.fanout.fake import workers

NAMES = [worker.name for worker in workers(6)]
OUTCOMES = [
    Outcome(worker, kind, code)
    for worker, kind, code in zip(
        workers(5),
        (EndKind.EXITED, EndKind.EXITED, EndKind.LOST, EndKind.CANCELLED, EndKind.FAILED_TO_START),
        (0, 1, None, None, 0),
        strict=True,
    )
]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def test_round_trip(state: str) -> None:
    argv = ["grep", "-e", "a b", os.fsdecode(b"\xff\x00"[:1]), "节\n"]
    save(state, "local/训练", argv, NAMES, OUTCOMES)
    assert load(state, "local/训练") == LastRun(
        tuple(argv), ("worker-1", "worker-2", "worker-3", "worker-4", "worker-5")
    )


def test_saved_before_the_run_everything_counts_as_failed(state: str) -> None:
    save(state, "job", ["true"], NAMES)
    last = load(state, "job")
    assert last is not None
    assert last.failed_workers == tuple(NAMES)


def test_each_job_has_its_own_last_run(state: str) -> None:
    for key in ("a/b", "a%2Fb", "..", "a"):
        save(state, key, [key], [])
    save(state, "a", ["again"], [])
    assert [load(state, key).argv for key in ("a/b", "a%2Fb", "..", "a")] == [  # type: ignore[union-attr]
        ("a/b",),
        ("a%2Fb",),
        ("..",),
        ("again",),
    ]
    assert load(state, "never") is None


def test_only_the_owner_reads_it(state: str) -> None:
    before = os.umask(0)
    try:
        save(state, "job", ["secret"], [])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [Path(state), *Path(state).rglob("*")]}
    assert modes == {"state": 0o700, "exec": 0o700, "job.json": 0o600}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"version": 2, "argv": ["a"], "workers": []}',
        b'{"version": 1, "argv": [], "workers": []}',
        b'{"version": 1, "argv": "rm", "workers": []}',
        b'{"version": 1, "argv": [1], "workers": []}',
        b'{"version": 1, "argv": ["a"], "workers": ["w"]}',
        b'{"version": 1, "argv": ["a"], "workers": [["w", 0]]}',
    ],
)
def test_a_damaged_file_is_said_in_one_line(state: str, content: bytes) -> None:
    save(state, "job", ["true"], [])
    path = Path(state, "exec", "job.json")
    path.write_bytes(content)
    with pytest.raises(AtlctlError, match=r"exec/job\.json") as caught:
        load(state, "job")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("part", ["", "exec"])
def test_nothing_is_read_or_removed_in_a_folder_that_may_be_forged(state: str, part: str) -> None:
    save(state, "job", ["true"], NAMES)
    forged = os.path.join(state, part).rstrip("/")
    os.chmod(forged, 0o770)
    for ask in (lambda: load(state, "job"), lambda: forget(state, "job"), lambda: save(state, "job", ["x"], NAMES)):
        with pytest.raises(NotAllowed, match=f"^{forged} can be written by others"):
            ask()
    os.chmod(forged, 0o700)
    last = load(state, "job")
    assert last is not None
    assert last.argv == ("true",)


def test_a_link_is_not_followed(state: str, tmp_path: Path) -> None:
    save(state, "job", ["true"], [])
    path = Path(state, "exec", "job.json")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAllowed):
        load(state, "job")


def test_what_is_stored_is_plain_json(state: str) -> None:
    save(state, "job", ["true"], NAMES[:2], OUTCOMES[:2])
    record = json.loads(Path(state, "exec", "job.json").read_bytes())
    assert record["workers"] == [["worker-0", True], ["worker-1", False]]
