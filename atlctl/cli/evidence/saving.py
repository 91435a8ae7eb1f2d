"""Where the evidence of a job goes before it is stopped, and the saving of it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.naming import counted

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Plan
    from atlctl.jobs.model import Job, Worker
    from atlctl.recording.save import Folder, Saved

#: Seconds for the error files of all workers.
FILES_SECONDS = 20.0


@dataclass(slots=True)
class Keeping:
    """`folder`: None where nothing is saved. `facts`: what the plan says of it. `saved`: what became of it."""

    folder: str | None
    facts: tuple[tuple[str, str], ...] = ()
    saved: Saved | None = None


def keeping(plan: Plan, out: str | None, no_save: bool, *, inside: bool) -> Keeping:
    """What a stop saves and where: nothing where its logs stay, unless --out asks for it.

    `inside`: this runs in a worker that ends. Then the folder has to outlive the worker's pod. Raises UsageError where
    no such place is known. Nothing is made yet.
    """
    if no_save:
        lost = (("saved", "nothing (--no-save)"),) if plan.loses_logs else ()
        return Keeping(None, lost)
    if out is None and not plan.loses_logs:
        return Keeping(None)
    folder, why = _place(plan.job, out, inside=inside and plan.loses_logs)
    return Keeping(folder, (("saved", f"logs, states and events, before it, in {folder}{why}"),))


def _place(job: Job, out: str | None, *, inside: bool) -> tuple[str, str]:
    from atlctl.jobs.naming import safe_file_name
    from atlctl.recording import mounts

    name = f"atlctl-{safe_file_name(job.name)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if not inside:
        return (out or name), ""
    known = mounts.mounts()
    if out is not None:
        below = mounts.mount_of(out, known)
        if below is not None and below.passing:
            raise UsageError(
                f"nothing was stopped: {out} lies on {below.point} ({below.kind}), which goes with this pod",
                "name a folder on a shared file system with --out, or give up the logs with --no-save",
            )
        return out, ""
    shared = mounts.shared_folder(known, os.getcwd())
    if shared is None:
        raise UsageError(
            "nothing was stopped: this runs in one of these workers, and no shared file system is mounted to save "
            "their logs on",
            "--out DIR on a volume that stays, or --no-save to give up the logs",
        )
    mount = mounts.mount_of(shared, known)
    kind = f", on the shared mount {mount.point} ({mount.kind})" if mount is not None else ""
    return os.path.join(shared, name), kind


async def keep(source: Backend, job: Job, chosen: Keeping) -> Keeping:
    """Save the evidence. Raises UsageError, NotAllowed where the folder cannot be made: nothing is stopped then."""
    if chosen.folder is None:
        return chosen
    from atlctl.recording.save import DEADLINE, Folder, save

    folder = Folder(chosen.folder)
    try:
        say.line(
            f"saving the logs of {counted(len(job.workers), 'worker')} in {chosen.folder} ({DEADLINE:g} s at most)"
        )
        saved = chosen.saved = await save(source, job, folder)
        files = await _error_files(source, job, folder, saved) if saved.logs else 0
    finally:
        folder.close()
    more = f", {counted(files, 'error file')}" if files else ""
    size = _size(saved.bytes)
    say.line(f"saved: {counted(saved.logs, 'log')}, {size}{more}; read them with: atlctl errors --from {chosen.folder}")
    if saved.missing:
        say.warning(f"missing in {chosen.folder}:")
        for what, why in say.by_reason(saved.missing):
            say.line(f"  {what}: {why}" if what else f"  {why}")
    return chosen


async def _error_files(source: Backend, job: Job, folder: Folder, saved: Saved) -> int:
    """Error files that the saved logs name: they go with their workers. How many were saved.

    What keeps them from being saved keeps nobody from stopping the job: it is added to what is missing.
    """
    from atlctl.cli.evidence.matching import matcher
    from atlctl.jobs.statedir import write_all
    from atlctl.recording import errorfiles
    from atlctl.recording.read import read_saved

    kept = 0

    def keep(worker: Worker, path: str, data: bytes) -> None:
        nonlocal kept
        try:
            fd = folder.create_below(errorfiles.parts(worker, path))
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            kept += 1
        except OSError as error:
            saved.missing.append((f"{worker.name}: {path}", error.strerror or str(error)))

    try:
        # Of the user's own signatures nothing is needed for that, and a bad file of them stops nobody.
        evidence = read_saved([folder.path], matcher(())).job
        logs = {item.worker: item.log for item in evidence.workers if item.log is not None}
        async with asyncio.timeout(FILES_SECONDS):
            await errorfiles.fetch(source, job, logs, keep)
    except NothingMatched:
        return 0  # the logs are empty
    except AtlctlError as error:
        saved.missing.append(("error files", error.message))
    except TimeoutError:
        saved.missing.append(("error files", f"not all were read within {FILES_SECONDS:g} s"))
    return kept


def as_data(chosen: Keeping | None) -> dict[str, Any] | None:
    """For JSON; None where nothing was saved."""
    if chosen is None or chosen.saved is None:
        return None
    saved = chosen.saved
    missing = [{"what": what, "reason": why} for what, why in saved.missing]
    return {"folder": saved.folder, "logs": saved.logs, "bytes": saved.bytes, "missing": missing}


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
