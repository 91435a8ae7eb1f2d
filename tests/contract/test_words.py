"""Argument vectors reach the command unchanged; scripts reach one shell, quoted exactly once."""

from __future__ import annotations

import asyncio
import os
import sys
from weakref import WeakKeyDictionary

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.backends.base import Argv, ExecRequest, Output, Script, as_argv, quoted
from atlctl.jobs.model import Job
from tests.contract.drive import execute
from tests.contract.world import World

#: Any bytes in a word of a command line, as Python has them in `sys.argv`.
WORDS = st.lists(st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))), min_size=1, max_size=6)

SPECIAL = [
    "",
    " ",
    "-n",
    "--",
    "--help",
    "a b",
    "'",
    '"',
    'it\'s "quoted"',
    "$(touch x)",
    "`touch x`",
    "${HOME}",
    "\\",
    "\\n",
    "a\nb\n",
    "\t\r",
    "*",
    "~",
    "!!",
    "#",
    ";",
    "&",
    "|",
    "\x1b[2J",
    "显存",
    os.fsdecode("显存".encode("gbk")),
    os.fsdecode(b"\x80\xff"),
    os.fsdecode(b"\x81\x82\x83\x84\x85\x86\x87\x88"),
    "\u202e",
    "x" * 100_000,
]


async def outputs(world: World, job: Job, argvs: list[Argv]) -> list[bytes]:
    executor = world.backend.executor(job)
    found = []
    for argv in argvs:
        execution = executor.run(job.workers[0], ExecRequest(argv))
        found.append(b"".join([event.data async for event in execution if isinstance(event, Output)]))
        await execution.aclose()
    await executor.aclose()
    return found


def joined(words: list[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def test_special_words(world: World) -> None:
    program = "import os, sys; os.write(1, b''.join(os.fsencode(word) + b'\\0' for word in sys.argv[1:]))"
    argv = [sys.executable, "-I", "-X", "utf8", "-c", program, *SPECIAL]
    assert execute(world, world.start(), argv).stdout == joined(SPECIAL)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_words(world: World, data: st.DataObject) -> None:
    job = running(world)
    many = data.draw(st.lists(WORDS, min_size=1, max_size=5))
    argvs = [Argv(("/usr/bin/printf", "%s\\0", *words)) for words in many]
    assert asyncio.run(outputs(world, job, argvs)) == [joined(words) for words in many]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_words_through_a_shell(world: World, data: st.DataObject) -> None:
    job = running(world)
    many = data.draw(st.lists(WORDS, min_size=1, max_size=5))
    argvs = [as_argv(quoted(Argv(("printf", "%s\\0", *words)))) for words in many]
    assert asyncio.run(outputs(world, job, argvs)) == [joined(words) for words in many]


def test_special_words_through_a_shell(world: World) -> None:
    job = world.start()
    argv = as_argv(quoted(Argv(("printf", "%s\\0", *SPECIAL))))
    assert execute(world, job, argv.words).stdout == joined(SPECIAL)


def test_a_script_is_read_by_one_shell(world: World) -> None:
    argv = as_argv(Script("a='1  2'; echo \"$a\" | tr 1 3; exit 4"))
    ran = execute(world, world.start(), argv.words)
    assert ran.stdout == b"3  2\n"
    assert ran.exited.exit_code == 4


@pytest.mark.parametrize("size", [1_000_000, 20_000_000])
def test_a_long_command_line_runs_or_is_refused(world: World, size: int) -> None:
    """A command line that the kernel rejects fails to start; other commands of the run are not affected."""
    job = world.start(workers=2)

    async def main() -> tuple[list[str], bytes]:
        executor = world.backend.executor(job)
        other = executor.run(job.workers[1], ExecRequest(Argv(("sh", "-c", "sleep 0.5; echo still here"))))
        events = other.__aiter__()
        await anext(events)
        long = executor.run(job.workers[0], ExecRequest(Argv(("true", *["界" * 10_000] * (size // 30_000)))))
        kinds = [type(event).__name__ async for event in long]
        rest = b"".join([event.data async for event in events if isinstance(event, Output)])
        await long.aclose()
        await other.aclose()
        await executor.aclose()
        return kinds, rest

    kinds, rest = asyncio.run(asyncio.wait_for(main(), 100))
    # A server accepts less than a kernel.
    runs = job.backend == "local" and size == 1_000_000
    assert kinds == (["Started", "Exited"] if runs else ["FailedToStart"])
    assert rest == b"still here\n"


_jobs: WeakKeyDictionary[World, Job] = WeakKeyDictionary()


def running(world: World) -> Job:
    """One job for all examples of a test."""
    if world not in _jobs:
        _jobs[world] = world.start()
    return _jobs[world]
