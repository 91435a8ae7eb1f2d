"""Pod logs from a model server: every line once, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from atlctl.backends.base import PREVIOUS, LogLine, LogRequest
from atlctl.backends.kubernetes.api import NoServer
from atlctl.backends.kubernetes.logs import LEAST, LogStreams, Patience, PodLogs, chunks
from atlctl.jobs.errors import AtlctlError, NothingMatched, Unreachable
from tests.support.pace import within
from tests.support.waiting import until
from tests.unit.kubernetes.logserver import BILLION, START, Cut, Fail, Server, job

QUICK = Patience(pause=0.001, most=0.004, poll=0.002, idle=5, beat=0.001, confirm=0.03, look=0.02, lost=5, tries=4)
DIALING = Fail(500, "error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused")


def source(server: Server, **options: object) -> PodLogs:
    return PodLogs(server, server, patience=QUICK, **options)  # type: ignore[arg-type]


def whole(lines: Sequence[LogLine]) -> list[tuple[int | None, bytes, bool]]:
    """The lines, with parts of long lines joined."""
    made: list[tuple[int | None, bytes, bool]] = []
    parts: list[bytes] = []
    for line in lines:
        assert line.stream == "stdout"
        parts.append(line.data)
        if line.complete:
            made.append((line.time, b"".join(parts), True))
            parts = []
    if parts:
        made.append((lines[-1].time, b"".join(parts), False))
    return made


async def read(server: Server, request: LogRequest, into: list[LogLine] | None = None, **options: object):
    found: list[LogLine] = [] if into is None else into
    async for batch in source(server, **options).lines(job(), job().workers[0], request):
        found.extend(batch)
    return found


def texts(lines: Sequence[LogLine]) -> list[bytes]:
    return [line.data for line in lines]


def numbered(count: int, step: int = BILLION // 3) -> list[tuple[int, bytes]]:
    return [(START + i * step, b"%d" % i) for i in range(count)]


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_is_read_with_its_times(follow: bool) -> None:
    async def main() -> None:
        server = Server()
        server.write((START, b"one"), (START + 5, b""), (START + 5, b" \xff\r"))
        server.run.torn = True
        server.end()
        lines = await read(server, LogRequest(follow=follow))
        assert whole(lines) == [(START, b"one", True), (START + 5, b"", True), (START + 5, b" \xff\r", False)]

    asyncio.run(main())


@pytest.mark.parametrize("tail", [0, 1, 7, 100])
@pytest.mark.parametrize("follow", [False, True])
def test_tail_through_cuts(tail: int, follow: bool) -> None:
    async def main() -> None:
        server = Server([Cut(0), Cut(45), Cut(100, clean=True), DIALING, Fail(0)], chunk=10)
        server.write(*numbered(30))
        found: list[LogLine] = []
        reader = asyncio.create_task(read(server, LogRequest(follow=follow, tail=tail), found))
        expected = [line for _, line in numbered(30)[30 - min(tail, 30) :]]
        await until(lambda: len(found) >= len(expected))
        await asyncio.sleep(0.1)  # nothing more comes
        assert texts(found) == expected
        if follow:
            server.write((START + 100 * BILLION, b"new"))
            expected.append(b"new")
        server.end()
        await reader
        assert texts(found) == expected

    asyncio.run(main())


def test_since_is_exact_though_the_server_knows_seconds() -> None:
    async def main() -> None:
        server = Server()
        server.write(*numbered(30))
        server.end()
        since = START + 10 * (BILLION // 3)
        lines = await read(server, LogRequest(since=since / BILLION))
        assert texts(lines) == [b"%d" % i for i in range(10, 30)]
        assert server.queries[0]["sinceTime"] == "2026-09-21T14:13:23Z"
        assert texts(await read(server, LogRequest(since=since / BILLION, tail=3))) == [b"27", b"28", b"29"]

    asyncio.run(main())


def test_previous_reads_the_run_before() -> None:
    async def main() -> None:
        server = Server()
        server.write((START, b"old"))
        with pytest.raises(NothingMatched, match="was not restarted") as caught:
            await read(server, LogRequest(attempt=PREVIOUS))
        assert caught.value.hint == "leave out --previous"
        server.restart()
        server.write((START + 5, b"new"))
        assert texts(await read(server, LogRequest(attempt=PREVIOUS, follow=True))) == [b"old"]

    asyncio.run(main())


LINE = st.tuples(
    st.sampled_from([0, 0, 1, 1000, BILLION // 5, BILLION, 5 * BILLION, -1000]),
    st.sampled_from([b"same", b"", b"x", b"\xff\0\r", b"y" * 100, b"2026-01-01T00:00:00.000000000Z forged"]),
)
STEP: st.SearchStrategy[tuple[str, list[tuple[int, bytes]]]] = st.one_of(
    st.tuples(st.just("write"), st.lists(LINE, max_size=8)),
    st.tuples(st.sampled_from(["restart", "replace", "rotate", "pause", "nap"]), st.just([])),
)
FAULT = st.one_of(
    st.none(),
    st.builds(Cut, st.integers(0, 600), st.booleans()),
    st.sampled_from([DIALING, Fail(0), Fail(429, "slow down")]),
)


def one_by_one(faults: list[Any]) -> Iterator[Cut | Fail | None]:
    """No two clean cuts in a row: two answers cut at the same byte by a dying node look complete."""
    for fault in faults:
        yield fault
        if isinstance(fault, Cut) and fault.clean:
            yield None


class Drive:
    """Changes the server during a follow, and knows the resulting log."""

    def __init__(self, server: Server, found: list[LogLine]) -> None:
        self.server, self.found, self.clock = server, found, START

    def expected(self) -> list[tuple[int, bytes, bool]]:
        lines = [(when, text, True) for run in self.server.runs for when, text in run.lines]
        if self.server.run.torn and self.server.run.lines:
            lines[-1] = (*lines[-1][:2], False)
        return lines

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(5000):
            if holds():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"the reader hangs: {whole(self.found)[-3:]} of {self.expected()[-3:]}")

    async def caught_up(self, runs: int) -> None:
        count = sum(len(run.lines) for run in self.server.runs[:runs])
        await self.until(lambda: sum(line.complete for line in self.found) >= count)

    async def step(self, what: str, lines: list[tuple[int, bytes]]) -> None:
        server = self.server
        if what == "write":
            for ahead, text in lines:
                self.clock += ahead
                server.write((self.clock, text))
        elif what == "restart":
            # After two unseen restarts in a row, the first run's log is lost, which the reader cannot fix.
            await self.caught_up(len(server.runs) - 1)
            # The kubelet restarts a container at once, then only after 10 s: reading continues with the new run.
            await self.until(lambda: server.last == server.run.id)
            await asyncio.sleep(2 * QUICK.confirm)
            await self.until(lambda: server.last == server.run.id)
            self.clock += 1_000_000
            server.restart()
        elif what in ("replace", "rotate"):
            await self.caught_up(len(server.runs))
            if what == "replace":
                self.clock += BILLION
                server.replace()
            else:
                server.run.first = max(0, len(server.run.lines) - 2)
        else:
            await asyncio.sleep(0 if what == "pause" else 0.04)


def check(
    steps: list[tuple[str, list[tuple[int, bytes]]]], faults: list[Any], chunk: int, torn: bool, streams: int
) -> None:
    async def main() -> None:
        server = Server(one_by_one(faults), chunk)
        server.lag = 0.005
        found: list[LogLine] = []
        drive = Drive(server, found)
        request = LogRequest(follow=True)
        reader = asyncio.create_task(read(server, request, found, piece=64, streams=LogStreams(streams)))
        for what, lines in steps:
            await drive.step(what, lines)
        if torn:
            server.run.torn = True
            server.write((drive.clock + 1, b"half a line"))
        server.end()
        await asyncio.wait_for(reader, 100)
        assert whole(found) == drive.expected()
        assert server.open == 0

    asyncio.run(main())


@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.lists(STEP, max_size=12), st.lists(FAULT, max_size=10), st.sampled_from([1, 7, 64, 4096]), st.booleans(),
    st.sampled_from([0, 1, 64]),
)  # fmt: skip
def test_followed_every_line_comes_once(steps, faults, chunk, torn, streams) -> None:
    check(steps, faults, chunk, torn, max(streams, 1))


@pytest.mark.parametrize("seed", range(8))
def test_a_busy_log_that_is_cut_at_any_byte(seed: int) -> None:
    rng = random.Random(seed)
    steps: list[tuple[str, list[tuple[int, bytes]]]] = []
    for _ in range(40):
        ahead = rng.choice([0, 1, BILLION // 50, BILLION // 3])
        steps.append(("write", [(ahead, rng.choice([b"same", b"", b"z" * 70])) for _ in range(20)]))
        steps.append((rng.choice(["pause", "nap", "pause", "restart"]), []))
    faults = [Cut(rng.randrange(3000), rng.random() < 0.5) if rng.random() < 0.4 else None for _ in range(150)]
    check(steps, faults, rng.choice([3, 50, 1000]), torn=False, streams=64)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(LINE, max_size=60), st.lists(FAULT, max_size=3), st.sampled_from([7, 4096]), st.booleans())
def test_read_to_the_end_every_line_comes_once(lines, faults, chunk, crowded) -> None:
    async def main() -> None:
        server = Server(faults, chunk)
        drive = Drive(server, [])
        await drive.step("write", lines)
        server.end()
        many = job(3 if crowded else 1)
        found: list[LogLine] = []
        reader = source(server, piece=64, streams=LogStreams(2))
        async for batch in reader.lines(many, many.workers[0], LogRequest()):
            found.extend(batch)
        # A read that ended early, without an error and after a line, looks complete.
        short = [fault for fault in faults if isinstance(fault, Cut) and fault.clean]
        if not short:
            assert whole(found) == drive.expected()
        else:
            assert whole(found)[:-1] == drive.expected()[: max(len(whole(found)) - 1, 0)]

    asyncio.run(main())


def test_streams_are_bounded_and_everybody_is_followed_still() -> None:
    async def main() -> None:
        server = Server()
        server.write(*numbered(20))
        many = job(30)
        reader = source(server, streams=LogStreams(4))

        async def one(index: int) -> list[bytes]:
            found: list[bytes] = []
            async for batch in reader.lines(many, many.workers[index], LogRequest(follow=True)):
                found.extend(texts(batch))
            return found

        tasks = [asyncio.create_task(one(i)) for i in range(30)]
        await asyncio.sleep(0.1)
        server.write((START + 60 * BILLION, b"late"))
        await asyncio.sleep(0.05)
        server.end()
        for found in await asyncio.gather(*tasks):
            assert found == [*(b"%d" % i for i in range(20)), b"late"]
        assert server.most_open == 4

    asyncio.run(main())


def test_more_logs_than_streams_are_merged() -> None:
    """A reader waiting for other logs' next lines must not hold a stream that they need."""
    from atlctl.fanout.merge import merge

    async def main() -> None:
        server = Server(chunk=500)
        server.write(*numbered(200))
        server.end()
        many = job(10)
        reader = source(server, streams=LogStreams(2))
        count = 0
        chunks = merge(many.workers, lambda worker: reader.lines(many, worker, LogRequest()), lambda *_: None)
        async for chunk in chunks:
            count += len(chunk)
        assert count == 2000

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_node_that_does_not_answer() -> None:
    async def main() -> None:
        server = Server([DIALING] * 100)
        with pytest.raises(Unreachable, match="does not answer: error dialing backend"):
            await read(server, LogRequest())
        assert len(server.queries) == QUICK.tries

    asyncio.run(main())


def test_a_log_that_stalls_is_asked_for_again() -> None:
    async def main() -> None:
        server = Server()
        server.write((START, b"one"))
        found: list[LogLine] = []
        patience = Patience(poll=0.002, idle=0.02, beat=0.001)
        logs = PodLogs(server, server, patience=patience)  # type: ignore[arg-type]

        async def follow() -> None:
            async for batch in logs.lines(job(), job().workers[0], LogRequest(follow=True)):
                found.extend(batch)

        reader = asyncio.create_task(follow())
        await until(lambda: texts(found) == [b"one"])
        server.run.lines.append((START + 1, b"two"))  # written, but the stream got nothing
        await until(lambda: texts(found) == [b"one", b"two"])
        server.end()
        await reader
        assert texts(found) == [b"one", b"two"]

    asyncio.run(main())


async def paced(*pieces: tuple[float, bytes]) -> AsyncIterator[bytes]:
    for seconds, data in pieces:
        await asyncio.sleep(seconds)
        yield data


def test_a_log_that_is_read_to_its_end_must_come_at_a_pace() -> None:
    """Single bytes are too slow. Time spent by the reader itself does not count."""
    drip = ((0.03, b"x"),) * 100
    big = b"y" * LEAST

    async def taken(*pieces: tuple[float, bytes], rest: float = 0.0) -> int:
        count = 0
        async for chunk in chunks(paced(*pieces), None, 0.8):
            assert chunk is not None
            count += len(chunk)
            await asyncio.sleep(rest)
        return count

    async def main() -> None:
        for pieces in (drip, ((9.0, b"x"),), ((0.0, big), *drip)):
            begun = time.monotonic()
            with pytest.raises(NoServer, match=r"sent [0-9]+ bytes of a log in 0.8 s"):
                await taken(*pieces)
            assert within(time.monotonic() - begun, 8)
        assert await taken(*((0.2, big),) * 8) == 8 * LEAST
        assert await taken(*drip[:2]) == 2
        assert await taken((0.0, b"x"), (0.0, b"x"), rest=1.2) == 2

    asyncio.run(main())


def test_a_log_that_fails_for_long_is_not_asked_for_as_often_as_it_may_be() -> None:
    """With a stopped kubelet, each request takes many seconds."""

    async def main() -> None:
        server = Server([DIALING] * 100)
        logs = PodLogs(server, server, patience=replace(QUICK, pause=0.2, most=0.4, give_up=0.05))  # type: ignore[arg-type]
        with pytest.raises(Unreachable, match="does not answer"):
            async for _ in logs.lines(job(), job().workers[0], LogRequest(tail=1)):
                pass
        assert len(server.queries) == 2

    asyncio.run(main())


@pytest.mark.parametrize("follow", [False, True])
def test_what_is_waited_for_is_told_once_until_it_comes(follow: bool) -> None:
    async def main() -> None:
        server = Server([DIALING, DIALING, Cut(50), DIALING, DIALING])
        server.write(*numbered(10))
        server.end()
        told: list[str] = []
        assert len(await read(server, LogRequest(follow=follow), waiting=told.append)) == 10
        assert [text.partition(":")[0] for text in told] == ["waiting for the log of worker-0"] * 2
        assert "dialing" in told[0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (204, b"", "pod pod-0 has no node yet"),
        (400, b'container "main" in pod "pod-0" is waiting to start: ErrImagePull', "waits to start: ErrImagePull"),
        (400, b'container "main" in pod "pod-0" is terminated', "no longer has its log"),
        (200, b"unable to retrieve container logs for containerd://7a1e", "no log of it.*unable to retrieve"),
        (403, b"forbidden words", "forbidden words"),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_why_there_is_no_log(status: int, body: bytes, says: str, follow: bool) -> None:
    async def main() -> None:
        server = Server()
        server.end("Failed")
        server.instead = (status, body)
        with pytest.raises(AtlctlError, match=says):
            await read(server, LogRequest(follow=follow))

    asyncio.run(main())


def test_no_pod_at_all() -> None:
    async def main() -> None:
        server = Server()
        server.pod_there, server.done = False, True
        for follow in (False, True):
            with pytest.raises(NothingMatched, match="no longer has a pod"):
                await read(server, LogRequest(follow=follow))

    asyncio.run(main())


def test_following_waits_for_a_pod_that_starts() -> None:
    async def main() -> None:
        server = Server()
        server.instead = (400, b'container "main" in pod "pod-0" is waiting to start: ContainerCreating')
        found: list[LogLine] = []
        reader = asyncio.create_task(read(server, LogRequest(follow=True, tail=0), found))
        await until(lambda: bool(server.queries))
        server.instead = None
        server.write((START, b"first"))
        await until(lambda: texts(found) == [b"first"])
        server.end()
        await reader
        assert texts(found) == [b"first"]

    asyncio.run(main())
