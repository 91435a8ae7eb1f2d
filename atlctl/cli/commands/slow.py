"""`atlctl slow`: show which rank, worker or link makes a living job slow, and why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async, status_line
from atlctl.i18n import COLON, COMMA, LIST, Message, joined, translated
from atlctl.jobs.errors import AtlctlError, UsageError, fold_errors
from atlctl.render.table import rfc3339

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Executor
    from atlctl.diagnosis.slow import Laggard, RankPace, SlowVerdict
    from atlctl.diagnosis.steps import Slowdown, StepTrack
    from atlctl.diagnosis.tracebacks import Frame
    from atlctl.jobs.model import Job, Worker
    from atlctl.jobs.selection import Selection
    from atlctl.stacks.look import Look

#: Logs whose ends are read for the steps, and lines of each.
_LOGS, _TAIL = 16, 4000
#: Seconds for each worker, and those in which the ranks are sampled.
TIMEOUT_SECONDS, WINDOW_SECONDS = 30.0, 8.0

TEXT = Message(
    "Samples the ranks for eight seconds: the activity of their main threads, their Python stacks, and counters of "
    "CPU, memory, TCP connections and GPUs. Names the rank, worker or link that the others wait for, the cause, and "
    "how certain that is. No process is stopped."
)
EXAMPLES = Message(
    """\
atlctl slow train-7
atlctl slow train-7 --no-pyspy                       # reads no process's memory
atlctl slow train-7 --net                            # also sends data over every link, for 5 s
atlctl slow train-7 -o json
atlctl slow --from saved/                            # when it was slow, by the steps in saved logs"""
)


@options.selecting
def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    saved: options.SavedLogs = None,
    no_pyspy: options.NoPySpy = False,
    net: Annotated[
        bool,
        typer.Option(
            "--net", help=Message("also test the links between all workers: 5 s, with 10 % of a link's speed at most")
        ),
    ] = False,
    timeout: options.WorkerTimeout = TIMEOUT_SECONDS,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    if saved:
        options.refuse_job(job, job_option)
        if not selection.empty:
            raise UsageError(Message("--from reads all logs; it takes no selection"), "atlctl slow --from PATH")
        with status_line():
            return _saved(saved, output)
    context().container = container
    return run_async(lambda: _slow(job, job_option, selection, not no_pyspy, net, timeout, output))


async def _slow(
    argument: str | None, option: str | None, selection: Selection, pyspy: bool, net: bool, timeout: float, output: str
) -> int:
    from atlctl.cli.commands.stacks import problems, tell
    from atlctl.cli.evidence.looking import own_pyspy
    from atlctl.cli.target import backend, job_and_workers, say_guessed

    source = backend(argument, option)
    job, chosen = await job_and_workers(source, argument, option, selection, timeout)
    say_guessed(chosen)
    program = own_pyspy() if pyspy else False
    executor = source.executor(job)
    steps = asyncio.create_task(_steps(source, job, chosen, timeout))
    try:
        looks = await _look(executor, chosen, timeout, program)
        found = _judged(looks)
        if net:
            found = await _tested(found, executor, chosen, timeout)
    finally:
        await executor.aclose()
        if not steps.done():
            steps.cancel()
        await asyncio.wait([steps])
    since = None if steps.cancelled() else _since(steps.result())
    if output == "json":
        say.document({"job": job.name, "uid": job.uid, **to_data(found), "since": _since_data(since)}, problems(looks))
    else:
        say.out("\n".join(_lines(found, since)) + "\n")
        tell(looks, [pace.report for pace in found.ranks], found.unseen, program)
        say.about(
            (item.worker.name, (False, Message("no GPU data: {why}", why=watched.gpu_problem)))
            for item in looks
            if item.report is not None and (watched := item.report.watched) is not None and watched.gpu_problem
        )
    return fold_errors([item.error for item in looks if item.error is not None])


async def _look(executor: Executor, workers: Sequence[Worker], timeout: float, program: bytes | bool) -> list[Look]:
    """Samples the ranks. Of many workers, py-spy is sent to the slow ones and to one other, in a second look."""
    from atlctl.cli.evidence.looking import SPIED
    from atlctl.stacks.look import SAMPLER, look

    async def sample(some: Sequence[Worker], spy: bytes | bool) -> list[Look]:
        text = Message("sampling the ranks for {seconds:g} s", seconds=WINDOW_SECONDS)
        with say.doing(text, limit=WINDOW_SECONDS):
            return await look(executor, some, timeout, spy, WINDOW_SECONDS, program=SAMPLER)

    if isinstance(program, bool) or len(workers) <= SPIED:
        return await sample(workers, program)
    looks = await sample(workers, True)
    slow = {culprit.worker for culprit in _judged(looks).culprits}
    others = [worker for worker in workers if worker.name not in slow]
    chosen = [worker for worker in workers if worker.name in slow][: SPIED - 1] + others[:1]
    spied = {item.worker.name: item for item in await sample(chosen, program) if item.report is not None}
    return [spied.get(item.worker.name, item) for item in looks]


def _judged(looks: Sequence[Look]) -> SlowVerdict:
    from atlctl.diagnosis.slow import judge

    return judge({item.worker.name: item.report for item in looks if item.report is not None})


async def _tested(found: SlowVerdict, executor: Executor, workers: Sequence[Worker], timeout: float) -> SlowVerdict:
    """The verdict with a test of the network, which runs after the sampling."""
    from atlctl.diagnosis.slow import Laggard, with_network_test
    from atlctl.smoke.findings import SmokeVerdict
    from atlctl.smoke.run import LIGHT_SECONDS, check_links

    with say.doing(Message("testing the links for {seconds:g} s", seconds=LIGHT_SECONDS), limit=LIGHT_SECONDS):
        try:
            report = await check_links(executor, workers, timeout)
        except AtlctlError as error:
            say.warning(Message("the network was not tested: {why}", why=error.message))
            return found
    faults = {
        Laggard(one.culprit.worker, peer=one.culprit.peer): one.evidence
        for one in report.findings
        if one.confirmed and one.culprit is not None
    }
    last = report.checks[-1]
    if not faults and last.verdict is not SmokeVerdict.PASS:
        say.note(Message("network test: {what}", what=last.note))
        return found
    return with_network_test(found, faults, last.note)


async def _steps(source: Backend, job: Job, workers: Sequence[Worker], timeout: float) -> list[StepTrack]:
    """The training steps of a job: of its recording if there is one, else of the ends of some logs."""
    from atlctl.cli.evidence.recorded import of_job
    from atlctl.recording.steps import read_recorded

    recording = of_job(job)
    recorded = read_recorded(recording.folder) if recording is not None else {}
    if recorded:
        return [track for tracks in recorded.values() for track in tracks]
    from atlctl.backends.base import LogRequest
    from atlctl.diagnosis.steps import Tracks

    # Ranks wait for each other: their steps are alike.
    some = workers[:: -(-len(workers) // _LOGS) or 1]
    found = [Tracks() for _ in some]

    async def read(worker: Worker, tracks: Tracks) -> None:
        with contextlib.suppress(AtlctlError):
            async for lines in source.lines(job, worker, LogRequest(tail=_TAIL)):
                for line in lines:
                    tracks.feed(line.data, line.time and line.time / 1e9)
                await asyncio.sleep(0)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await asyncio.gather(*(read(worker, tracks) for worker, tracks in zip(some, found, strict=True)))
    return [track for tracks in found for track in tracks.main()]


def _since(tracks: Sequence[StepTrack]) -> Slowdown | None:
    """The slow phase that the job is in, by the track that shows it best."""
    now = [slow for track in tracks if (slow := track.current_slowdown) is not None]
    return max(now, key=lambda slow: slow.factor, default=None)


def _since_text(slow: Slowdown) -> Message:
    from atlctl.diagnosis.stepwatch import seconds_text

    return Message(
        "slow since step {step} ({time}): {now} a step, {factor:.2f} times the usual {usual}",
        step=slow.first,
        time="-" if slow.start is None else rfc3339(slow.start, "seconds"),
        now=seconds_text(slow.now),
        factor=slow.factor,
        usual=seconds_text(slow.usual),
    )


def _since_data(slow: Slowdown | None) -> dict[str, Any] | None:
    if slow is None:
        return None
    start = None if slow.start is None else rfc3339(slow.start, "seconds")
    usual = {"usual_seconds": slow.usual, "seconds": slow.now, "factor": round(slow.factor, 3)}
    return {"first_step": slow.first, "start": start, **usual}


def _saved(paths: Sequence[str], output: str) -> int:
    """When the training in saved logs was slow."""
    from atlctl.cli.evidence.steps import when_of
    from atlctl.recording.steps import tracks_of
    from atlctl.render.jsonout import error_data
    from atlctl.render.table import render_table

    found = tracks_of(paths, "slow")
    when = when_of(found.workers)
    if output == "json":
        say.document(
            {"source": list(paths), "slow": when.slow, "steps": list(when.data)}, list(map(error_data, found.problems))
        )
    else:
        for problem in found.problems:
            say.warning(problem.message)
        if when.data:
            say.out(render_table(when.table, context().streams))
        else:
            say.note(Message("no training steps were found in the logs"))
    return fold_errors(list(found.problems))


def _lines(found: SlowVerdict, since: Slowdown | None) -> list[str]:
    """The answer for people: the verdict, its witnesses, and a table of the ranks."""
    from atlctl.render.palette import Tone, Toned
    from atlctl.render.sanitize import clean
    from atlctl.render.table import Column, Table, render_table
    from atlctl.render.width import wrapped

    streams = context().streams

    def shown(text: str, tone: Tone = Tone.PLAIN, hang: int = 2) -> list[str]:
        whole = " " * hang + clean(translated(text))
        lines = wrapped(whole, streams.width, hang + 2) if streams.stdout_tty else [whole]
        return [Toned(line, tone).painted(line, streams.stdout_color) for line in lines]

    lines = shown(_headline(found), Tone.FAIL if found.culprits else Tone.STRONG, 0)
    for culprit in found.culprits[:1]:
        lines += [line for text in _details(culprit) for line in shown(text)]
    lines += shown(_since_text(since)) if since is not None else []
    lines += [line for witness in found.witnesses for line in shown(witness.text)]
    lines += [line for text in found.contradictions for line in shown(text, Tone.WARN)]
    if not found.ranks:
        return lines
    columns = (
        Column(Message("RANK"), "right"),
        Column(Message("WORKER")),
        Column(Message("WAITS"), "right"),
        Column(Message("RUNS"), "right"),
        Column(Message("NO CPU"), "right", spare=2),
        Column(Message("I/O"), "right"),
        Column(Message("SLEEPS"), "right"),
        Column(Message("MOST OFTEN IN"), spare=1, least=20),
    )
    rows = [_row(pace, any(_is(culprit, pace) for culprit in found.culprits)) for pace in found.ranks]
    return [*lines, "", render_table(Table(columns, rows), streams).rstrip("\n")]


def _headline(found: SlowVerdict) -> str:
    from atlctl.diagnosis.hang import What
    from atlctl.diagnosis.slow import CAUSES
    from atlctl.diagnosis.telling.people import SURE

    names = list(dict.fromkeys(culprit.name for culprit in found.culprits))
    what: Message = Message("{why} ({cause})", why=found.why, cause=CAUSES[found.cause])
    if names:
        what = joined((joined(names, LIST), what), COLON)
    return joined((what, SURE[found.confidence] if found.confidence else What.UNKNOWN), COMMA)


def _details(culprit: Laggard) -> Iterator[Message]:
    if culprit.mount is not None:
        yield Message("mount: {mount}", mount=culprit.mount)
    if culprit.frame is not None:
        yield Message("line: {frame}", frame=_place(culprit.frame))


def _place(frame: Frame) -> str:
    return f"{frame.function} ({frame.path}:{frame.line})"


def _is(culprit: Laggard, pace: RankPace) -> bool:
    return culprit.worker == pace.worker and (culprit.rank is None or culprit.rank == pace.rank)


def _row(pace: RankPace, slow: bool) -> list[Any]:
    from atlctl.diagnosis.slow import Doing
    from atlctl.render.palette import Tone, Toned

    def share(*doing: Doing) -> str:
        return f"{sum(pace.doing.get(one, 0.0) for one in doing):.0%}"

    frame = pace.frame
    tone = Tone.FAIL if slow else Tone.PLAIN
    cells = [
        "?" if pace.rank is None else str(pace.rank),
        pace.worker,
        "-" if pace.waits is None else f"{pace.waits:.0%}",
        share(Doing.RUN),
        f"{pace.queued:.0%}",
        share(Doing.READ, Doing.WRITE, Doing.RECEIVE),
        share(Doing.SLEEP),
        "-" if frame is None else _place(frame),
    ]
    return [Toned(cell, tone) for cell in cells]


def to_data(found: SlowVerdict) -> dict[str, Any]:
    """The answer for programs, without the job's name. Its fields are in docs/en/slow-job.md."""
    return {
        "cause": str(found.cause),
        "confidence": found.confidence,
        "why": found.why,
        "culprits": [
            {
                "worker": culprit.worker,
                "rank": culprit.rank,
                "peer": culprit.peer,
                "gpu": culprit.gpu,
                "mount": culprit.mount,
                "frame": _frame_data(culprit.frame),
            }
            for culprit in found.culprits
        ],
        "witnesses": [{"kind": str(witness.kind), "text": witness.text} for witness in found.witnesses],
        "contradictions": list(found.contradictions),
        "seconds": found.seconds,
        "unseen_ranks": list(found.unseen),
        "ranks": [
            {
                "rank": pace.rank,
                "worker": pace.worker,
                "pid": pace.report.pid,
                "waits": pace.waits,
                "doing": {str(doing): share for doing, share in pace.doing.items()},
                "stacks": {str(place): share for place, share in pace.places.items()},
                "stack_source": pace.report.source,
                "no_cpu": pace.queued,
                "throttled": pace.throttled,
                "cpus": pace.cpu,
                "frame": _frame_data(pace.frame),
                "problems": list(pace.report.problems),
            }
            for pace in found.ranks
        ],
    }


def _frame_data(frame: Frame | None) -> dict[str, Any] | None:
    return None if frame is None else {"function": frame.function, "file": frame.path, "line": frame.line}
