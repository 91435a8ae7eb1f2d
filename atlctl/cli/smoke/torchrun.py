"""`atlctl smoke --print-torchrun`: the command that each worker's environment asks for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.backends.base import Executor
from atlctl.cli import say
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.render.sanitize import clean
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import gather
from atlctl.smoke.findings import Report
from atlctl.smoke.run import PATIENCE, ROLL_CALL_MOST, nobody
from atlctl.smoke.session import Session
from atlctl.smoke.torchrunline import torchrun_line


async def told(executor: Executor, job: Job, workers: Sequence[Worker], timeout: float, output: str) -> int:
    """Prints the lines; returns the exit code. Raises AtlctlError where no worker answers."""
    config = {"seconds": int(timeout) + 30, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
    session = Session(executor, workers, config)
    async with session:
        silent = await session.roll_call(min(PATIENCE, timeout), min(ROLL_CALL_MOST, timeout))
        if not session.living():
            raise nobody(session)
        run = Run(session, tuple(workers), Options(net_only=True, timeout=timeout), Report("quick"))
        await gather(run)
    lines = {name: line(fact) for name, fact in run.facts.items()}
    lines |= {name: ("", [why]) for name, why in silent.items()}
    if output == "json":
        found = [{"worker": name, "command": text or None, "notes": notes} for name, (text, notes) in lines.items()]
        say.document({"job": job.name, "uid": job.uid, "workers": found})
    else:
        _print(lines)
    if silent:
        return int(ExitCode.UNREACHABLE)
    return int(ExitCode.FAILED if any(not text for text, _ in lines.values()) else ExitCode.OK)


def line(fact: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The command for a worker of which this was told, and what to know of it."""
    if "problem" in fact:
        return "", [str(fact["problem"])]
    place = fact.get("place")
    environ = {str(k): v for k, v in place.items() if isinstance(v, str)} if isinstance(place, dict) else {}
    gpus, smi = fact.get("gpus"), fact.get("smi")
    unsure = isinstance(smi, dict) and ("problem" in smi or bool(smi.get("hung")))
    return torchrun_line(environ, None if unsure or not isinstance(gpus, list) else len(gpus))


def _print(lines: Mapping[str, tuple[str, list[str]]]) -> None:
    commands = names_by_reason((name, text) for name, (text, _) in lines.items() if text)
    for text, names in commands.items():
        # One worker's line is there to be copied.
        lead = f"{clean(fold_names(names))}: " if len(lines) > 1 else ""
        say.out(f"{lead}{clean(text)}\n")
    say.about((name, (not text, note)) for name, (text, said) in lines.items() for note in said)
