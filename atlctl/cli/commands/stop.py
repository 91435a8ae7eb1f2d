"""`atlctl stop`: the plan, the question, the evidence, the end of the job or of its workers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import COMMA, Message, about, joined, plural, translated
from atlctl.jobs.errors import LEAVE_ONE_OUT, AtlctlError, ExitCode, NothingMatched, UsageError
from atlctl.jobs.naming import fold_names, safe_file_name
from atlctl.render.palette import Tone, Toned, cleaned

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Plan, StopResult
    from atlctl.cli.target import Stated
    from atlctl.jobs.model import Job, Worker
    from atlctl.recording.save import Folder, SavedEvidence

GRACE_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0
#: Lines about what was not stopped, or was not saved.
MAX_LINES = 20
#: Blanks before further lines of a fact.
_HANG = 4
#: Seconds for the error files of all workers.
FILES_SECONDS = 20.0


TEXT = Message(
    "Jobs of a cluster are suspended if their kind allows it, and 'atlctl resume' takes that back; their logs are "
    "saved first. Without a terminal, --yes is needed. A job that has ended is left as it is."
)
EXAMPLES = Message(
    """\
atlctl stop train-7
atlctl stop train-7 --dry-run
atlctl stop train-7 --yes --out /shared/train-7
atlctl stop train-7 --keep       # end the training, keep workers and GPUs
atlctl stop train-7 --delete --no-save"""
)


@options.selecting
async def command(
    argument: Annotated[
        str | None, typer.Argument(metavar="JOB", help=Message("the job to stop; never guessed"))
    ] = None,
    option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    delete: Annotated[bool, typer.Option("--delete", help=Message("delete the job for good, with its pods"))] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help=Message("end the training, and keep the workers to debug in place"))
    ] = False,
    keep_pods: Annotated[bool, typer.Option("--keep-pods", hidden=True)] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help=Message("save logs, states and events in this new folder")),
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help=Message("save nothing before the stop"))] = False,
    grace: Annotated[
        float,
        options.duration("--grace", zero=True, help=Message("time between SIGTERM and SIGKILL (local jobs, --keep)")),
    ] = GRACE_SECONDS,
    timeout: Annotated[
        float, options.duration("--timeout", help=Message("how long to wait for the workers to end (10, 1.5s, 2m, 1h)"))
    ] = TIMEOUT_SECONDS,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.backends.base import StopRequest
    from atlctl.cli.patience import within
    from atlctl.cli.prompt import confirm
    from atlctl.cli.target import backend, choose, find_job, stated, with_wrappers

    if out is not None and no_save:
        raise UsageError(Message("--out and --no-save exclude each other"), LEAVE_ONE_OUT)
    request = StopRequest(delete, keep or keep_pods, grace)
    source = backend(argument, option)
    async with within(timeout):
        job = await find_job(source, argument, option, reads_only=False, plan=True)
        if request.keep:
            source, job = await with_wrappers(source, job)
        workers = job.workers if selection.empty else await choose(source, job, selection, irreversible=True)
        with say.doing(Message("planning the stop of job {job}", job=job.name)):
            plan = await source.plan_stop(job, workers, request)
    if plan.nothing:
        say.line(Message("{why}: nothing to stop", why=plan.nothing))
        _report(plan, [], dry_run, output)
        return 0
    own = await source.current_worker(job)
    inside = own is not None and plan.ends_terminal and own in {worker.name for worker in plan.workers}
    what = _what(job, workers, plan.workers)
    head = Message("stops {what}", what=what)
    say.line(Toned(head.filled(what=described(what, job, stated(argument, option))), Tone.STRONG, head), 2)
    tell_facts(plan.facts)
    if inside:
        say.warning(Message("the stop ends this terminal, too: it runs in one of these workers"))
    keeping = _what_to_keep(plan, out, no_save, inside=inside)
    tell_facts(keeping.facts)
    if dry_run:
        await source.check(plan)
        say.note(Message("dry run: nothing was stopped"))
        _report(plan, [], dry_run, output)
        return 0
    if not yes:
        confirm(_question(what, plan), Message("nothing was stopped"))
    saved = await _keep(source, job, keeping)
    results = await _carry_out(source, plan, timeout)
    _report(plan, results, dry_run, output, saved)
    return _code(plan, results)


def _question(what: Message, plan: Plan) -> Message:
    return (
        Message("Stop {what} ({where})?", what=what, where=plan.question)
        if plan.question
        else Message("Stop {what}?", what=what)
    )


@dataclass(slots=True)
class Keeping:
    """`folder`: None if nothing is saved. `facts`: lines of the plan about it. `saved`: the result."""

    folder: str | None
    facts: tuple[tuple[str, str], ...] = ()
    saved: SavedEvidence | None = None


def _what_to_keep(plan: Plan, out: str | None, no_save: bool, *, inside: bool) -> Keeping:
    """Decide where a stop saves logs: nowhere if the logs are kept anyway, unless --out is given.

    `inside`: this runs in a worker that will end, so the folder has to outlive the worker's pod. Raises UsageError if
    no such place is known. No folder is created yet.
    """
    if no_save:
        lost = (("saved", Message("nothing (--no-save)")),) if plan.loses_logs else ()
        return Keeping(None, lost)
    if out is None and not plan.loses_logs:
        return Keeping(None)
    folder, why = _folder_for(plan.job, out, inside=inside and plan.loses_logs)
    saved = Message("logs, states and events, before it, in {folder}", folder=folder)
    return Keeping(folder, (("saved", joined((saved, why), COMMA) if why else saved),))


def _folder_for(job: Job, out: str | None, *, inside: bool) -> tuple[str, str]:
    from atlctl.recording.save import mount_of, mounts, shared_folder

    name = f"atlctl-{safe_file_name(job.name)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if not inside:
        return (out or name), ""
    known = mounts()
    if out is not None:
        below = mount_of(out, known)
        if below is not None and below.passing:
            raise UsageError(
                Message(
                    "nothing was stopped: {folder} is on {mount} ({kind}), which is deleted with this pod",
                    folder=out,
                    mount=below.point,
                    kind=below.kind,
                ),
                Message("name a folder on a shared file system with --out, or give up the logs with --no-save"),
            )
        return out, ""
    shared = shared_folder(known, os.getcwd())
    if shared is None:
        raise UsageError(
            Message(
                "nothing was stopped: this runs in one of these workers, and no shared file system is mounted to save "
                "their logs on"
            ),
            Message("--out DIR on a volume that stays, or --no-save to give up the logs"),
        )
    mount = mount_of(shared, known)
    kind = mount and Message("on the shared mount {path} ({kind})", path=mount.point, kind=mount.kind)
    return os.path.join(shared, name), kind or ""


async def _keep(source: Backend, job: Job, chosen: Keeping) -> Keeping:
    """Save the evidence. Raises UsageError, NotAllowed if the folder cannot be made: nothing is stopped then."""
    if chosen.folder is None:
        return chosen
    from atlctl.recording.save import DEADLINE, SAVING_ERROR_FILES, Folder, save

    folder = Folder(chosen.folder)
    try:
        say.line(
            Message(
                "saving the logs of {workers} in {folder} ({seconds:g} s at most)",
                workers=say.workers(len(job.workers)),
                folder=chosen.folder,
                seconds=DEADLINE,
            )
        )
        with say.doing(Message("saving the logs"), done=folder.size, size=True, limit=DEADLINE):
            saved = chosen.saved = await save(source, job, folder)
        with say.doing(SAVING_ERROR_FILES, limit=FILES_SECONDS):
            files = await _error_files(source, job, folder, saved) if saved.logs else 0
    finally:
        folder.close()
    kept: list[str] = [plural("{n} log", "{n} logs", saved.logs), _size(saved.bytes)]
    if files:
        kept.append(plural("{n} error file", "{n} error files", files))
    what = joined(kept, COMMA)
    say.line(Message("saved: {what}; read them with: atlctl errors --from {folder}", what=what, folder=chosen.folder))
    if saved.missing:
        say.warning(Message("missing in {folder}:", folder=chosen.folder))
        for who, why in say.by_reason(saved.missing):
            say.line(Message("  {what}: {why}", what=who, why=why) if who else Message("  {text}", text=why))
    return chosen


async def _error_files(source: Backend, job: Job, folder: Folder, saved: SavedEvidence) -> int:
    """Save the error files that the saved logs name, which are lost with their workers. Returns how many were saved.

    A failure does not prevent the stop; it is added to the list of missing evidence.
    """
    import asyncio

    from atlctl.cli.evidence.findings import matcher
    from atlctl.jobs.statedir import write_all
    from atlctl.recording.read import read_saved
    from atlctl.recording.save import error_file_parts, fetch_error_files

    kept = 0

    def put(worker: Worker, path: str, data: bytes) -> None:
        nonlocal kept
        try:
            fd = folder.create_below(error_file_parts(worker, path))
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            kept += 1
        except OSError as error:
            saved.missing.append((f"{worker.name}: {path}", error.strerror or str(error)))

    try:
        # The user's own signatures are not needed for that; an invalid file of them must not prevent the stop.
        evidence = read_saved([folder.path], matcher(())).job
        logs = {item.worker: item.log for item in evidence.workers if item.log is not None}
        async with asyncio.timeout(FILES_SECONDS):
            await fetch_error_files(source, job, logs, put)
    except NothingMatched:
        return 0  # the logs are empty
    except AtlctlError as error:
        saved.missing.append((Message("error files"), error.message))
    except TimeoutError:
        why = Message("not all were read within {seconds:g} s", seconds=FILES_SECONDS)
        saved.missing.append((Message("error files"), why))
    return kept


def _saved_data(chosen: Keeping | None) -> dict[str, Any] | None:
    """Fields for JSON; None if nothing was saved."""
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


async def _carry_out(source: Backend, plan: Plan, timeout: float) -> Sequence[StopResult]:
    """The request is the last thing that is done: all that was said before is out, since this terminal may end."""

    def told(text: str) -> None:
        say.line(text)
        context().on_first = lambda: say.line(Message("interrupted; the request continues without atlctl"))

    context().writer.flush(5.0)
    try:
        with say.doing(Message("stopping job {job}", job=plan.job.name), limit=timeout):
            return await source.carry_out(plan, timeout, told)
    finally:
        context().on_first = None


def described(what: Message, job: Job, named: Stated | None) -> Message:
    """The first line of a plan: `what`, the marks of its job among others of that name, and whether `atlctl use` has
    named it."""
    from atlctl.render.table import rfc3339

    parts = [job.kind, job.state.label]
    if job.created is not None:
        parts.append(Message("since {time}", time=rfc3339(job.created)))
    parts.append(Message("uid {uid}", uid=job.uid or Message("unknown")))
    if named is not None and named.how == "used":
        parts.append(Message("by atlctl use"))
    return Message("{what} ({about})", what=what, about=joined(parts, COMMA))


#: Names of a plan's lines, as backends have them.
_LABELS: dict[str, Message] = {
    label: label
    for label in (
        about("plan", "where"), about("plan", "by"), about("plan", "owner"), about("plan", "age"),
        about("plan", "workers"), about("plan", "how"), about("plan", "lost"), about("plan", "kept"),
        about("plan", "saved"), about("plan", "back"), about("plan", "then"), about("plan", "note"),
        about("plan", "risk"), about("plan", "doubt"),
    )
}  # fmt: skip


#: Facts that speak against it; the others are quiet.
_TONES = {"lost": Tone.WARN, "risk": Tone.WARN, "doubt": Tone.WARN, "note": Tone.NOTE}


def tell_facts(facts: Sequence[tuple[str, str]]) -> None:
    """The lines of a plan below its first one."""
    for label, text in facts:
        whole = Message("  {label}: {text}", label=_LABELS.get(label, label), text=text)
        say.line(Toned(whole, _TONES.get(label, Tone.DIM), whole.filled(label=whole.values["label"], text="")), _HANG)


def _what(job: Job, workers: Sequence[Worker], running: Sequence[Worker]) -> Message:
    if len(workers) == len(job.workers):
        return Message("job {job}", job=job.name)
    return Message("{workers} of job {job}", workers=fold_names(w.name for w in running), job=job.name)


def _code(plan: Plan, results: Sequence[StopResult]) -> int:
    left = [result for result in results if result.how == "not-stopped"]
    for result in left[:MAX_LINES]:
        if result.reason:
            say.line(Message("  {what}: {why}", what=result.worker, why=result.reason))
    if len(left) > MAX_LINES:
        say.line(Message("  and {count} more", count=len(left) - MAX_LINES))
    if left:
        names = fold_names(result.worker for result in left)
        hint = Message("look at it: atlctl ps {job}; a second stop is safe", job=plan.job.name)
        raise AtlctlError(Message("not stopped: {workers}", workers=names), hint)
    return int(ExitCode.OK)


def _report(
    plan: Plan, results: Sequence[StopResult], dry_run: bool, output: str, saved: Keeping | None = None
) -> None:
    job = plan.job
    if output == "json":
        data = [
            {"worker": r.worker, "how": r.how, "processes": r.processes, "reason": r.reason or None} for r in results
        ]
        whole = {"job": job.name, "uid": job.uid, "dry_run": dry_run, "workers": data}
        more = {
            "namespace": job.namespace,
            "mechanism": plan.how,
            "resume": plan.undo or None,
            "saved": _saved_data(saved),
        }
        say.document({**whole, **more})
        return
    texts = {
        "terminated": (Message("ended after SIGTERM"), Tone.OK),
        "killed": (Message("killed after the grace period"), Tone.WARN),
        "already-ended": (Message("had ended already"), Tone.DIM),
        "gone": (Message("pods are gone"), Tone.OK),
        "not-stopped": (Message("NOT stopped"), Tone.FAIL),
    }
    for how, (text, tone) in texts.items():
        found = [result for result in results if result.how == how]
        if found:
            counts = [str(len(found))]
            if processes := sum(result.processes for result in found):
                counts.append(plural("{n} process", "{n} processes", processes))
            names = fold_names(result.worker for result in found)
            told = Message("{how}: {workers} ({counts})", how=text, workers=names, counts=joined(counts, COMMA))
            line = cleaned(Toned(told, tone, text))
            say.out(f"{line.painted(line.text, context().streams.stdout_color)}\n")
    if results and plan.undo:
        say.out(translated(Message("resume: {command}\n", command=plan.undo)))
