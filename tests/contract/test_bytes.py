"""Output arrives byte for byte, each stream separately, at the reader's pace, in bounded memory."""

from __future__ import annotations

import asyncio
import base64
import time
import tracemalloc

import pytest

from atlctl.backends.base import Exited, Output
from tests.contract.drive import execute, executing
from tests.contract.world import World
from tests.support.pace import within

EVERY_BYTE = bytes(range(256))


def printing(data: bytes) -> list[str]:
    """A command that writes exactly `data` to its stdout."""
    return ["sh", "-c", f"echo {base64.b64encode(data).decode()} | base64 -d"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(EVERY_BYTE, id="every-byte"),
        pytest.param(EVERY_BYTE[::-1] * 3, id="no-last-newline"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\n", id="one-newline"),
        pytest.param(b"\0" * 5 + b"a\0b\r\n\r", id="nul-and-cr"),
        pytest.param("显存不足".encode("gbk"), id="gbk"),
        pytest.param(b"\x1b]52;c;Zm9v\x07\x1b[2J\x9b31m\xe2\x80\xae\xe2\x80\xa8", id="escapes"),
        pytest.param(b'{"id": 1, "event": "exited", "exit_code": 0}\n', id="forged-protocol"),
        pytest.param(b"worker-3: forged\r\n", id="forged-prefix"),
        pytest.param("界".encode()[:2], id="half-a-character"),
    ],
)
def test_bytes_are_exact(world: World, data: bytes) -> None:
    ran = execute(world, world.start(), printing(data))
    assert ran.stdout == data
    assert ran.stderr == b""
    assert ran.exited == Exited(exit_code=0)


def test_streams_stay_apart(world: World) -> None:
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf end >&2"
    ran = execute(world, world.start(), ["sh", "-c", script])
    assert ran.stdout == b"out 1\nout 2\nout 3\n"
    assert ran.stderr == b"err 1\nerr 2\nerr 3\nend"


def test_stderr_after_stdouts_end(world: World) -> None:
    ran = execute(world, world.start(), ["sh", "-c", "echo first; exec >&-; sleep 0.1; echo later >&2; exit 4"])
    assert (ran.stdout, ran.stderr) == (b"first\n", b"later\n")
    assert ran.exited == Exited(exit_code=4)


def test_both_streams_closed_is_not_the_end(world: World) -> None:
    ran = execute(world, world.start(), ["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 5"])
    assert ran.exited == Exited(exit_code=5)


def test_one_stream_full_while_the_other_is_read(world: World) -> None:
    script = "head -c 3000000 /dev/zero >&2; echo done; head -c 3000000 /dev/zero >&2"
    ran = execute(world, world.start(), ["sh", "-c", script])
    assert ran.stdout == b"done\n"
    assert ran.stderr == bytes(6_000_000)


def test_64_mib_through_a_slow_reader_in_bounded_memory(world: World) -> None:
    total = 64 * 1024 * 1024
    job = world.start()

    async def main() -> tuple[int, Exited]:
        got = 0
        async with executing(world, job, ["head", "-c", str(total), "/dev/zero"]) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    if got < total // 2 <= got + len(event.data):
                        # The command waits for its reader; nothing is buffered meanwhile.
                        await asyncio.sleep(0.3)
                        assert [p for p in world.inside(job) if p.command.startswith("head")]
                    got += len(event.data)
                elif isinstance(event, Exited):
                    return got, event
        raise AssertionError("no end")

    tracemalloc.start()
    try:
        got, end = asyncio.run(asyncio.wait_for(main(), 100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == total
    assert end == Exited(exit_code=0)
    assert peak < 16 * 1024 * 1024, f"{peak / 1e6:.1f} MB"


@pytest.mark.parametrize("size", [65535, 65536, 65537])
def test_what_a_pipe_holds_at_the_exit_is_read_to_its_end(world: World, size: int) -> None:
    """The output of a command that ended while the reader was busy is complete, and reading it does not block."""
    job = world.start()

    async def main() -> tuple[int, Exited, float]:
        got = 0
        begun = 0.0
        async with executing(world, job, ["sh", "-c", f"echo x; head -c {size} /dev/zero"]) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    if not got:
                        await asyncio.sleep(0.2)
                        begun = time.monotonic()
                    got += len(event.data)
                elif isinstance(event, Exited):
                    return got, event, time.monotonic() - begun
        raise AssertionError("no end")

    got, end, seconds = asyncio.run(asyncio.wait_for(main(), 100))
    assert got == size + 2
    assert end == Exited(exit_code=0), "its own output is all there: not truncated"
    assert within(seconds, 10)


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "chatty"])
def test_a_child_that_keeps_the_pipe_open_is_not_waited_for(world: World, chatty: bool) -> None:
    child = "yes forever" if chatty else "sleep 4003"
    begun = time.monotonic()
    ran = execute(world, world.start(), ["sh", "-c", f"echo mine; {child} & exit 6"])
    assert within(time.monotonic() - begun, 20)
    assert ran.exited == Exited(exit_code=6, truncated=True)
    assert b"mine\n" in ran.stdout
    assert len(ran.stdout) < 64_000_000  # the output of `yes` until its exit, not endless


def test_a_slow_worker_does_not_slow_the_others(world: World) -> None:
    """Two executions on one executor: one is not read at all, the other completes."""
    job = world.start(workers=2)

    async def main() -> bytes:
        from atlctl.backends.base import Argv, ExecRequest

        executor = world.backend.executor(job)
        full = executor.run(job.workers[0], ExecRequest(Argv(("yes",))))
        unread = full.__aiter__()
        await anext(unread)
        got = b""
        other = executor.run(job.workers[1], ExecRequest(Argv(("head", "-c", "1000000", "/dev/zero"))))
        async for event in other:
            if isinstance(event, Output):
                got += event.data
        assert await full.end(1.0)
        await full.aclose()
        await other.aclose()
        await executor.aclose()
        return got

    assert asyncio.run(asyncio.wait_for(main(), 100)) == bytes(1_000_000)
