"""`atlctl errors`: which worker and rank failed first, why, and how sure that is."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async, status_line
from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.jobs.model import State

if TYPE_CHECKING:
    from atlctl.cli.evidence.findings import Display
    from atlctl.diagnosis.result import Cause, Proof

#: Lines of a file inside a worker that are shown around a proof.
_BEFORE = 20
_BEHIND = 5


EXAMPLES = Message(
    """\
atlctl errors train-7
atlctl errors train-7 --exit-code || echo failed     # exit code 1 if a failure was found
atlctl errors train-7 --log-path '/logs/*.log'       # also files inside the workers
atlctl errors train-7 --attempt 1                    # why it failed before 'atlctl rerun'
atlctl errors --from saved/                          # saved logs: WORKER.log, error files
kubectl logs -l app=train --prefix --tail=-1 | atlctl errors --from -"""
)


def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    saved: options.SavedLogs = None,
    log_path: Annotated[
        str | None,
        typer.Option(
            "--log-path",
            metavar="GLOB",
            help=Message("also read files inside the workers that match this quoted pattern (the last 64 MiB of each)"),
        ),
    ] = None,
    attempt: options.Attempt = None,
    no_files: options.NoFiles = False,
    no_pyspy: options.NoPySpy = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help=Message("show how every rank ended, equal ones together"))
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help=Message("exit with 1 if a failure was found"))] = False,
    output: Annotated[str, options.output("table", "json", "yaml")] = "table",
) -> int:
    from atlctl.cli.evidence.findings import Display

    display = Display(output, bool(context().verbose), ranks, exit_code)
    if saved:
        options.refuse_job(job, job_option)
        if attempt is not None:
            raise options.not_together("from", "attempt")
        if log_path is not None:
            raise UsageError(
                Message("--log-path reads files inside a job's workers, and --from names saved logs"),
                Message("saved files: name them with --from, too"),
            )
        from atlctl.cli.evidence.findings import tell_saved

        with status_line():
            return tell_saved(saved, display, error_files=not no_files)
    if no_files:
        raise UsageError(Message("--no-files applies to saved logs only"), "atlctl errors --from PATH --no-files")
    if log_path == "":
        raise UsageError(
            Message("--log-path: the pattern is empty"),
            Message("name files as a worker sees them: --log-path '/logs/*.log'"),
        )
    return run_async(lambda: _errors(job, job_option, log_path, display, attempt, pyspy=not no_pyspy))


async def _errors(
    argument: str | None,
    option: str | None,
    log_path: str | None,
    display: Display,
    attempt: int | None,
    *,
    pyspy: bool,
) -> int:
    from atlctl.cli.evidence import gone, held, recorded
    from atlctl.cli.evidence.collect import collect
    from atlctl.cli.evidence.findings import matcher, no_log, own_signatures, tell
    from atlctl.cli.evidence.logpath import placed
    from atlctl.cli.evidence.looking import with_ranks
    from atlctl.cli.evidence.steps import still_data, still_of, still_text
    from atlctl.cli.target import backend, with_attempt
    from atlctl.diagnosis.cause.decide import diagnose
    from atlctl.diagnosis.hang import HANG, START
    from atlctl.diagnosis.result import Verdict

    source = backend(argument, option)
    found_job = await gone.job_or_recording(
        source, argument, option, living=log_path is not None or attempt is not None
    )
    if isinstance(found_job, recorded.Recording):
        return recorded.tell(found_job, display)
    asked = attempt
    if attempt is not None:
        source, found_job, attempt = await with_attempt(source, found_job, attempt)
    job = await held.look(source, found_job)
    own = own_signatures()
    known = matcher(own)
    with say.doing(Message("reading the events of job {job}", job=job.name)):
        events = await gone.events(source, job)
    collected = await collect(source, job, known, log_path, events, attempt)
    for name, problem in collected.unread.items():
        if isinstance(problem, NothingMatched) and len(collected.unread) == len(job.workers):
            raise problem  # no such attempt
        say.warning(Message("{worker}: its log could not be read: {why}", worker=name, why=problem.message))
    for name, problem in collected.problems:
        say.warning(Message("{names}: {text}", names=name, text=problem.message))
    gone.tell(job, events)
    found = placed(diagnose(collected.evidence, known), collected.stories)
    unread = len(collected.unread) == len(job.workers) and not any(item.log for item in collected.evidence.workers)
    if unread and found.verdict is Verdict.NONE:
        raise no_log(job)
    logs = [item.log for item in collected.evidence.workers if item.log is not None]
    over = bool(logs) and all(log.ended is not None for log in logs)
    if attempt is None and not over:
        found, _ = await with_ranks(source, job, found, collected.evidence, pyspy=pyspy)
    quiet = found.verdict is Verdict.NONE and job.state is State.RUNNING and not over
    still = still_of(collected.latest, time.time()) if quiet else None
    logged = max((log.attempt for log in logs), default=0)
    about = {
        "job": job.name,
        "uid": job.uid,
        "state": str(job.state),
        "attempt": asked or job.attempts or logged or None,
        "source": None,
        "standstill": still_data(still),
    }
    state = Message("job {job}: {state}", job=job.name, state=say.state(job.state, job.reason))
    if logged:
        text = Message("{state}, attempt {number} has ended") if over else Message("{state}, attempt {number}")
        state = text.filled(state=state, number=logged)
    problems = [
        {"kind": e.kind, "worker": name, "message": e.message, "hint": e.hint}
        for name, e in (*collected.unread.items(), *collected.problems)
    ]

    def next_command(cause: Cause) -> str | None:
        if cause.worker is None:
            return f"atlctl ps {job.name}"
        if cause.category in (HANG, START) and not any(proof.line_no for proof in cause.proofs):
            return f"atlctl stacks {job.name}"
        proof = next(iter(cause.proofs), None)
        if proof is None or proof.file is None or proof.line_no is None:
            which = "" if attempt is None else f" --attempt {attempt}"
            return f"atlctl logs {job.name}{which} -w {cause.worker} --tail 100"
        lines = f"{max(1, proof.line_no - _BEFORE)},{proof.line_no + _BEHIND}p"
        return f"atlctl exec -j {job.name} -w {proof.worker} -- sed -n {lines} {shlex.quote(proof.file)}"

    return tell(
        found,
        about,
        [state, *([still_text(still)] if still else [])],
        problems,
        display,
        next_command=next_command,
        place=_place,
        signatures=own,
    )


def _place(proof: Proof) -> str:
    if proof.line_no is None:
        return proof.worker if proof.file is None else joined((proof.worker, proof.file), COMMA)
    if proof.file is None:
        return Message("{worker}, line {number}", worker=proof.worker, number=proof.line_no)
    return Message("{worker}, {file} line {number}", worker=proof.worker, file=proof.file, number=proof.line_no)
