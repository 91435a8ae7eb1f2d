"""Standard input and terminals."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from atlctl.backends.base import Exited, Output, Started, TerminalSize
from atlctl.fanout.outcome import EndKind
from tests.contract.drive import Ran, collect, execute, executing, fan_out
from tests.contract.test_bytes import EVERY_BYTE
from tests.contract.world import World
from tests.support.pace import within

SIZE = TerminalSize(columns=91, rows=27)


def test_without_input_a_command_reads_nothing(world: World) -> None:
    ran = execute(world, world.start(), ["cat"])
    assert (ran.stdout, ran.exited) == (b"", Exited(exit_code=0))


@pytest.mark.parametrize("data", [EVERY_BYTE, b"", b"no newline", EVERY_BYTE * 40_000], ids=len)
def test_input_is_exact_and_its_end_reaches_the_command(world: World, data: bytes) -> None:
    ran = execute(world, world.start(), ["cat"], stdin=data)
    assert ran.stdout == data
    assert ran.exited == Exited(exit_code=0)


def test_the_end_of_input_does_not_kill(world: World) -> None:
    ran = execute(world, world.start(), ["sh", "-c", "cat >/dev/null; sleep 0.2; echo lived on; exit 9"], stdin=b"x")
    assert ran.stdout == b"lived on\n"
    assert ran.exited == Exited(exit_code=9)


def test_a_command_that_closes_its_input_early(world: World) -> None:
    job = world.start()

    async def main() -> tuple[Ran, bool]:
        async with executing(world, job, ["sh", "-c", "exec <&-; sleep 0.3; echo done"], stdin=True) as execution:
            taken: list[bool] = []

            async def feed() -> None:
                taken.append(await execution.write(EVERY_BYTE * 20_000))
                await execution.close_stdin()
                await execution.close_stdin()

            ran = await collect(execution, feed)
            return ran, taken[0]

    ran, taken = asyncio.run(asyncio.wait_for(main(), 100))
    # Over a network the client does not learn that the input is not read.
    assert not taken or job.backend != "local"
    assert ran.stdout == b"done\n"
    assert ran.exited == Exited(exit_code=0)


def test_a_pending_write_ends_with_the_execution(world: World) -> None:
    job = world.start()

    async def main() -> bool:
        async with executing(world, job, ["sleep", "4004"], stdin=True) as execution:
            events = execution.__aiter__()
            await anext(events)
            writing = asyncio.create_task(execution.write(bytes(64_000_000)))
            await asyncio.sleep(0.05)
            assert not writing.done()
            assert await execution.end(1.0)
            await execution.aclose()
            return await writing

    assert asyncio.run(asyncio.wait_for(main(), 100)) is False


def test_input_for_many(world: World) -> None:
    job = world.start(workers=3)
    data = EVERY_BYTE * 3000
    reader, writer = os.pipe()

    async def main() -> None:
        def feed() -> None:
            with os.fdopen(writer, "wb") as file:
                file.write(data)

        feeding = asyncio.create_task(asyncio.to_thread(feed))
        outcomes, kept = await asyncio.to_thread(fan_out, world, job, ["cat"], stdin=reader)
        await feeding
        assert [outcome.kind for outcome in outcomes] == [EndKind.EXITED] * 3
        assert list(kept.output_of.values()) == [data] * 3

    try:
        asyncio.run(main())
    finally:
        os.close(reader)


def test_a_terminal_and_its_size(world: World) -> None:
    script = "stty size; tty -s && echo a terminal; echo to stderr >&2; echo $TERM"
    ran = execute(world, world.start(), ["sh", "-c", script], tty=SIZE)
    # All output on one stream, with a terminal's line ends.
    assert ran.stdout.replace(b"\r\n", b"\n") == b"27 91\na terminal\nto stderr\nxterm-256color\n"
    assert ran.stderr == b""
    assert ran.exited == Exited(exit_code=0)


@pytest.mark.parametrize("after_input", [False, True])
def test_a_terminal_is_resized(world: World, after_input: bool) -> None:
    job = world.start()
    script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.02; done"

    async def main() -> Ran:
        ran, resized = Ran(), False
        async with executing(world, job, ["sh", "-c", script], tty=SIZE, stdin=True) as execution:
            async for event in execution:
                ran.take(event)
                if isinstance(event, Output) and b"ready" in ran.stdout and not resized:
                    resized = True
                    if after_input:
                        await execution.close_stdin()
                    execution.resize(TerminalSize(columns=40, rows=10))
        return ran

    ran = asyncio.run(asyncio.wait_for(main(), 100))
    assert b"10 40" in ran.stdout
    assert ran.exited == Exited(exit_code=3)


@pytest.mark.parametrize("typed", [b"", b"whole\n", b"begun"])
def test_the_end_of_input_on_a_terminal(world: World, typed: bytes) -> None:
    ran = execute(world, world.start(), ["sh", "-c", "stty -echo; cat; echo over"], stdin=typed, tty=SIZE)
    assert ran.stdout.replace(b"^D\x08\x08", b"").replace(b"\r", b"").endswith(typed + b"over\n")
    assert ran.exited == Exited(exit_code=0)


def test_the_commands_terminal_is_its_own_session(world: World) -> None:
    """Ctrl-C typed into it interrupts the command and nothing else."""
    job = world.start()

    async def main() -> Ran:
        ran = Ran()
        async with executing(world, job, ["cat"], stdin=True, tty=SIZE) as execution:
            async for event in execution:
                ran.take(event)
                if isinstance(event, Started):
                    await execution.write(b"\x03")
        return ran

    begun = time.monotonic()
    ended = asyncio.run(asyncio.wait_for(main(), 100)).exited
    assert ended == Exited(signal=2) or (job.backend != "local" and ended == Exited(exit_code=130))
    assert within(time.monotonic() - begun, 20)
