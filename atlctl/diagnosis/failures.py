"""Judges one process by itself: it failed, it followed a failed peer, or its agent ended it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property

from atlctl.diagnosis.consequence import Consequence, Sort, consequence_of, own_text
from atlctl.diagnosis.joining import Process
from atlctl.diagnosis.logfacts import CollectiveLine, LogFacts, Says, SignatureHit
from atlctl.diagnosis.logline import Moment
from atlctl.diagnosis.signatures import LineRole, Matcher
from atlctl.diagnosis.torchelastic import NoteKind, signal_name
from atlctl.diagnosis.tracebacks import Frame, Raised, innermost_own
from atlctl.i18n import Message


class Part(StrEnum):
    """The role of a process in the failure."""

    INITIATOR = "initiator"
    VICTIM = "victim"
    #: Ended by its agent; it logged no error.
    ENDED = "ended"
    #: It was running, and no line reports its end.
    SILENT = "silent"


class Strength(IntEnum):
    """The strength of the evidence that a process is an initiator."""

    #: Exit code 1 and nothing else: victims can look like that too.
    OPAQUE = 1
    #: A specific exit code, an abort, or an exception mixed with a peer's consequence.
    SOME = 2
    #: Its own error message, or death by a signal that no peer causes.
    STRONG = 3


@dataclass(frozen=True)
class Failure:
    """The judged end of one process. `line_no` and `text` are the best evidence; `sort` and `peer` are of a victim.

    `raised` is the exception that the message comes from.
    """

    process: Process
    part: Part
    strength: Strength | None
    category: str
    exception: str | None
    message: str
    detail: str
    frame: Frame | None
    time: Moment | None
    line_no: int | None
    reason: str = ""
    sort: Sort | None = None
    peer: str | None = None
    hit: SignatureHit | None = None
    signature: str = ""
    raised: Raised | None = None

    @property
    def worker(self) -> str:
        return self.process.worker

    @property
    def rank(self) -> int | None:
        return self.process.rank

    @property
    def local_rank(self) -> int | None:
        return self.process.local_rank

    @property
    def exit_code(self) -> int | None:
        return self.process.exit_code

    @property
    def signal(self) -> str | None:
        code = self.exit_code
        return signal_name(str(-code)) if code is not None and code < 0 else None

    @cached_property
    def key(self) -> tuple[str, int | None, int | None, int | None]:
        """The identity of the process."""
        return (self.worker, self.local_rank, self.rank if self.local_rank is None else None, self.process.pid)


class Judge:
    """Judges the processes of one worker by their output (`matcher` finds the category)."""

    def __init__(self, matcher: Matcher, log: LogFacts) -> None:
        self._matcher = matcher
        self._log = log

    def judge(self, process: Process) -> Failure:
        """Judges this process, without comparing it with others. Every process gets an answer."""
        timeouts = [said for said in process.said if said.says is Says.TIMEOUT]
        died = [said for said in process.said if said.says is Says.DIED]
        chain = process.chain()
        if chain:
            return self._by_words(process)
        own = next((said for said in died if consequence_of(said.text) is None), None)
        if own is not None:
            return self._statement(process, own, Part.INITIATOR, None)
        if timeouts:
            return self._statement(process, timeouts[0], Part.VICTIM, consequence_of(timeouts[0].text))
        if died:
            return self._statement(process, died[0], Part.VICTIM, consequence_of(died[0].text))
        return self._by_exit(process)

    def _by_words(self, process: Process) -> Failure:
        chain = process.chain()
        first, last = chain[0], chain[-1]
        origin, end = consequence_of(first.text), consequence_of(last.text)
        time = self._time(process)
        line_no = last.line_no or (process.entry.line_no if process.entry else None)
        if origin is None and process.closed and last.exception.rpartition(".")[2] in _ASKED_TO_LEAVE:
            return self._made(process, Part.ENDED, None, "cascade_sigterm", line_no, time, last)
        # Without an exit code the exception may have been handled: of a service it is tried again.
        if service := (process.exit_code or 0) > 0 and _of_a_service(first):
            origin, end = None, end if last.operation else None
        own = Strength.SOME if end or service else Strength.STRONG
        part, strength = (Part.VICTIM, None) if origin else (Part.INITIATOR, own)
        if origin is None:  # a pipeline stage raises one without words in its first line
            last = next((item for item in reversed(chain) if item.message != f"{item.exception}:"), last)
        match = self._matcher.match(last.message) or self._matcher.match(first.message)
        if last.inner and (child := self._matcher.match(last.inner)) and child.signature.role is LineRole.ROOT:
            match = child
        for extra in (*last.text.split("\n")[1:], *first.text.split("\n")[1:]):
            if (better := self._matcher.match(extra)) and (match is None or match.signature.category in _GENERAL):
                match = better
        category = match.signature.category if match else "python_exception"
        if part is Part.INITIATOR and match and match.signature.role in (LineRole.CASCADE, LineRole.CONTEXT):
            category = "python_exception"
        # If a chain begins with the process's own error and ends with a lost peer, the first error is the cause.
        shown = first if part is Part.INITIATOR and end else last
        made = self._made(process, part, strength, category, shown.line_no or line_no, time, shown)
        return _with(made, origin or end, match.signature.id if match else "")

    def _statement(self, process: Process, said: CollectiveLine, part: Part, why: Consequence | None) -> Failure:
        match = self._matcher.match(said.text)
        strength = Strength.STRONG if part is Part.INITIATOR else None
        category = match.signature.category if match else "cuda_error_unknown"
        made = Failure(
            process, part, strength, category, None, said.text, "", None, said.time, said.line_no,
            signature=match.signature.id if match else "",
        )  # fmt: skip
        return _with(made, why, made.signature)

    def _by_exit(self, process: Process) -> Failure:
        code, time = process.exit_code, self._time(process)
        line_no = process.note.line_no if process.note else process.entry.line_no if process.entry else None
        text = process.note.text if process.note else process.entry.message_last_line if process.entry else ""

        def made(part: Part, strength: Strength | None, category: str, hit: SignatureHit | None = None) -> Failure:
            words, line, detail = (hit.text, hit.line_no, "") if hit else (text, line_no, "")
            signature = hit.match.signature.id if hit else ""
            return Failure(
                process, part, strength, category, None, words, detail, None, time, line, hit=hit, signature=signature
            )

        if process.forced is not None:
            return made(Part.ENDED, None, "cascade_sigterm")
        roots = (hit for hit in process.hits if hit.match.signature.role is LineRole.ROOT)
        hit = next((hit for hit in roots if consequence_of(hit.text) is None), None)
        hurt = next((hit for hit in process.hits if not _is_warning(hit) and consequence_of(hit.text)), None)
        victim = consequence_of(hurt.text) if hurt else None
        if code is None:
            if hurt is not None:
                return _with(made(Part.VICTIM, None, hurt.match.signature.category, hurt), victim, "")
            if process.closed is not None:
                return made(Part.ENDED, None, "cascade_sigterm")
            if hit is not None:
                return made(Part.INITIATOR, Strength.STRONG, hit.match.signature.category, hit)
            if process.event is not None or process.note is not None or process.unfinished is not None:
                return made(Part.INITIATOR, Strength.OPAQUE, "unknown_python_exit")
            return made(Part.SILENT, None, "")
        if code in (-15, 143, -2, 130, -1) and (process.closed is not None or process.note is None):
            return made(Part.ENDED, None, "cascade_sigterm")
        if code == -9:
            return made(Part.INITIATOR, Strength.STRONG, "killed")
        if code == -6:
            dumped = next((said for said in process.said if said.says is Says.COUNTERS), None)
            if victim is None and hit is None and dumped is not None:
                # A peer's watchdog requested its counters: it was ended with all others, and the counters decide.
                waited = self._statement(process, dumped, Part.VICTIM, None)
                return replace(
                    waited,
                    sort=Sort.WAITED,
                    category="nccl_timeout",
                    reason=Message("NCCL: ended after a peer's timeout"),
                )
            if victim is not None:
                return _with(made(Part.VICTIM, None, "cascade_nccl_abort"), victim, "")
            if hit is not None:
                return made(Part.INITIATOR, Strength.STRONG, hit.match.signature.category, hit)
            return made(Part.INITIATOR, Strength.SOME, "native_crash")
        if code < 0:
            if category := _SENT.get(-code):
                return made(Part.INITIATOR, Strength.SOME, category)
            return made(Part.INITIATOR, Strength.STRONG, "shm_bus_error" if code == -7 else "native_crash")
        if hit is not None:
            return made(Part.INITIATOR, Strength.STRONG, hit.match.signature.category, hit)
        if code == 1 and hurt is not None:
            return _with(made(Part.VICTIM, None, hurt.match.signature.category, hurt), victim, "")
        if code == 2:
            return made(Part.INITIATOR, Strength.SOME, "bad_arguments_or_missing_script")
        if code == 1:
            return made(Part.INITIATOR, Strength.OPAQUE, "unknown_python_exit")
        return made(Part.INITIATOR, Strength.SOME, _SENT.get(code - 128, "explicit_exit"))

    def _made(
        self,
        process: Process,
        part: Part,
        strength: Strength | None,
        category: str,
        line_no: int | None,
        time: Moment | None,
        raised: Raised,
    ) -> Failure:
        message, _, detail = raised.told.partition("\n")
        frame = raised.frame or next((item.frame for item in reversed(process.chain()) if item.frame), None)
        if raised.inner:
            frame = innermost_own(raised.frames) or frame
        exception = raised.exception or None
        return Failure(
            process, part, strength, category, exception, message, detail, frame, time, line_no, raised=raised
        )

    def _time(self, process: Process) -> Moment | None:
        """The best known time: of its message's stamp, its error file, its own clock, the summary, the agent's note."""
        for trace in reversed(process.traces):
            if trace.time is not None and not trace.thread:
                return trace.time
        if process.record is not None and process.record.time is not None:
            return Moment(process.record.time, 1.0, absolute=True)
        for said in process.said:
            if said.time is not None:
                return said.time
        entry = process.entry
        stamped = process.note is not None and (noticed := self._log.moments.get(process.note.line_no)) is not None
        if entry is not None and entry.time is not None and (entry.error_file or own_text(entry.message_last_line)):
            return Moment(entry.time, 1.0, absolute=False)
        if stamped and noticed is not None:
            return self._noticed(process) or noticed
        if entry is not None and entry.time is not None:
            return Moment(entry.time, 1.0, absolute=False)
        return None

    def _noticed(self, process: Process) -> Moment | None:
        """The time at which the agent began to end the others: closer to the death than its later report."""
        assert process.note is not None
        end, first = process.note.line_no, None
        notes = self._log.notes
        for at in range(bisect_left(notes, end, key=lambda note: note.line_no) - 1, -1, -1):
            if end - notes[at].line_no >= 200 or notes[at].kind not in (NoteKind.CLOSING, NoteKind.FORCED):
                break
            first = self._log.moments.get(notes[at].line_no) or first
        return first


#: Signals that other processes send, and their categories. A shell's exit code is 128 + the signal's number.
_SENT = {1: "terminal_hangup", 2: "interrupted", 9: "killed", 15: "terminated"}
#: Exceptions that a signal from the agent raises in Python.
_ASKED_TO_LEAVE = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})
#: General categories: a more specific one from the message's further lines replaces them.
_GENERAL = frozenset({"python_exception", "nccl_cuda_error", "nccl_system_error", "unknown"})


def _of_a_service(raised: Raised) -> bool:
    """Whether a connection was reset that the program's own Python code had opened: torch raises other exceptions."""
    local = any("multiprocessing" in frame.path or "/torch/" in frame.path for frame in raised.frames)
    return raised.exception == "ConnectionResetError" and bool(raised.frames) and not local


def _is_warning(hit: SignatureHit) -> bool:
    """Whether it is a warning of PyTorch's C++ log: stores and sockets also warn at the end of a successful run."""
    return hit.text.startswith("[W")


def _with(made: Failure, why: Consequence | None, signature: str) -> Failure:
    if why is None:
        return replace(made, signature=signature)
    return replace(made, sort=why.sort, peer=why.peer, reason=why.reason, signature=signature)
