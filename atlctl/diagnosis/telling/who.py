"""Short texts for a cause's ranks, workers and message, shared by headline, rows and lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atlctl.diagnosis.consequence import own_text
from atlctl.diagnosis.result import Cause, RankEnd
from atlctl.diagnosis.telling.guide import Manner
from atlctl.diagnosis.torchelastic import NoteKind, parse_note
from atlctl.diagnosis.tracebacks import UNKNOWN, Frame
from atlctl.i18n import COMMA, Message, about, joined
from atlctl.jobs.naming import fold_names, fold_numbers

#: Most workers whose culprits are named per worker.
_LISTED_WORKERS = 3
#: Most characters of a list of ranks or workers; a longer one is replaced by its count.
_CROWD = 30
UNNAMED = Message("a worker that these logs do not name")
_DIGITS = re.compile(r"\d+")
#: The folder part of a library's file name.
_PACKAGES = re.compile(r"^.*[/\\](?:site-packages|dist-packages|python3(?:\.\d+)?)[/\\]")
#: Starts of torchrun's reports of an end.
_REPORTS = ("failed (exitcode: ", "Received ")
_HEAD = re.compile(r"\[?[DIWEF](?:\d{3,4} \d\d:\d\d:\d\d\.\d{1,9})? [^\]\s]{1,200}:\d{1,6}\] ")
_SOURCE = re.compile(r"\[/[^\]\s]{1,300}\.(?:cc|cpp|h):\d{1,6}\] ")
#: Text before a message: a progress bar on the same line, C++'s prefix of an uncaught exception.
_LEAD = re.compile(r"(?:[^|]{0,80}\d%\|[^|]{0,200}\|[^\[\]]{1,40}\[[^\]]{1,60}\](?=[^ ,]))?(?:what\(\): +)?")
#: Most characters of a text that is shown in full elsewhere, and length of the shortened text.
_SHORT, _BEGINNING = 120, 90


def name_of(cause: Cause) -> str:
    """`rank 3 (local rank 1) on worker-1`, as far as known; for a whole worker its name."""
    process = _process(cause)
    if cause.worker is not None:
        return _on(process, cause.worker)
    who = process or UNNAMED
    host = cause.host or cause.node or cause.host_ip
    return Message("{who} ({host})", who=who, host=host) if host else who


def names_of(causes: Sequence[Cause]) -> str:
    """The ranks of several causes: `ranks 2-3 on worker-1, rank 9 on worker-4`."""
    if len(causes) == 1:
        return name_of(causes[0])
    by_worker: dict[str | None, list[Cause]] = {}
    for cause in causes:
        by_worker.setdefault(cause.worker, []).append(cause)
    if len(by_worker) <= _LISTED_WORKERS:
        return joined((_on(_processes(group), worker) for worker, group in by_worker.items()), COMMA)
    known = [worker for worker in by_worker if worker is not None]
    named = [cause for cause in causes if cause.rank is not None]
    ranks = _processes(named) if len(named) == len(causes) else ""
    return _on(ranks, fold_names(known))


def what_of(cause: Cause, manner: Manner) -> str:
    """The first line of the cause's message, or its exit code or signal if it has no message."""
    note = parse_note(cause.message.encode("utf-8", "replace"), 0) if cause.exception is None else None
    if note is not None and note.kind is NoteKind.SIGNALLED and (signal := cause.signal or note.signal):
        return Message("received {signal} from outside", signal=signal)
    if wordless(cause):
        return joined((_end(cause), Message("no traceback")))
    crash = cause.traceback.message if cause.traceback and cause.exception is None else ""
    return in_short(cause.brief or crash or cause.message, manner)


def shortened(text: str, manner: Manner) -> str:
    """The start of a text that is shown in full elsewhere; the full text with -v."""
    if manner.verbose or isinstance(text, Message) or len(text) <= _SHORT:
        return text
    cut = text[:_BEGINNING]
    end = cut.rfind(" ")
    return f"{cut[:end]} …" if end > _BEGINNING // 2 else f"{cut}…"


def wordless(cause: Cause) -> bool:
    """Whether the message is only torchrun's report of the end, which our text for the end replaces."""
    if cause.exception is not None or cause.traceback is not None or isinstance(cause.message, Message):
        return False
    note = parse_note(cause.message.encode("utf-8", "replace"), 0)
    return own_text(cause.message.strip()) is None or (note is not None and note.kind is not NoteKind.RENDEZVOUS)


def ranks_of(ranks: Sequence[int]) -> str:
    """Global ranks, folded: `rank 3`, `ranks 0-2,5`."""
    if len(set(ranks)) > 1:
        return Message("ranks {ranks}", ranks=fold_numbers(ranks))
    return Message("rank {rank}", rank=ranks[0])


def crowd(workers: Sequence[str], ranks: Sequence[int], manner: Manner) -> str:
    """The text for victims: `ranks 0-2 on worker-[0-1]`. Long lists are replaced by a count, unless verbose."""
    names = workers_of(workers, manner)
    if not ranks:
        return names
    shown = ranks_of(ranks)
    if len(shown) > _CROWD and not manner.verbose:
        shown = Message("{count} ranks", count=len(set(ranks)))
    return Message("{what} on {worker}", what=shown, worker=names)


def workers_of(workers: Sequence[str], manner: Manner) -> str:
    """Workers' names, folded, or their number if the list would be long."""
    names = fold_names(workers)
    short = len(names) <= _CROWD or manner.verbose
    return names if short else Message("{count} workers", count=len(workers))


def shape_of(text: str) -> str:
    """The common form of texts that differ only in numbers."""
    return _DIGITS.sub("#", text)


def in_short(text: str, manner: Manner) -> str:
    """A line of a log without the logger's prefix and C++ source places; unchanged with -v. Keeps Message objects."""
    if isinstance(text, Message):
        return text
    text = text.strip()
    if manner.verbose:
        return text
    if parse_note(text.encode("utf-8", "replace"), 0) is not None:
        starts = [text.find(words) for words in _REPORTS]
        return text[max(0, *starts) :]
    return _SOURCE.sub("", _HEAD.sub("", _LEAD.sub("", text, count=1), count=1), count=1)


def frame_text(frame: Frame) -> str:
    """`train.py:101 in decode`; for a library with the path below the folder of packages."""
    path = frame.path if frame.own else _PACKAGES.sub("", frame.path)
    if frame.function == UNKNOWN:
        return f"{path}:{frame.line}"
    return Message("{file}:{line} in {function}", file=path, line=frame.line, function=frame.function)


def ended(cause: Cause | RankEnd) -> str:
    """Exit code and signal; empty if neither is known."""
    if cause.signal and cause.exit_code is not None:
        return Message("{signal} (exit code {code})", signal=cause.signal, code=cause.exit_code)
    if cause.signal:
        return cause.signal
    return Message("exit code {code}", code=cause.exit_code) if cause.exit_code is not None else ""


def _end(cause: Cause) -> str:
    if cause.signal:
        killed = Message("killed by {signal}") if cause.signal == "SIGKILL" else Message("ended by {signal}")
        return killed.filled(signal=cause.signal)
    if cause.exit_code is not None:
        return Message("exit code {code}", code=cause.exit_code)
    return about("diagnosis", "ended")


def _process(cause: Cause) -> str:
    if cause.rank is not None and cause.local_rank is not None:
        return Message("rank {rank} (local rank {local})", rank=cause.rank, local=cause.local_rank)
    if cause.rank is not None:
        return Message("rank {rank}", rank=cause.rank)
    return Message("local rank {local}", local=cause.local_rank) if cause.local_rank is not None else ""


def _processes(causes: Sequence[Cause]) -> str:
    ranks = [cause.rank for cause in causes if cause.rank is not None]
    if len(ranks) == len(causes):
        return ranks_of(ranks)
    if any(cause.rank is not None for cause in causes):
        return ""  # only some have a rank
    local = [cause.local_rank for cause in causes if cause.local_rank is not None]
    if len(local) > 1:
        return Message("local ranks {local}", local=fold_numbers(local))
    return Message("local rank {local}", local=local[0]) if local else ""


def _on(processes: str, workers: str | None) -> str:
    if not workers:
        return processes or UNNAMED
    return Message("{what} on {worker}", what=processes, worker=workers) if processes else workers
