"""A log sent by a host and reassembled equals the local reader's result for the same files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.backends.base import Event, Exited, FailedToStart, LogLine, LogRequest, Lost, Output, Started
from atlctl.backends.hosts import logs, looking
from atlctl.jobs.errors import AtlctlError, TimedOut
from atlctl.remote.supervisor import asked, folders, processes
from atlctl.remote.supervisor import logs as remote_logs
from atlctl.remote.supervisor.logs import CriLog
from atlctl.remote.supervisor.telling import Refused
from tests.unit.hosts.fake import RECORD, FakeExecutor, out
from tests.unit.hosts.local import listening_as

STAMP = "2026-11-22T10:00:{:02d}.000000000Z"
START = 1795341600


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A worker's folder in a state folder."""
    return _worker(tmp_path)


def _worker(above: Path) -> Path:
    folder = above / "atlctl" / folders.TREE / "job" / "w"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """The output of the host's program."""
    found = bytearray()
    monkeypatch.setattr(remote_logs, "write", found.extend)
    monkeypatch.setattr(remote_logs, "say", lambda message: found.extend(json.dumps(message).encode() + b"\n"))
    return found


def ask(folder: Path, sent: bytearray, request: LogRequest, mark: tuple[int, int] | None = None) -> bytes:
    """The answer to the request that `logs` would send."""
    (folder / "job.json").write_text(
        json.dumps({"uid": RECORD.uid, "supervisor": {**processes.identity(1), "start": 1}})
    )
    sent.clear()

    async def main() -> dict[str, Any]:
        return {**looking._Reading(RECORD, "w1", request)._wanted, "mark": mark}

    remote_logs.log({**asyncio.run(main()), "folder": str(folder), "worker": "w"})
    return bytes(sent)


def lines(request: LogRequest, *answers: Sequence[Event | float]) -> list[LogLine]:
    async def main() -> list[LogLine]:
        found = looking.lines(FakeExecutor(*answers), RECORD, "w1", request)
        return [line async for batch in found for line in batch]

    return asyncio.run(asyncio.wait_for(main(), 100))


def local(folder: Path, request: LogRequest) -> list[LogLine]:
    async def main() -> list[LogLine]:
        return [line async for batch in logs.read(str(folder), request, None) for line in batch]

    return asyncio.run(main())


def made(folder: Path) -> Path:
    log = folder / "workers" / "w" / "log"
    log.mkdir(parents=True)
    return log


line = st.tuples(
    st.integers(0, 5), st.sampled_from(["stdout", "stderr"]), st.sampled_from("FFP"), st.sampled_from(["", "a", "b c"])
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(line, max_size=12), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(0, 6)),
    st.one_of(st.none(), st.integers(0, 6)),
    st.sampled_from(["", "torn", "2026-11-22T10:00:03.000000000Z stdout"]),
)
def test_the_same_lines_as_of_a_local_log(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Any]], tail: int | None, since: int | None, torn: str
) -> None:
    folder = _worker(tmp_path_factory.mktemp("worker"))
    log = made(folder)
    second = 0
    for at, part in enumerate(parts):
        text = ""
        for later, stream, tag, rest in part:
            second = min(59, second + (later == 5))
            text += f"{STAMP.format(second)} {stream} {tag} {rest}\n"
        name = "0.log" if at == len(parts) - 1 else f"0.log.{(START + second) * 10**9}"
        (log / name).write_text(text + (torn if at == 0 and len(parts) > 1 else ""))
    request = LogRequest(tail=tail, since=None if since is None else START + since)
    with pytest.MonkeyPatch.context() as patch:
        found = bytearray()
        patch.setattr(remote_logs, "write", found.extend)
        patch.setattr(remote_logs, "say", lambda message: found.extend(json.dumps(message).encode() + b"\n"))
        answer = ask(folder, found, request)
    expected = local(log, request)
    if since is not None and tail is None:
        # A torn line has no time: if it is before the first line that is new enough, it stays on the host.
        expected = [line for line in expected if line.time is not None]
        assert [line for line in lines(request, out(answer)) if line.time is not None] == expected
    else:
        assert lines(request, out(answer)) == expected


def test_a_long_line_and_the_tail_behind_it(tmp_path: Path, sent: bytearray) -> None:
    log = CriLog(str(made(tmp_path)), 200_000, 100)
    log.feed("stdout", b"x" * 1_000_000 + b"\n")
    log.feed("stderr", b"short\n")
    log.feed("stdout", b"last")
    log.close()
    for tail in (None, 1, 2, 3, 4):
        request = LogRequest(tail=tail)
        whole = lines(request, out(ask(tmp_path, sent, request)))
        assert [len(line.data) for line in whole] == [1_000_000, 5, 4][-(tail or 3) :]
        assert [line.complete for line in whole] == [True, True, False][-(tail or 3) :]


def test_old_files_are_not_read_for_a_time(tmp_path: Path, sent: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(tmp_path)
    (log / f"0.log.{(START - 9000) * 10**9}").write_text(f"{STAMP.format(9)} stdout F not to be read\n")
    (log / "0.log").write_text(f"{STAMP.format(1)} stdout F a\n{STAMP.format(2)} stdout F b\n")
    request = LogRequest(since=START + 2)
    assert [line.data for line in lines(request, out(ask(tmp_path, sent, request)))] == [b"b"]


def cut(answer: bytes, at: int) -> list[Event]:
    return [Output("stdout", answer[:at]), Lost("the connection is closed")]


@pytest.mark.parametrize("request_", [LogRequest(follow=True), LogRequest(follow=True, tail=4)])
def test_wherever_a_connection_is_lost_each_line_comes_once(
    tmp_path: Path, sent: bytearray, monkeypatch: pytest.MonkeyPatch, request_: LogRequest
) -> None:
    monkeypatch.setattr(looking, "AGAIN_SECONDS", 0.0)
    log = made(tmp_path)
    text = [f"{STAMP.format(1)} stdout F {number}\n" for number in range(4)]
    text += [f"{STAMP.format(1)} stderr P begun\n", f"{STAMP.format(1)} stdout F 4\n"]
    (log / "0.log").write_text("".join(text))
    first = ask(tmp_path, sent, request_)
    mark = first.rfind(b"@ ")
    inode, offset = (int(word) for word in first[mark:].split()[1:3])
    assert offset == sum(map(len, text))
    (log / "0.log").rename(log / f"0.log.{START * 10**9}")
    (log / "0.log").write_text(f"{STAMP.format(2)} stderr F  end\n{STAMP.format(2)} stdout F 5\n")
    second = ask(tmp_path, sent, request_, (inode, offset))
    numbers, end = [b"%d" % number for number in range(5)][-(request_.tail or 5) :], [b"begun end", b"5"]
    for at in range(len(second)):
        seen = lines(request_, [Output("stdout", first), Lost("")], cut(second, at), out(second))
        assert [line.data for line in seen] == numbers + end, at


def test_a_loss_before_the_first_mark_is_an_error(tmp_path: Path, sent: bytearray) -> None:
    (made(tmp_path) / "0.log").write_text(f"{STAMP.format(1)} stdout F a\n")
    first = ask(tmp_path, sent, LogRequest(follow=True))
    with pytest.raises(AtlctlError, match="w1: closed"):
        lines(LogRequest(follow=True), [Output("stdout", first[: first.rfind(b"@")]), Lost("closed")])
    with pytest.raises(AtlctlError, match="w1: closed"):
        lines(LogRequest(), [Output("stdout", first), Lost("closed")])


HOSTILE = (
    b"",
    b"\xff\xfe\n\n\n",
    b'{"event": 5}\n',
    b'{"event": "log"',
    b"[" * 100_000 + b"\n",
    b'{"event": "failed", "kind": [], "message": {}}\n',
)


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_answer_is_one_error(answer: bytes) -> None:
    with pytest.raises(AtlctlError, match=r"^w1: "):
        lines(LogRequest(), out(answer))


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    with pytest.raises(AtlctlError, match="malformed"):
        lines(LogRequest(), out(b'{"event": "log"}\n' + b"x" * (looking.MAX_RAW + 1)))


def test_the_folder_of_another_job_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"uid": "two"}')
    with pytest.raises(Refused, match="another job"):
        folders.record(str(tmp_path), "one")


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("how", ["others may write", "link"])
def test_nothing_is_read_in_a_folder_that_may_be_forged(tmp_path: Path, level: int, how: str) -> None:
    (tmp_path / "job.json").write_text('{"uid": "one"}')
    assert folders.record(str(tmp_path), "one")
    forged = [tmp_path, *tmp_path.parents][level]
    if how == "link":
        forged.rename(f"{forged}-moved")
        forged.symlink_to(f"{forged}-moved")
    else:
        forged.chmod(0o770)
    with pytest.raises(Refused, match=f"^{forged} (can be written|is a symbolic)"):
        folders.record(str(tmp_path), "one")
    with pytest.raises(Refused, match=f"^{forged} (can be written|is a symbolic)"):
        asked.remove({"folder": str(tmp_path), "uid": "one"})
    assert (tmp_path / "job.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
def test_a_supervisor_of_another_user_is_told_nothing(isolated: Path) -> None:
    with listening_as(4243, isolated) as server:
        with pytest.raises(Refused, match="another user"):
            asked._ask(str(isolated), {"uid": "one", "workers": []}, 1.0)
        with server.accept()[0] as peer:
            assert peer.recv(100) == b""


BEGUN = b'{"event": "log", "resumed": true}\n'


def test_a_log_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle, and before the beginning."""
    monkeypatch.setattr(looking, "SILENT_SECONDS", 0.1)
    stamped = STAMP.format(1).encode()
    for begun in (b"", BEGUN + stamped + b" stdout F one\n"):
        with pytest.raises(TimedOut, match=r"^w1 did not answer within 0\.1 s$"):
            lines(LogRequest(), [Started(guarded=True), Output("stdout", begun), 9.0])


def test_a_followed_log_goes_on_over_a_connection_that_is_lost_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for retries starts at the loss; each loss is reported."""
    monkeypatch.setattr(looking, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(looking, "AGAIN_SECONDS", 0.01)
    stamped = STAMP.format(1).encode()
    told: list[str] = []

    def answer(start: bytes, *end: Event | float) -> list[Event | float]:
        return [Started(guarded=True), Output("stdout", BEGUN + start + stamped + b" stdout F one\n"), *end]

    async def main() -> list[bytes]:
        refused = [FailedToStart(255, "refused")]
        lost = answer(b"@ 1 2\n", 0.3, Lost("gone")), refused, refused, answer(b"", 0.3, Lost("gone"))
        executor = FakeExecutor(*lost, answer(b"", Exited(exit_code=0)))
        found = looking.lines(executor, RECORD, "w1", LogRequest(follow=True), told.append)
        return [line.data async for batch in found for line in batch]

    assert asyncio.run(asyncio.wait_for(main(), 100)) == [b"one"]
    assert told == ["waiting for the log of w1: w1: gone"] * 2
