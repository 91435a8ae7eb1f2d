"""`atlctl stacks`: show the current activity of every rank, and the rank that the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import LIST, Language, Message, translated
from atlctl.jobs.errors import fold_errors
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.render.palette import Tone, Toned, painted
from atlctl.render.sanitize import clean
from atlctl.render.width import wrapped

if TYPE_CHECKING:
    from atlctl.diagnosis.hang import Judged, Pending, RankChange, RankGroup, Scene
    from atlctl.diagnosis.launches import Lag
    from atlctl.diagnosis.rankreport import RankReport, StackReport, ThreadState
    from atlctl.diagnosis.result import Confidence
    from atlctl.diagnosis.tracebacks import Frame
    from atlctl.render.streams import Streams
    from atlctl.stacks.look import Look

#: Seconds for each worker, and between the two looks of --repeat.
TIMEOUT_SECONDS, BETWEEN_SECONDS = 20.0, 5.0
_FRAMES = 30
_CHANGES = {
    "still": Message("did not move: {ranks}"),
    "same": Message("ran, at the same place in the code both times: {ranks}"),
    "moved": Message("moved: {ranks}"),
    "ran": Message("ran, or state not readable: {ranks}"),
    "new": Message("are not the same processes as before: {ranks}"),
    "gone": Message("are gone: {ranks}"),
}

TEXT = Message(
    "Reads /proc in the workers for two seconds, NCCL's counts of collectives, and Python stacks, with torch's worker "
    "server or with py-spy, which is sent along and leaves no trace. No process is stopped. Names the rank that the "
    "others wait for, and how certain that is."
)
EXAMPLES = Message(
    """\
atlctl stacks train-7
atlctl stacks train-7 --no-pyspy                     # reads no process's memory
atlctl stacks train-7 --repeat -o json
atlctl stacks train-7 --dump                         # lets torch write its flight recorders
atlctl stacks train-7 -w 3 -v                        # every Python thread"""
)


@options.selecting
async def command(
    argument: options.Job = None,
    option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    no_pyspy: options.NoPySpy = False,
    repeat: Annotated[
        bool, typer.Option("--repeat", help=Message("look twice, some seconds apart, and compare"))
    ] = False,
    dump: Annotated[
        bool,
        typer.Option(
            "--dump",
            help=Message("also let torch write its flight recorders: asks first, since it can block a rank that hangs"),
        ),
    ] = False,
    yes: options.Yes = False,
    timeout: options.WorkerTimeout = TIMEOUT_SECONDS,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    import asyncio

    from atlctl.cli.evidence.looking import look_at, own_pyspy, scene_of
    from atlctl.cli.target import backend, job_and_workers, say_guessed
    from atlctl.diagnosis.hang import changes
    from atlctl.i18n import language

    context().container = container
    source = backend(argument, option)
    job, chosen = await job_and_workers(source, argument, option, selection, timeout)
    say_guessed(chosen)
    if dump and not yes:
        from atlctl.cli.prompt import confirm

        question = Message(
            "Let torch write its flight recorders? It collects stacks, which can block a rank that hangs."
        )
        confirm(question, Message("nothing was looked at"))
    program = False if no_pyspy else own_pyspy()
    executor = source.executor(job)
    try:
        looks = await look_at(executor, job, chosen, timeout, program, dump=dump and not repeat)
        scene, changed = scene_of(looks, job), None
        if repeat:
            with say.doing(Message("waiting for the second look"), limit=BETWEEN_SECONDS):
                await asyncio.sleep(BETWEEN_SECONDS)
            looks = await look_at(executor, job, chosen, timeout, program, dump=dump)
            first, scene = scene, scene_of(looks, job)
            changed = changes(first, scene)
    finally:
        await executor.aclose()
    if output == "json":
        named = {"job": job.name, "uid": job.uid}
        seen = [worker_data(item.worker.name, item.report) for item in looks]
        say.document({**named, **to_data(scene, changed), "workers": seen}, problems(looks))
    else:
        say.out(SceneText(language(), context().streams).text(scene, changed, verbose=bool(context().verbose)))
        tell(looks, [rank.report for rank in scene.ranks if rank.report is not None], scene.unseen, program)
    return fold_errors([item.error for item in looks if item.error is not None])


def problems(looks: Sequence[Look]) -> list[dict[str, Any]]:
    """The errors of workers as JSON has them."""
    return [
        {"kind": item.error.kind, "worker": item.worker.name, "message": item.error.message, "hint": None}
        for item in looks
        if item.error is not None
    ]


def tell(looks: Sequence[Look], reports: Sequence[RankReport], unseen: Sequence[int], pyspy: bytes | bool) -> None:
    """On stderr: who could not be asked, and what could not be seen, each text once. `pyspy` as for `look`."""
    say.about([(item.worker.name, text) for item in looks for text in _troubles(item)])
    if isinstance(pyspy, bytes) and any(report.source == "py-spy" for report in reports):
        say.note(Message("py-spy was sent to the workers and is gone again; --no-pyspy looks without it"))
    elif pyspy is True and any(report.spy is False for report in reports):
        say.note(
            Message("no Python stacks: py-spy is missing here; install it: {command}", command="pip install py-spy")
        )
    if unseen:
        say.note(Message("not seen: {ranks}", ranks=named_ranks(unseen)))


def _troubles(item: Look) -> Iterator[tuple[bool, str]]:
    """The texts about one worker, and whether each is a warning."""
    report = item.report
    if item.error is not None:
        yield True, item.error.message
    elif report is not None:
        if report.headroom is not None and report.needed is not None and report.headroom < report.needed:
            yield True, report.problem or Message("not enough free memory")
        if report.hidden:
            yield False, Message("processes of other users could not be inspected")
        if report.launches is not None and report.launches.problem is not None:
            yield False, report.launches.problem
        if not report.ranks:
            yield False, Message("no rank process")
        for rank in report.ranks:
            yield from ((False, problem) for problem in rank.problems)


def named_ranks(numbers: Iterable[int | None]) -> Message:
    """`rank 3`, `ranks 0-2,5`, `a rank of unknown number`."""
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return Message("a rank of unknown number")
    if len(known) == 1:
        return Message("rank {rank}", rank=known[0])
    return Message("ranks {numbers}", numbers=fold_numbers(known))


class SceneText:
    """The answer for people, in one language: the verdict, then equal ranks under their folded range, the odd ones
    first."""

    def __init__(self, lang: Language, streams: Streams) -> None:
        self._lang: Language = lang
        self._streams = streams

    def text(self, scene: Scene, changed: Sequence[RankChange] | None, *, verbose: bool) -> str:
        """All of it, ending in a newline. `verbose`: every Python thread of the first rank of each group."""
        tone = Tone.FAIL if scene.culprits else Tone.STRONG
        lines = [*self._lines(self._headline(scene), tone), *self._lines(self._phrase(scene.why), hang=2)]
        for group in sorted(scene.groups, key=lambda group: group.ranks != scene.culprits):
            # The headline is about the first of them, if any.
            if group.ranks != scene.culprits:
                lines += ["", *self._lines(self._title(group), Tone.STRONG)]
                lines += self._lines(self._phrase(group.first.why), hang=2)
            for line in self._body(group, scene, verbose):
                lines += self._lines(line.text, line.tone, 2)
        if changed is not None:
            lines += ["", *self._lines(self._say(Message("between the two looks")), Tone.STRONG)]
            for how, what in _CHANGES.items():
                numbers = [change.rank for change in changed if change.how == how and change.rank is not None]
                if numbers:
                    lines += self._lines(self._say(what.filled(ranks=named_ranks(numbers))), hang=2)
        return "\n".join(lines) + "\n"

    def _lines(self, text: str, tone: Tone = Tone.PLAIN, hang: int = 0) -> list[str]:
        """A clean text behind so many blanks; on a terminal it wraps at words, further lines behind two more."""
        whole, streams = " " * hang + text, self._streams
        lead = len(whole) - len(whole.lstrip(" "))
        lines = wrapped(whole, streams.width, lead + 2) if streams.stdout_tty else [whole]
        return [painted(line, tone, streams.stdout_color) for line in lines]

    def _say(self, text: str) -> str:
        return translated(text, self._lang)

    def _phrase(self, text: str) -> str:
        return clean(self._say(text))

    def _headline(self, scene: Scene) -> str:
        """Who and what, in one line."""
        kinds = dict.fromkeys(self._phrase(rank.what) for rank in scene.culprits) or [self._phrase(scene.what)]
        what = self._say(LIST).join(kinds) + self._sure(scene.confidence)
        return self._say(Message("{who}: {what}", who=self._who(scene.culprits), what=what)) if scene.culprits else what

    def _sure(self, confidence: Confidence | None) -> str:
        from atlctl.diagnosis.telling.people import SURE

        return self._say(Message(", {sure}", sure=self._say(SURE[confidence]))) if confidence else ""

    def _who(self, ranks: Sequence[Judged]) -> str:
        who = named_ranks(rank.rank for rank in ranks)
        names = [rank.worker for rank in ranks if rank.worker is not None]
        return self._phrase(Message("{ranks} on {workers}", ranks=who, workers=fold_names(names)) if names else who)

    def _title(self, group: RankGroup) -> str:
        from atlctl.diagnosis.hang import What

        first, call, count = group.first, group.first.pending, len(group.ranks)
        what = self._phrase(first.what)
        if call is not None and first.what is What.COLLECTIVE:
            waiting = Message("waiting in collective {seq} ({operation}, {group})")
            what = self._phrase(waiting.filled(seq=call.seq, operation=call.operation, group=call.group))
        who = self._who(group.ranks) + (self._say(Message(" ({count} ranks)", count=count)) if count > 1 else "")
        return self._say(Message("{who}: {what}", who=who, what=what + self._sure(first.confidence)))

    def _body(self, group: RankGroup, scene: Scene, verbose: bool) -> list[Toned]:
        first, report = group.first, group.first.report
        lines: list[Toned] = []
        reports = [rank.report for rank in group.ranks if rank.report is not None]
        if not reports:
            return lines
        if report is not None and report.looks:
            moments = dict.fromkeys(_moment_text(one.looks[-1]) for one in reports if one.looks)
            told = Message(
                "main thread: {state}; {ticks} CPU ticks in {seconds} s, all threads {all_ticks}",
                state="; ".join(list(moments)[:3]) + ("; ..." if len(moments) > 3 else ""),
                ticks=_range(one.main_ticks for one in reports),
                all_ticks=_range(one.ticks for one in reports),
                seconds=f"{scene.seconds:.1f}",
            )
            lines.append(Toned(self._phrase(told), Tone.PLAIN))
        pids = ", ".join(str(one.pid) for one in reports[:4]) + (", ..." if len(reports) > 4 else "")
        commands = dict.fromkeys(one.command for one in reports)
        more = Message(" (and {count} other command lines)", count=len(commands) - 1) if len(commands) > 1 else ""
        lines.append(Toned(clean(f"pid {pids}: {next(iter(commands))}{self._say(more)}"), Tone.PLAIN))
        if report is not None and report.children:
            states = dict.fromkeys(f"{child.at.name} {_moment_text(child.at)}" for child in report.children)
            shown = "; ".join(list(states)[:3])
            told = Message("child processes: {count}: {states}", count=len(report.children), states=shown)
            lines.append(Toned(self._phrase(told), Tone.PLAIN))
        lines += [Toned(self._phrase(told), Tone.PLAIN) for told in _witnesses(first)]
        if report is not None and report.stack is not None:
            source = self._say(Message("torch's worker server")) if report.source == "torch" else report.source or "?"
            told = Message("main thread's stack, innermost first (from {source}):", source=source)
            lines += [Toned(self._phrase(told), Tone.PLAIN), *self._frames(report.stack.frames)]
            for thread in report.threads if verbose else ():
                if not thread.main:
                    name = self._phrase(Message("thread {name}:", name=thread.name or "?"))
                    lines += [Toned(name, Tone.PLAIN), *self._frames(thread.frames)]
        return lines

    def _frames(self, frames: Sequence[Frame]) -> list[Toned]:
        shown = [
            Toned(
                clean(f"  {frame.function} ({frame.path.rpartition('/site-packages/')[2]}:{frame.line})"),
                Tone.STRONG if frame.own else Tone.DIM,
            )
            for frame in frames[:_FRAMES]
        ]
        left = len(frames) - len(shown)
        return [*shown, Toned("  " + self._say(Message("({count} more)", count=left)), Tone.PLAIN)] if left else shown


def _witnesses(rank: Judged) -> Iterator[Message]:
    """The facts, other than its own process, that show that others wait for it."""
    if (call := rank.missed) is not None:
        told = Message("flight recorder: not in collective {seq} ({operation}, {group}), in which others wait")
        yield told.filled(seq=call.seq, operation=call.operation, group=call.group)
    if (lag := rank.lag) is not None:
        told = Message("NCCL: {count} of {most} {operation} launched, in a communicator of {size} ranks")
        yield told.filled(count=lag.count, most=lag.most, operation=lag.operation, size=lag.size)


def _moment_text(at: ThreadState) -> str:
    """`S in futex`, `D in read /data/x`, `R`."""
    call = at.syscall if at.syscall not in (None, "none", "running") else at.wchan
    return at.state + (f" in {call}" if call else "") + (f" {at.target}" if at.target else "")


def _short(path: str) -> str:
    return path.rpartition("/site-packages/")[2]


def _range(values: Iterable[int]) -> str:
    found = list(values)
    low, high = min(found), max(found)
    return str(low) if low == high else f"{low}-{high}"


def to_data(scene: Scene, changed: Sequence[RankChange] | None) -> dict[str, Any]:
    """The answer for programs, without the job's name. Its fields are in docs/en/stacks.md."""
    return {
        "verdict": str(scene.what),
        "confidence": scene.confidence,
        "why": scene.why,
        "culprits": [
            {"rank": rank.rank, "worker": rank.worker, "pid": rank.report and rank.report.pid}
            for rank in scene.culprits
        ],
        "seconds": scene.seconds,
        "world_size": scene.world,
        "unseen_ranks": list(scene.unseen),
        "groups": [
            {
                **_verdict_data(group.first),
                "ranks": [rank.rank for rank in group.ranks],
                "workers": list(dict.fromkeys(rank.worker for rank in group.ranks)),
                "stack": [_frame_data(frame) for frame in group.first.frames],
            }
            for group in scene.groups
        ],
        "ranks": [_rank_data(rank) for rank in scene.ranks],
        "changes": None
        if changed is None
        else [{"rank": change.rank, "worker": change.worker, "moved": change.how} for change in changed],
    }


def worker_data(name: str, report: StackReport | None) -> dict[str, Any]:
    """A worker's answer, without its ranks."""
    return {
        "worker": name,
        "seen": report is not None,
        "memory_headroom_bytes": report.headroom if report else None,
        "throttled_microseconds": report.throttled_us if report else None,
        "hidden_processes": report.hidden if report else None,
        "launchers": report.launchers if report else None,
        "problem": report.problem if report else None,
    }


def _verdict_data(rank: Judged) -> dict[str, Any]:
    return {
        "verdict": str(rank.what),
        "confidence": rank.confidence,
        "why": rank.why,
        "collective": _pending_data(rank.pending),
        "missed": _pending_data(rank.missed),
        "launched": _lag_data(rank.lag),
    }


def _pending_data(pending: Pending | None) -> dict[str, Any] | None:
    if pending is None:
        return None
    return {"number": pending.seq, "operation": pending.operation, "group": pending.group}


def _lag_data(lag: Lag | None) -> dict[str, Any] | None:
    if lag is None:
        return None
    return {"operation": lag.operation, "number": lag.count, "of": lag.most, "communicator_size": lag.size}


def _rank_data(rank: Judged) -> dict[str, Any]:
    data: dict[str, Any] = {"rank": rank.rank, "worker": rank.worker, **_verdict_data(rank)}
    report = rank.report
    if report is None:
        return {**data, "process": None, "threads": []}
    process = {
        "pid": report.pid,
        "started": report.started,
        "command": report.command,
        "main_thread": _moment_data(report.looks[-1]) if report.looks else None,
        "cpu_ticks": report.ticks,
        "main_thread_cpu_ticks": report.main_ticks,
        "context_switches": report.switches,
        "run_nanoseconds": report.run_ns,
        "wait_nanoseconds": report.wait_ns,
        "still": rank.still,
        "frozen": report.frozen,
        "tracer": report.tracer or None,
        "children": [
            {"pid": child.pid, "name": child.at.name, "cpu_ticks": child.ticks, **_moment_data(child.at)}
            for child in report.children
        ],
        "stack_source": report.source,
        "problems": [*report.problems, *([f"environ: {report.unread}"] if report.unread else [])],
    }
    threads = [
        {"name": one.name, "main": one.main, "active": one.active, "frames": list(map(_frame_data, one.frames))}
        for one in report.threads
    ]
    return {**data, "process": process, "threads": threads}


def _moment_data(at: ThreadState) -> dict[str, Any]:
    return {"state": at.state, "wchan": at.wchan, "syscall": at.syscall, "target": at.target}


def _frame_data(frame: Frame) -> dict[str, Any]:
    return {"function": frame.function, "file": frame.path, "line": frame.line}
