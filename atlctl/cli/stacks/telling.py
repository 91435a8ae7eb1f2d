"""`stacks` as text: the verdict, then equal ranks under their folded range, the odd ones first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atlctl.cli import catalogue
from atlctl.cli.catalogue import Language
from atlctl.diagnosis.hang.judge import Judged, What
from atlctl.diagnosis.hang.repeat import Change
from atlctl.diagnosis.hang.report import Moment
from atlctl.diagnosis.hang.scene import Group, Scene
from atlctl.diagnosis.result import Confidence
from atlctl.diagnosis.telling.phrases import said_in
from atlctl.diagnosis.tracebacks import Frame
from atlctl.jobs.naming import fold_names, fold_numbers
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams

_FRAMES = 30
_HOW = ("still", "same", "moved", "ran", "new", "gone")
_SURE = {Confidence.CERTAIN: "certain", Confidence.LIKELY: "likely", Confidence.GUESS: "guess"}


class Telling:
    """The answer in one language."""

    def __init__(self, lang: Language, streams: Streams) -> None:
        self._lang: Language = lang
        self._streams = streams

    def text(self, scene: Scene, changed: Sequence[Change] | None, *, verbose: bool) -> str:
        """All of it, ending in a newline. `verbose`: every Python thread of the first rank of each group."""
        lines = [self._strong(self._headline(scene)), f"  {self._phrase(scene.why)}"]
        for group in scene.groups:
            lines += [
                "",
                self._strong(self._title(group)),
                *(f"  {line}" for line in self._body(group, scene, verbose)),
            ]
        if changed is not None:
            lines += ["", self._strong(self._say("between"))]
            for how in _HOW:
                numbers = [change.rank for change in changed if change.how == how and change.rank is not None]
                if numbers:
                    lines.append(f"  {self._say(how, ranks=self.ranks(numbers))}")
        return "\n".join(lines) + "\n"

    def ranks(self, numbers: Iterable[int | None]) -> str:
        """`rank 3`, `ranks 0-2,5`, `a rank of unknown number`."""
        known = sorted({number for number in numbers if number is not None})
        if not known:
            return self._say("unknown_rank")
        return f"rank {known[0]}" if len(known) == 1 else self._say("many_ranks", numbers=fold_numbers(known))

    def _say(self, key: str, **values: object) -> str:
        return catalogue.find(self._lang, f"stacks.say.{key}").format(**values)

    def _phrase(self, text: str) -> str:
        return clean(said_in(text, self._lang))

    def _headline(self, scene: Scene) -> str:
        """Who and what, in one line."""
        kinds = dict.fromkeys(self._phrase(rank.what) for rank in scene.culprits) or [self._phrase(scene.what)]
        what = self._say("comma").join(kinds) + self._sure(scene.confidence)
        return self._say("who_what", who=self._who(scene.culprits), what=what) if scene.culprits else what

    def _sure(self, confidence: Confidence | None) -> str:
        return self._say("sure", sure=self._say(_SURE[confidence])) if confidence else ""

    def _who(self, ranks: Sequence[Judged]) -> str:
        numbers = self.ranks(rank.rank for rank in ranks)
        names = [rank.worker for rank in ranks if rank.worker is not None]
        return clean(self._say("where", ranks=numbers, workers=fold_names(names)) if names else numbers)

    def _title(self, group: Group) -> str:
        first, count = group.first, len(group.ranks)
        what = self._phrase(first.what)
        if first.pending is not None and first.what is What.COLLECTIVE:
            about = first.pending
            what = clean(self._say("collective", seq=about.seq, operation=about.operation, group=about.group))
        who = self._who(group.ranks) + (self._say("how_many", count=count) if count > 1 else "")
        return self._say("who_what", who=who, what=what + self._sure(first.confidence))

    def _body(self, group: Group, scene: Scene, verbose: bool) -> list[str]:
        first = group.first
        lines = [self._phrase(first.why)]
        reports = [rank.report for rank in group.ranks if rank.report is not None]
        if not reports:
            return lines
        if first.report is not None and first.report.looks:
            moments = dict.fromkeys(moment_text(report.looks[-1]) for report in reports if report.looks)
            told = self._say(
                "main_thread",
                state="; ".join(list(moments)[:3]) + ("; ..." if len(moments) > 3 else ""),
                ticks=_range(report.main_ticks for report in reports),
                all_ticks=_range(report.ticks for report in reports),
                seconds=f"{scene.seconds:.1f}",
            )
            lines.append(clean(told))
        pids = ", ".join(str(report.pid) for report in reports[:4]) + (", ..." if len(reports) > 4 else "")
        commands = dict.fromkeys(report.command for report in reports)
        more = self._say("other_commands", count=len(commands) - 1) if len(commands) > 1 else ""
        lines.append(clean(f"pid {pids}: {next(iter(commands))}{more}"))
        if first.report is not None and first.report.children:
            states = dict.fromkeys(f"{child.at.name} {moment_text(child.at)}" for child in first.report.children)
            told = self._say("children", count=len(first.report.children), states="; ".join(list(states)[:3]))
            lines.append(clean(told))
        stack = first.report.stack if first.report is not None else None
        if stack is not None and first.report is not None:
            lines.append(clean(self._say("stack", source=self._source(first.report.source))))
            lines += self._frames(stack.frames)
            if verbose:
                for thread in first.report.threads:
                    if not thread.main:
                        lines += [clean(self._say("thread", name=thread.name or "?")), *self._frames(thread.frames)]
        return lines

    def _source(self, source: str | None) -> str:
        return self._say("torch_server") if source == "torch" else source or "?"

    def _frames(self, frames: Sequence[Frame]) -> list[str]:
        shown = [clean(f"  {frame.function} ({_short(frame.path)}:{frame.line})") for frame in frames[:_FRAMES]]
        left = len(frames) - len(shown)
        return [*shown, "  " + self._say("more_frames", count=left)] if left else shown

    def _strong(self, line: str) -> str:
        return f"\x1b[1m{line}\x1b[0m" if self._streams.stdout_color else line


def moment_text(at: Moment) -> str:
    """`S in futex`, `D in read /data/x`, `R`."""
    call = at.syscall if at.syscall not in (None, "none", "running") else at.wchan
    return at.state + (f" in {call}" if call else "") + (f" {at.target}" if at.target else "")


def _short(path: str) -> str:
    return path.rpartition("/site-packages/")[2]


def _range(values: Iterable[int]) -> str:
    found = list(values)
    low, high = min(found), max(found)
    return str(low) if low == high else f"{low}-{high}"
