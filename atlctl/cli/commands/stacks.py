"""`atlctl stacks`: what every rank is doing right now, and which one the others wait for."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError

if TYPE_CHECKING:
    from atlctl.diagnosis.hang.scene import Scene
    from atlctl.jobs.selection import Selection
    from atlctl.stacks.look import Look

#: Seconds for each worker, and between the two looks of --repeat.
TIMEOUT_SECONDS, BETWEEN_SECONDS = 20.0, 5.0
_MAX_PROGRAM = 64 << 20


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    with_pyspy: Annotated[bool, typer.Option("--with-pyspy")] = False,
    repeat: Annotated[bool, typer.Option("--repeat")] = False,
    timeout: Annotated[float, options.duration("--timeout")] = TIMEOUT_SECONDS,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    context().container = container
    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    program = _pyspy() if with_pyspy else None
    verbose = bool(context().verbose)
    return run_async(lambda: _stacks(job, job_option, selection, program, repeat, timeout, output, verbose))


async def _stacks(
    argument: str | None,
    option: str | None,
    selection: Selection,
    program: bytes | None,
    repeat: bool,
    timeout: float,
    output: str,
    verbose: bool,
) -> int:
    from atlctl.cli.catalogue import language
    from atlctl.cli.evidence.looking import scene_of
    from atlctl.cli.patience import within
    from atlctl.cli.stacks.data import to_data, worker_data
    from atlctl.cli.stacks.telling import Telling
    from atlctl.cli.target import backend, choose, find_job, say_guessed
    from atlctl.diagnosis.hang.repeat import changes
    from atlctl.stacks.look import look

    source = backend(argument, option)
    async with within(timeout):
        job = await find_job(source, argument, option, reads_only=True)
        chosen = await choose(source, job, selection)
    say_guessed(chosen)
    executor = source.executor(job)
    try:
        looks = await look(executor, chosen, timeout, program)
        scene, changed = scene_of(looks, job), None
        if repeat:
            await asyncio.sleep(BETWEEN_SECONDS)
            looks = await look(executor, chosen, timeout, program)
            first, scene = scene, scene_of(looks, job)
            changed = changes(first, scene)
    finally:
        await executor.aclose()
    if output == "json":
        problems = [
            {"kind": item.error.kind, "worker": item.worker.name, "message": item.error.message, "hint": None}
            for item in looks
            if item.error is not None
        ]
        about = {"job": job.name, "uid": job.uid}
        seen = [worker_data(item.worker.name, item.report) for item in looks]
        say.document({**about, **to_data(scene, changed), "workers": seen}, problems)
    else:
        say.out(Telling(language(), context().streams).text(scene, changed, verbose=verbose))
        _tell(looks, scene)
    return _code([item.error for item in looks if item.error is not None])


def _pyspy() -> bytes:
    """This client's own py-spy. Raises UsageError where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    path = beside if os.path.exists(beside) else shutil.which("py-spy")
    if path is None:
        raise UsageError("--with-pyspy: there is no py-spy here to bring along", "install it: pip install py-spy")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_PROGRAM + 1)
    except OSError as error:
        raise AtlctlError(f"{path} cannot be read: {error.strerror}") from error
    if not data.startswith(b"\x7fELF") or len(data) > _MAX_PROGRAM:
        raise UsageError(f"--with-pyspy: {path} is no program of Linux", "install it: pip install py-spy")
    return data


def _code(errors: Sequence[AtlctlError]) -> int:
    """One worker that is lost or too slow decides, else one that failed."""
    codes = {int(error.exit_code) for error in errors}
    for code in (ExitCode.UNREACHABLE, ExitCode.TIMEOUT):
        if code in codes:
            return int(code)
    return int(ExitCode.FAILED if codes else ExitCode.OK)


def _tell(looks: Sequence[Look], scene: Scene) -> None:
    """On stderr: who could not be asked, and what could not be seen, each text once."""
    from atlctl.cli.stacks.telling import Telling
    from atlctl.jobs.naming import fold_names

    said: dict[tuple[bool, str], list[str]] = {}
    for item in looks:
        if item.error is not None:
            said.setdefault((True, item.error.message), []).append(item.worker.name)
            continue
        report = item.report
        if report is None:
            continue
        if report.headroom is not None and report.needed is not None and report.headroom < report.needed:
            said.setdefault((True, report.problem or "too little memory is free"), []).append(item.worker.name)
        if report.hidden:
            text = "processes of other users could not be looked into"
            said.setdefault((False, text), []).append(item.worker.name)
        if not report.ranks:
            said.setdefault((False, "no rank process"), []).append(item.worker.name)
        for rank in report.ranks:
            for problem in rank.problems:
                said.setdefault((False, problem), []).append(item.worker.name)
    for (bad, text), names in said.items():
        (say.warning if bad else say.note)(f"{fold_names(dict.fromkeys(names))}: {text}")
    missing_spy = any("there is no py-spy" in text for _, text in said)
    if missing_spy:
        say.note("Python stacks: --with-pyspy brings py-spy along for the look")
    if scene.unseen:
        say.note(f"not seen: {Telling('en', context().streams).ranks(scene.unseen)}")
