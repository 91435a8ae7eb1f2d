"""`atlctl slow`: show which rank, worker or link makes a living job slow, and why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async, status_line
from atlctl.i18n import COLON, COMMA, LIST, Message, joined, translated
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError, fold_errors
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
_EARLIER = "earlier"
ALONE = {"--against": _EARLIER}

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
atlctl slow train-7 --against                        # compared with the last job of this name
atlctl slow --from saved/                            # when it was slow, by the steps in saved logs
atlctl slow --from new/ --against old/               # two recordings"""
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
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="PATH",
            help=Message(
                "compare with this recording or these logs; without a value, with the last start or recording of an "
                "earlier job of the same name"
            ),
        ),
    ] = None,
    timeout: options.WorkerTimeout = TIMEOUT_SECONDS,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    if saved:
        options.refuse_job(job, job_option)
        if not selection.empty:
            raise UsageError(Message("--from reads all logs; it takes no selection"), "atlctl slow --from PATH")
        with status_line():
            return _saved(saved, against, output)
    context().container = container
    return run_async(lambda: _slow(job, job_option, selection, not no_pyspy, net, against, timeout, output))


async def _slow(
    argument: str | None,
    option: str | None,
    selection: Selection,
    pyspy: bool,
    net: bool,
    against: str | None,
    timeout: float,
    output: str,
) -> int:
    from atlctl.cli.commands.stacks import problems, tell
    from atlctl.cli.evidence.looking import own_pyspy
    from atlctl.cli.target import backend, job_and_workers, say_guessed

    source = backend(argument, option)
    job, chosen = await job_and_workers(source, argument, option, selection, timeout)
    say_guessed(chosen)
    kept, earlier = _folders(source, job)
    before = _facts_before(job, earlier, against) if against is not None else None
    program = own_pyspy() if pyspy else False
    executor = source.executor(job)
    try:
        looks = await _look(executor, chosen, timeout, program)
        found = _judged(looks)
        if net:
            found = await _tested(found, executor, chosen, timeout)
    finally:
        await executor.aclose()
    # Not before: a phase that has just begun is known by then.
    tracks = await _steps(source, job, kept, chosen, timeout)
    since = _since(tracks)
    compared = _compared(_facts_now(job, kept, tracks), before) if before is not None else None
    if output == "json":
        data = {"job": job.name, "uid": job.uid, **to_data(found), "since": _since_data(since)}
        say.document(data | _against_data(compared), problems(looks))
    else:
        say.out("\n".join(_lines(found, since)) + "\n")
        _tell(compared)
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


async def _steps(
    source: Backend, job: Job, kept: str | None, workers: Sequence[Worker], timeout: float
) -> list[StepTrack]:
    """The training steps of a job: of the folder `kept` if they are there, else of the ends of some logs."""
    from atlctl.backends.base import LogRequest
    from atlctl.diagnosis.stepfile import read_recorded

    if kept is not None and (recorded := read_recorded(kept)):
        return [track for tracks in recorded.values() for track in tracks]
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

    with contextlib.suppress(TimeoutError), say.doing(Message("reading the training steps"), limit=timeout):
        async with asyncio.timeout(timeout):
            await asyncio.gather(*(read(worker, tracks) for worker, tracks in zip(some, found, strict=True)))
    return [track for tracks in found for track in tracks.main()]


def _folders(source: Backend, job: Job) -> tuple[str | None, str | None]:
    """The folders of the job's evidence or recording, and of the start before; None if there is none."""
    from atlctl.backends.base import KeepsEvidence
    from atlctl.cli.evidence.recorded import of_job

    found = source.evidence(job) if isinstance(source, KeepsEvidence) else ()
    if found:
        return found[0], found[1] if len(found) > 1 else None
    recording = of_job(job)
    return None if recording is None else recording.folder, None


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


def _saved(paths: Sequence[str], against: str | None, output: str) -> int:
    """When the training in saved logs was slow. `against`: logs to compare with."""
    from atlctl.cli.evidence.steps import when_of
    from atlctl.recording.steps import tracks_of
    from atlctl.render.jsonout import error_data
    from atlctl.render.table import render_table

    if against == _EARLIER:
        raise UsageError(Message("with --from, --against needs a path"), "atlctl slow --from NEW --against OLD")
    found = tracks_of(paths, "slow")
    when = when_of(found.workers)
    tracks = [track for some in found.workers.values() for track in some]
    compared = _compared(_facts_saved(paths, tracks), _facts_of(against)) if against is not None else None
    if output == "json":
        data = {"source": list(paths), "slow": when.slow, "steps": list(when.data), **_against_data(compared)}
        say.document(data, list(map(error_data, found.problems)))
    else:
        for problem in found.problems:
            say.warning(problem.message)
        if when.data:
            say.out(render_table(when.table, context().streams))
        else:
            say.note(Message("no training steps were found in the logs"))
        _tell(compared)
    return fold_errors(list(found.problems))


# Against an earlier run of the job


@dataclass(frozen=True, slots=True)
class _Facts:
    """One run of a job. `seconds`: the median time of a step; `told`: other facts by name, without unknown ones;
    `environment`: None if unknown."""

    source: str
    seconds: float | None
    told: Mapping[str, str]
    environment: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _Compared:
    """The facts of two runs that differ: name, now, before; and the names of those that do not."""

    now: _Facts
    before: _Facts
    differ: Sequence[tuple[str, str, str]]
    same: Sequence[str]

    @property
    def factor(self) -> float | None:
        """The time of a step now, as a multiple of that before."""
        return self.now.seconds / self.before.seconds if self.now.seconds and self.before.seconds else None


def _facts_before(job: Job, earlier: str | None, against: str) -> _Facts:
    """The facts of the job to compare with: by default those of the folder `earlier`. Raises AtlctlError."""
    from atlctl.cli.evidence.recorded import newest

    path = earlier if against == _EARLIER else against
    if path is not None:
        return _facts_of(path)
    recording = newest(job.backend, job.namespace, job.name, besides=job.uid)
    if recording is None:
        raise NothingMatched(
            Message("no recording of an earlier job named {job}", job=job.name),
            Message("record each job: atlctl record JOB; or name a folder of evidence: --against PATH"),
        )
    return _facts_of(recording.folder)


def _facts_of(path: str) -> _Facts:
    from atlctl.recording.steps import tracks_of

    return _facts_saved([path], [track for some in tracks_of([path], "slow").workers.values() for track in some])


def _facts_now(job: Job, kept: str | None, tracks: Sequence[StepTrack]) -> _Facts:
    """The facts of a living job: of the folder `kept` if there is one."""
    from atlctl.recording.save import describe_job, describe_worker

    if kept is not None:
        return _facts_saved([kept], tracks)
    workers = [describe_worker(worker) for worker in job.workers]
    return _facts(job.name, {"job": describe_job(job), "workers": workers}, {}, tracks)


def _facts_saved(paths: Sequence[str], tracks: Sequence[StepTrack]) -> _Facts:
    """The facts in logs and folders: `atlctl.json`, and the versions that the logs name at their start."""
    import os
    import shlex

    from atlctl.jobs import fields
    from atlctl.jobs.statedir import read_bytes
    from atlctl.recording.excerpts import versions
    from atlctl.recording.folder import look
    from atlctl.recording.manifest import NAME, SIZE_LIMIT

    def json_in(*names: str) -> Mapping[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError, AtlctlError):
            return fields.mapping(fields.parse_json(read_bytes(os.path.join(*names), SIZE_LIMIT)))
        return {}

    data: Mapping[str, Any] = {}
    named: dict[str, str] = {}
    for path in paths:
        content = look(path, error_files=False) if os.path.isdir(path) else None
        data = data or json_in(path, NAME)
        if not data and content is not None:  # of `atlctl run`
            records = [record for name in content.logs if (record := json_in(path, name, "job.json"))]
            argv = [fields.text(word, 600) for word in fields.items(records[0].get("argv"))] if records else []
            data = {"job": {"command": shlex.join(argv)}, "workers": records}
        for log in [files[0] for files in content.logs.values()] if content is not None else [path]:
            with contextlib.suppress(OSError):
                named = {**versions(log), **named}
    return _facts(", ".join(paths), data, named, tracks)


def _facts(source: str, data: Mapping[str, Any], named: Mapping[str, str], tracks: Sequence[StepTrack]) -> _Facts:
    """`data`: an `atlctl.json`. Texts are without secrets."""
    from statistics import median

    from atlctl.jobs import fields
    from atlctl.jobs.naming import fold_names
    from atlctl.render.redact import redact_json

    workers = fields.entries(data.get("workers"))

    def all_of(name: str) -> str:
        return fold_names(sorted({text for one in workers if (text := fields.text(one.get(name), 300))}))

    environments = [fields.mapping(one["environment"]) for one in workers if one.get("environment")]
    environment = {name: fields.text(value, 300) for some in reversed(environments) for name, value in some.items()}
    restarts = [count for one in workers if (count := fields.whole(one.get("restarts"))) is not None]
    told = {
        "workers": str(len(workers) or ""),
        "nodes": all_of("node"),
        "image": all_of("image"),
        "command": fields.text(fields.mapping(data.get("job")).get("command"), 600),
        "restarts": str(sum(restarts)) if restarts else "",
        **named,
    }
    times = [median(point.seconds for point in track.points) for track in tracks if track.points]
    shown = redact_json({name: text for name, text in told.items() if text})
    return _Facts(source, median(times) if times else None, shown, redact_json(environment) if environments else None)


def _compared(now: _Facts, before: _Facts) -> _Compared:
    pairs = [(name, text, before.told[name]) for name, text in now.told.items() if name in before.told]
    if now.environment is not None and before.environment is not None:
        names = sorted({*now.environment, *before.environment})
        pairs += [(name, now.environment.get(name, "-"), before.environment.get(name, "-")) for name in names]
    same = [name for name, one, other in pairs if one == other]
    return _Compared(now, before, [pair for pair in pairs if pair[1] != pair[2]], same)


def _against_data(compared: _Compared | None) -> dict[str, Any]:
    if compared is None:
        return {}
    steps = {"now": compared.now.seconds, "before": compared.before.seconds, "factor": compared.factor}
    differ = [{"what": name, "now": one, "before": other} for name, one, other in compared.differ]
    return {"against": {"source": compared.before.source, "step_seconds": steps, "differences": differ,
                        "same": list(compared.same)}}  # fmt: skip


def _tell(compared: _Compared | None) -> None:
    """Prints the comparison: the time of a step, then the facts that differ."""
    if compared is None:
        return
    from atlctl.diagnosis.stepwatch import seconds_text
    from atlctl.render.table import Column, Table, render_table

    factor = compared.factor
    steps: list[Sequence[Any]] = []
    if compared.now.seconds is not None or compared.before.seconds is not None:
        now, old = (
            "-" if one is None else seconds_text(one) for one in (compared.now.seconds, compared.before.seconds)
        )
        text = now if factor is None else Message("{now}, {factor:.2f} times", now=now, factor=factor)
        steps.append((translated(Message("time of a step")), translated(text), old))
    columns = (Column(""), Column(Message("NOW")), Column(Message("BEFORE"), spare=1, least=20))
    rows: Iterable[Sequence[Any]] = [*steps, *compared.differ]
    if shown := list(map(list, rows)):
        say.out("\n" + render_table(Table(columns, shown), context().streams))
    elif not compared.same:
        say.note(Message("no facts to compare with {source}", source=compared.before.source))
        return
    if compared.same:
        say.out(translated(Message("the same: {names}", names=joined(compared.same, COMMA))) + "\n")
    say.note(Message("compared with {source}", source=compared.before.source))


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
                "behind": pace.behind,
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
