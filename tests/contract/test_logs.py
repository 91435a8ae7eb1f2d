"""Logs of running and ended workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atlctl.backends.base import LogLine, LogRequest
from atlctl.jobs.model import Job
from tests.contract.world import World, eventually
from tests.support.pace import within


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def read(world: World, job: Job, request: LogRequest | None = None, index: int = 0) -> list[LogLine]:
    async def main() -> list[LogLine]:
        found: list[LogLine] = []
        async for batch in world.backend.lines(job, job.workers[index], request or LogRequest()):
            found.extend(batch)
        return found

    return asyncio.run(asyncio.wait_for(main(), 100))


def ended(world: World, script: str, workers: int = 1) -> Job:
    """A job whose workers have run `script` to its end."""
    job = world.start(sh(script), workers)
    return eventually(world, job.name, lambda found: not any(worker.state.active for worker in found.workers))


def texts(lines: list[LogLine]) -> list[bytes]:
    return [line.data for line in lines]


def test_lines_are_in_order_with_their_streams_and_times(world: World) -> None:
    before = time.time_ns()
    job = ended(world, "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo; echo '  four  '")
    lines = read(world, job)
    # The Kubernetes API does not separate the streams.
    stderr = "stdout" if job.backend == "kubernetes" else "stderr"
    assert [(line.stream, line.data, line.complete) for line in lines] == [
        ("stdout", b"one", True),
        (stderr, b"two", True),
        ("stdout", b"", True),
        ("stdout", b"  four  ", True),
    ]
    times = [line.time or 0 for line in lines]
    assert times == sorted(times)
    assert before < times[0] < times[1] < time.time_ns()


def test_a_last_line_without_newline(world: World) -> None:
    lines = read(world, ended(world, "echo whole; printf 'not whole'"))
    assert [(line.data, line.complete) for line in lines] == [(b"whole", True), (b"not whole", False)]


def test_bytes_of_lines_are_exact(world: World) -> None:
    data = bytes(byte for byte in range(256) if byte != 0x0A)
    octal = "".join(f"\\{byte:03o}" for byte in data)
    lines = read(world, ended(world, f"printf '{octal}\\n'; printf '\\303\\n\\244\\n'"))
    assert texts(lines) == [data, b"\xc3", b"\xa4"]


def test_forged_lines_stay_what_they_are(world: World) -> None:
    forged = "2026-01-01T00:00:00.000000000Z stderr F forged"
    lines = read(world, ended(world, f"echo '{forged}'"))
    assert [(line.stream, line.data) for line in lines] == [("stdout", forged.encode())]


@pytest.mark.parametrize("size", [16383, 16384, 16385, 32768, 10_000_000])
def test_long_lines_are_whole(world: World, size: int) -> None:
    script = f"head -c {size} /dev/zero | tr '\\0' x; echo; echo next"
    job = ended(world, script)
    lines = read(world, job)
    assert [(len(line.data), line.complete) for line in lines] == [(size, True), (4, True)]
    if job.backend == "local":
        # The last lines, too: none is truncated at its start. A kubelet counts the file's pieces of 16 KiB.
        assert [len(line.data) for line in read(world, job, LogRequest(tail=2))] == [size, 4]


@pytest.mark.parametrize(
    ("tail", "expected"), [(0, []), (1, [999]), (5, [995, 996, 997, 998, 999]), (5000, list(range(1000)))]
)
def test_tail(world: World, tail: int, expected: list[int]) -> None:
    job = ended(world, "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done")
    assert [int(line.data) for line in read(world, job, LogRequest(tail=tail))] == expected


def test_tail_counts_a_last_line_without_newline(world: World) -> None:
    assert texts(read(world, ended(world, "echo 1; echo 2; printf 3"), LogRequest(tail=2))) == [b"2", b"3"]


def test_since(world: World) -> None:
    job = ended(world, "echo early; sleep 0.3; echo late")
    early, late = read(world, job)
    assert early.time is not None
    assert late.time is not None
    between = (early.time + late.time) / 2e9
    assert texts(read(world, job, LogRequest(since=between))) == [b"late"]
    assert texts(read(world, job, LogRequest(since=between, tail=10))) == [b"late"]
    assert texts(read(world, job, LogRequest(since=time.time()))) == []


def test_an_empty_log(world: World) -> None:
    job = ended(world, "true")
    assert read(world, job) == []
    assert read(world, job, LogRequest(follow=True)) == []
    assert read(world, job, LogRequest(tail=3)) == []


def test_each_worker_has_its_own(world: World) -> None:
    job = ended(world, "echo $RANK", workers=3)
    assert [texts(read(world, job, index=index)) for index in range(3)] == [[b"0"], [b"1"], [b"2"]]


async def follow(
    world: World, job: Job, request: LogRequest, until: Callable[[list[bytes]], bool] = lambda _: False
) -> list[bytes]:
    """Follow to the end, or until `until` returns True for the lines so far."""
    found: list[bytes] = []
    stream = world.backend.lines(job, job.workers[0], request)
    async for batch in stream:
        found.extend(line.data for line in batch)
        if until(found):
            break
    await stream.aclose()  # type: ignore[attr-defined]  # every backend's is a generator
    return found


def test_follow_ends_with_the_worker_and_misses_nothing(world: World) -> None:
    job = world.start(sh("i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); sleep 0.002; done; printf last"))
    found = asyncio.run(asyncio.wait_for(follow(world, job, LogRequest(follow=True)), 100))
    assert found == [*(b"%d" % i for i in range(300)), b"last"]


def test_follow_shows_a_line_soon(world: World) -> None:
    job = world.start(sh("echo first; sleep 4200"))
    begun = time.monotonic()
    found = asyncio.run(asyncio.wait_for(follow(world, job, LogRequest(follow=True), lambda f: bool(f)), 100))
    assert found == [b"first"]
    assert within(time.monotonic() - begun, 20)


def test_follow_from_the_tail(world: World, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = world.start(sh(f"echo 1; echo 2; echo 3; until [ -e {gate} ]; do sleep 0.05; done; echo 4"))
    eventually(world, job.name, lambda found: len(read(world, found)) == 3)

    def opens(found: list[bytes]) -> bool:
        if found:
            gate.touch()
        return False

    found = asyncio.run(asyncio.wait_for(follow(world, job, LogRequest(follow=True, tail=1), opens), 100))
    assert found == [b"3", b"4"]


def test_follow_ends_when_the_worker_is_lost(local: World) -> None:
    job = local.start(sh("echo here; sleep 4201"))
    eventually(local, job.name, lambda found: read(local, found))

    async def main() -> list[bytes]:
        following = asyncio.create_task(follow(local, job, LogRequest(follow=True)))
        await asyncio.sleep(0.2)
        local.lose(job)
        return await following

    assert asyncio.run(asyncio.wait_for(main(), 100)) == [b"here"]
    # A worker that can no longer be reached still has a log.
    assert texts(read(local, job)) == [b"here"]


def test_a_replaced_jobs_log_is_not_anothers(world: World) -> None:
    old = world.start(sh("echo old"))
    new = world.replace(old)
    with pytest.raises(Exception, match="replaced"):
        read(world, old)
    assert read(world, new) == []
