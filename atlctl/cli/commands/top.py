"""`atlctl top --once`: the GPUs of all workers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError

if TYPE_CHECKING:
    from atlctl.cli.gpuscan import Told
    from atlctl.jobs.gpus import Gpu
    from atlctl.jobs.selection import Selection
    from atlctl.render.streams import Streams

#: A driver that is loaded for the question alone takes seconds for each GPU.
TIMEOUT_SECONDS = 20.0


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    all_workers: options.AllWorkers = False,
    workers: options.Workers = None,
    rank: options.Rank = None,
    role: options.Role = None,
    failed: options.Failed = False,
    exclude: options.Exclude = None,
    once: Annotated[bool, typer.Option("--once")] = False,
    timeout: Annotated[float, options.duration("--timeout")] = TIMEOUT_SECONDS,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    if not once:
        raise UsageError("top shows its table once so far, and has to be told so", "atlctl top --once")
    selection = options.selection(
        all_workers=all_workers, workers=workers, rank=rank, role=role, failed=failed, exclude=exclude
    )
    return run_async(lambda: _show(job, job_option, selection, timeout, output))


async def _show(argument: str | None, option: str | None, selection: Selection, timeout: float, output: str) -> int:
    from atlctl.cli.gpuscan import scan
    from atlctl.cli.target import backend, choose, find_job

    source = backend(argument, option)
    job = await find_job(source, argument, option, reads_only=True)
    chosen = await choose(source, job, selection)
    told = await scan(source, job, chosen, timeout)
    if output == "json":
        problems = [
            {"kind": item.error.kind, "worker": item.worker.name, "message": item.error.message, "hint": None}
            for item in told
            if item.error is not None
        ]
        say.document({"job": job.name, "uid": job.uid, "workers": [_data(item) for item in told]}, problems)
    else:
        if any(item.readout is not None and item.readout.gpus for item in told):
            say.out(_table(told, context().streams))
        _tell(told)
    return _code([item.error for item in told if item.error is not None])


def _code(errors: Sequence[AtlctlError]) -> int:
    """One worker that is lost or too slow decides, else one that failed."""
    codes = {int(error.exit_code) for error in errors}
    for code in (ExitCode.UNREACHABLE, ExitCode.TIMEOUT):
        if code in codes:
            return int(code)
    return int(ExitCode.FAILED if codes else ExitCode.OK)


def _table(told: Sequence[Told], streams: Streams) -> str:
    from atlctl.render.table import Column, Table, render_table

    columns = [
        Column("WORKER"),
        Column("GPU", "right"),
        Column("NAME"),
        Column("UTIL %", "right"),
        Column("MEMORY MiB", "right"),
        Column("POWER W", "right"),
        Column("TEMP C", "right"),
        Column("ECC", "right"),
    ]
    rows = [
        [
            item.worker.name,
            str(gpu.index),
            gpu.name or "-",
            _whole(gpu.utilization),
            f"{_whole(gpu.memory_used)}/{_whole(gpu.memory_total)}",
            _whole(gpu.power),
            _whole(gpu.temperature),
            _whole(gpu.ecc_uncorrected),
        ]
        for item in told
        for gpu in (item.readout.gpus if item.readout is not None else ())
    ]
    return render_table(Table(columns, rows), streams)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _tell(told: Sequence[Told]) -> None:
    """On stderr: who could not tell and why, folded; who has no GPU; lines that were no GPU."""
    from atlctl.jobs.naming import fold_names

    said: dict[tuple[bool, str], list[str]] = {}
    for item in told:
        if item.error is not None:
            said.setdefault((True, item.error.message), []).append(item.worker.name)
            continue
        if item.readout is not None and item.readout.none:
            said.setdefault((False, "no GPU"), []).append(item.worker.name)
        for line in item.readout.odd if item.readout is not None else ():
            said.setdefault((True, f"nvidia-smi also said: {line}"), []).append(item.worker.name)
    for (bad, text), names in said.items():
        (say.warning if bad else say.note)(f"{fold_names(names)}: {text}")


def _data(item: Told) -> dict[str, Any]:
    readout = item.readout
    return {
        "worker": item.worker.name,
        "gpus": None if readout is None else [_gpu_data(gpu) for gpu in readout.gpus],
        "unread": [] if readout is None else list(readout.odd),
    }


def _gpu_data(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "utilization_percent": gpu.utilization,
        "memory_used_mib": gpu.memory_used,
        "memory_total_mib": gpu.memory_total,
        "power_watts": gpu.power,
        "temperature_celsius": gpu.temperature,
        "ecc_uncorrected": gpu.ecc_uncorrected,
    }
