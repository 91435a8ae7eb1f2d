"""From bytes to lines: timestamps, parts of long lines, known lines, raw tails."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.kubernetes.api import ApiError
from atlctl.backends.kubernetes.logs import FIRST, GROWTH, LogStreams, PodLogs, TailReader, refused
from atlctl.backends.kubernetes.logstream import KEEP, LineFeed, SeenLines, Stamps
from atlctl.jobs.errors import AtlctlError
from tests.support.recordings import load, names, needs_recordings
from tests.unit.kubernetes.logserver import BILLION, START, Cut, Fail, Server, job, stamp
from tests.unit.kubernetes.test_logs import QUICK


@pytest.mark.parametrize(
    ("line", "when", "text"),
    [
        (b"2026-11-20T18:35:42.222705058Z 34 step", 1795199742222705058, b"34 step"),
        (b"2026-11-20T18:35:42Z x", 1795199742 * BILLION, b"x"),
        (b"2026-11-20T18:35:42.5Z ", 1795199742500000000, b""),
        (b"2026-11-21T02:35:42.000000001+08:00 x", 1795199742000000001, b"x"),
        (b"2026-11-20T13:05:42.1-05:30 x", 1795199742100000000, b"x"),
        (b"2026-13-20T18:35:42.222705058Z x", None, b"2026-13-20T18:35:42.222705058Z x"),
        (b"2026-11-20T18:35:42.2227x5058Z x", None, b"2026-11-20T18:35:42.2227x5058Z x"),
        (b"2026-11-20T18:35:42.222705058 x", None, b"2026-11-20T18:35:42.222705058 x"),
        (b"unable to retrieve container logs for containerd://7a", None, None),
        (b"", None, b""),
    ],
)
def test_stamps(line: bytes, when: int | None, text: bytes | None) -> None:
    found, start = Stamps().split(line)
    assert found == when
    assert line[start:] == (line if text is None else text)


@given(st.binary(max_size=60), st.lists(st.binary(max_size=50), max_size=8))
def test_no_bytes_make_it_fail(head: bytes, chunks: list[bytes]) -> None:
    feed = LineFeed(SeenLines(), None, 0, cut=False, piece=40)
    out = feed.feed(stamp(START) + head)
    for chunk in chunks:
        out += feed.feed(chunk)
    data = b"".join(line.data + b"\n" * line.complete for line in out + feed.finish())
    assert len(data) <= len(head) + sum(map(len, chunks))


@given(st.integers(1, 40), st.integers(0, 200), st.data())
def test_pieces_do_not_depend_on_how_the_bytes_came(size: int, length: int, data) -> None:
    text = stamp(START) + b"x" * length + b"\n" + stamp(START + 1) + b"next\n"
    whole = LineFeed(SeenLines(), None, 0, cut=False, piece=size + 31).feed(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    feed, parts = LineFeed(SeenLines(), None, 0, cut=False, piece=size + 31), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += feed.feed(text[start:end])
    assert parts == whole
    assert all(len(line.data) <= size + 31 for line in parts)


def test_an_answer_that_begins_inside_a_line() -> None:
    feed = LineFeed(SeenLines(), None, 0, cut=True)
    assert [line.data for line in feed.feed(b"the rest of a line\n" + stamp(START) + b"one\n")] == [b"one"]
    feed = LineFeed(SeenLines(), None, 0, cut=False)
    assert [(line.time, line.data) for line in feed.feed(b"no stamp\n")] == [(None, b"no stamp")]


def test_memory_of_what_was_seen_is_bounded() -> None:
    seen = SeenLines()
    for i in range(20 * KEEP):
        seen.add(START + i * BILLION, i)
    assert seen.since == START // BILLION + 20 * KEEP - 2
    replay = seen.replay()
    assert replay is not None
    assert len(replay._counts) <= 2 * KEEP + 2
    assert replay.old(20 * KEEP - 1, START + (20 * KEEP - 1) * BILLION)
    assert replay.reached
    assert not replay.old(20 * KEEP - 1, START + (20 * KEEP - 1) * BILLION)


class Sink:
    """Stores its input."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, data: bytes) -> None:
        self.data += data


def tails(server: Server, **options: int) -> TailReader[Sink]:
    source = PodLogs(server, server, streams=LogStreams(2), patience=QUICK)  # type: ignore[arg-type]
    return TailReader(source, job(), job().workers[0], Sink, **options)


def test_a_tail_grows_from_the_end() -> None:
    async def main() -> None:
        server = Server([None, Cut(100), Fail(500, "error dialing backend"), None], chunk=1000)
        server.write(*[(START + i, b"%d" % i) for i in range(1000)])
        reader = tails(server)
        tail = await reader.read(10)
        assert tail.sink.data == b"".join(stamp(START + i) + b"%d\n" % i for i in range(990, 1000))
        assert (tail.lines, tail.whole, tail.first) == (10, False, START + 990)
        # The second answer failed: its sink is discarded.
        tail = await reader.more()
        assert (tail.lines, tail.whole, tail.first) == (10 * GROWTH, False, START + 1000 - 10 * GROWTH)
        assert tail.size == len(tail.sink.data)
        while not tail.whole:
            tail = await reader.more()
        assert (tail.lines, tail.first) == (1000, START)

    asyncio.run(main())


def test_a_log_shorter_than_the_tail_is_whole() -> None:
    async def main() -> None:
        server = Server()
        server.write((START, b"one"), (START + 1, b"half"))
        server.run.torn = True
        tail = await tails(server).read()
        assert (tail.lines, tail.whole) == (2, True)
        assert server.queries[0]["tailLines"] == str(FIRST)
        tail = await tails(Server()).read()
        assert (tail.lines, tail.size, tail.whole, tail.first) == (0, 0, True, None)

    asyncio.run(main())


def test_a_tail_of_very_long_lines_is_shortened() -> None:
    async def main() -> None:
        server = Server()
        server.write(*[(START + i, b"x" * 1000) for i in range(200)])
        tail = await tails(server, most=50_000).read(100)
        assert (tail.lines, tail.whole) == (100 // GROWTH, False)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (204, b"", "has no node yet"),
        (200, b"unable to retrieve container logs for containerd://7a1e", "has no log of it"),
        (400, b'container "main" in pod "pod-0" is waiting to start: ErrImagePull', "waits to start: ErrImagePull"),
        (500, b"error dialing backend", "does not answer"),
    ],
)
def test_a_tail_says_why_there_is_no_log(status: int, body: bytes, says: str) -> None:
    async def main() -> None:
        server = Server()
        server.instead = (status, body)
        with pytest.raises(AtlctlError, match=says):
            await tails(server).read()

    asyncio.run(main())


@needs_recordings
@pytest.mark.parametrize("name", names("logs/*.json"))
def test_recorded_answers_are_read(name: str) -> None:
    """Every recorded answer with timestamps gives its lines; every refusal gives a message."""
    found = load(name)
    query, response = found["request"]["query"], found["response"]
    body = response.get("body")
    if response["status"] >= 400:
        text = body["message"] if isinstance(body, dict) else str(body)
        error = refused(ApiError(response["status"], "", text), "pod-0", "main", "train")
        assert error.message
        return
    data = (body if isinstance(body, str) else "".join(part["data"] for part in response.get("chunks", []))).encode()
    feed = LineFeed(SeenLines(), None, 0, cut=False)
    lines = feed.feed(data)
    words = feed.words
    lines += [] if words else feed.finish()
    assert (words is not None) == ("evicted" in name)
    if query.get("timestamps") == ["true"]:
        assert all(line.time is not None for line in lines)
        assert len(lines) == len(data.splitlines())
    elif words is None:
        assert b"\n".join(line.data for line in lines) == data.removesuffix(b"\n")
