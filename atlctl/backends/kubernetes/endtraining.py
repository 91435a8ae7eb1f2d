"""Ends the training in pods that stay: a POSIX `sh` script that runs in each worker (`remote/sh/stop.sh`).

It finds the training by `/proc`: launchers (torchrun and its like) by their words, processes of torchelastic by its
variables, and what descends from them. Only where there is neither, every Python is the training, but for those that
serve people (Jupyter, debuggers, atlctl itself). SIGTERM goes to the topmost of each tree, since launchers pass it on,
and to what is left topmost when those are gone; after the grace period SIGKILL goes to all that is left.

Never signalled: PID 1, commands of `atlctl exec`, processes of another control group (another container). Where the
training is PID 1, or the child that an init of containers waits for, its end would be the container's: nothing is
done then. Processes of another user show their words, but not their variables, and cannot be signalled.

If no training is found, what PID 1 does decides: an init, a server or a script that only holds the container (`sleep
10000`) has nothing left to end; a shell or a program that goes on with something else may be the training itself, and
is reported as not stopped. So is training that a loop in PID 1 starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import Argv, ExecRequest, Executor, Exited, FailedToStart, Lost, Output, StopResult
from atlctl.backends.kubernetes.api import LATE
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message
from atlctl.jobs.model import Worker
from atlctl.remote.sending import shell

#: Workers in which the script runs at once.
AT_ONCE = 64
#: Seconds beyond the grace period that a worker has: for the start, and for SIGKILL to take effect.
SLACK = 20.0
_SAID = 4096


def request(grace: float) -> ExecRequest:
    """What runs in a worker; `grace` in seconds."""
    return ExecRequest(Argv(("sh", "-c", shell("stop"), "sh", str(max(0, round(grace * 10))))))


def read(worker: str, said: bytes) -> StopResult | None:
    """The script's last word, None where there is none."""
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        word, _, rest = line.removeprefix("atlctl: ").partition(" ")
        if not line.startswith("atlctl: "):
            continue
        match word:
            case "first":
                why = Message("its training is the container's first process: its end would be the container's")
                return StopResult(worker, "not-stopped", reason=why)
            case "again":
                why = Message(
                    "its first process, or a script below it, starts the training again as soon as it is ended"
                )
                return StopResult(worker, "not-stopped", reason=why)
            case "idle":
                return StopResult(worker, "already-ended")
            case "none":
                return StopResult(worker, "not-stopped", reason=_unknown(rest.split()))
            case "ended":
                count, _, killed = rest.partition(" ")
                number = int(count) if count.isascii() and count.isdigit() and len(count) < 8 else 0
                return StopResult(worker, "killed" if killed.strip() else "terminated", number)
            case "left":
                left = rest.split()
                why = Message(
                    "{count} processes survived SIGKILL or belong to another user: {processes}",
                    count=len(left),
                    processes=" ".join(left[:8]),
                )
                return StopResult(worker, "not-stopped", len(left), why)
            case "failed":
                return StopResult(worker, "not-stopped", reason=rest)
    return None


def _unknown(programs: Sequence[str]) -> str:
    """Why nothing was ended. `programs`: the first process, then those below it that may be at work."""
    first, below = "".join(programs[:1]), list(dict.fromkeys(programs[1:]))[:8]
    why = Message(
        "no launcher and no Python was found, and the end of the first process ({program}) would be the container's",
        program=first,
    )
    return Message("{why}; running below it: {programs}", why=why, programs=", ".join(below)) if below else why


async def end(executor: Executor, workers: Sequence[Worker], grace: float) -> list[StopResult]:
    """Run the script in all `workers`, some at a time; one result for each, in their order."""

    async def one(worker: Worker) -> StopResult:
        try:
            async with asyncio.timeout(grace + SLACK):
                return await _in(executor, worker, grace)
        except TimeoutError:
            return StopResult(worker.name, "not-stopped", reason=LATE)

    return await ask_each(workers, one, AT_ONCE)


async def _in(executor: Executor, worker: Worker, grace: float) -> StopResult:
    execution = executor.run(worker, request(grace))
    said = bytearray()
    reason: str = Message("the script reported nothing")
    try:
        async for event in execution:
            if isinstance(event, Output):
                said = (said + event.data)[-_SAID:]
            elif isinstance(event, Lost | FailedToStart):
                reason = event.reason
            elif isinstance(event, Exited) and event.exit_code:
                reason = Message("the script ended with exit code {code}", code=event.exit_code)
            elif isinstance(event, Exited) and event.signal:
                reason = Message("the script was ended by signal {number}", number=event.signal)
    finally:
        await execution.aclose()
    return read(worker.name, bytes(said)) or StopResult(worker.name, "not-stopped", reason=reason)
