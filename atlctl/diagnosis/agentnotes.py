"""Single lines of torchelastic's agent around a failure, outside its summary block.

For attempts that were restarted they are all that the agent prints at its default log level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from atlctl.diagnosis.text import clean_line


class NoteKind(StrEnum):
    """What an agent's line says."""

    #: `failed (exitcode: 1) local_rank: 0 (pid: 14)`: the first failed local rank of one attempt.
    FAILED = "failed"
    #: `Sending process 15 closing signal SIGTERM`: a *victim*, alive when the agent saw the failure.
    CLOSING = "closing"
    #: `Unable to shutdown process 15 via ..., forcefully exiting via ...SIGKILL`.
    FORCED = "forced"
    #: `Received 15 death signal`, or `SignalException: Process 1 got signal: 15`: sent to the agent.
    SIGNALLED = "signalled"
    #: The agent itself died of a rendezvous error.
    RENDEZVOUS = "rendezvous"
    #: `Worker group FAILED. 2/3 attempts left; will restart worker group` (INFO level only).
    RESTART = "restart"
    #: An agent starts: torchrun tells of a setting. Behind the end of another, the container was restarted.
    STARTED = "started"


@dataclass(frozen=True, slots=True)
class AgentNote:
    """One line of the agent. `pid` is in the worker's own pid namespace.

    `time_text` is local time without a zone, `YYYY-MM-DD HH:MM:SS` or, as torch's own log
    format has no year, `MM-DD HH:MM:SS`; None where the line has no time (torch 1.10 to 2.1).
    """

    kind: NoteKind
    line_no: int
    text: str
    pid: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    time_text: str | None = None


#: Byte strings that stand in a log only where a torchelastic trainer ended in failure: the header of
#: the final summary, a signal to the agent, and the agent's own death by a rendezvous error. An attempt
#: that is restarted prints none of them.
FAILURE_MARKERS: tuple[bytes, ...] = (
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    b"torch.distributed.elastic.multiprocessing.api.SignalException: Process ",
    b"torch.distributed.elastic.rendezvous.api.RendezvousConnectionError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    b"torch.distributed.elastic.rendezvous.api.RendezvousStateError",
)

#: What an agent prints when it starts.
AGENT_STARTS = b"Setting OMP_NUM_THREADS environment variable for each process"

#: Byte strings of which one stands in every line that `parse_note` knows.
LITERALS = (
    b"(exitcode: ",
    b" closing signal ",
    b"forcefully exiting via",
    b" death signal",
    b"api.SignalException: ",
    b"elastic.rendezvous.api.Rendezvous",
    b"attempts left; will restart",
    AGENT_STARTS,
)

_NUMBER = r"(-?\d{1,9})"
_FAILED = re.compile(rf"failed \(exitcode: {_NUMBER}\) local_rank: {_NUMBER} \(pid: {_NUMBER}\)")
_CLOSING = re.compile(r"Sending process (\d{1,9}) closing signal (?:Signals\.)?(\w{1,20})")
_FORCED = re.compile(
    r"Unable to shutdown process (\d{1,9}) via .{1,40}?forcefully exiting via (?:Signals\.)?(\w{1,20})"
)
_SIGNALLED = re.compile(
    r"Received (?:Signals\.)?(\w{1,20}) death signal"
    r"|elastic\.multiprocessing\.api\.SignalException: Process \d{1,9} got signal: (?:Signals\.)?(\w{1,20})"
)
_RENDEZVOUS = re.compile(r"torch\.distributed\.elastic\.rendezvous\.api\.(Rendezvous\w{1,40}Error\b.*)")
_RESTART = re.compile(r"Worker group \w{1,20}\. \d{1,9}/\d{1,9} attempts left; will restart worker group")

_TORCH_TIME = re.compile(r"\b[DIWEC](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.\d{6} ")
_LOGGING_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d),\d{3}")

#: Characters of a line that are kept as evidence.
_TEXT_LIMIT = 1000


def parse_note(line: bytes, line_no: int) -> AgentNote | None:
    """The agent's note in this line, or None. Lines without any of the words cost a few byte searches."""
    if b"(exitcode: " in line:
        text = clean_line(line)
        if match := _FAILED.search(text):
            code = int(match[1])
            return _note(
                NoteKind.FAILED,
                text,
                line_no,
                code=code,
                local=int(match[2]),
                pid=int(match[3]),
                signal=signal_name(str(-code)) if code < 0 else None,
            )
    elif b" closing signal " in line:
        text = clean_line(line)
        if match := _CLOSING.search(text):
            return _note(NoteKind.CLOSING, text, line_no, pid=int(match[1]), signal=signal_name(match[2]))
    elif b"forcefully exiting via" in line:
        text = clean_line(line)
        if match := _FORCED.search(text):
            return _note(NoteKind.FORCED, text, line_no, pid=int(match[1]), signal=signal_name(match[2]))
    elif b" death signal" in line or b"api.SignalException: " in line:
        text = clean_line(line)
        if match := _SIGNALLED.search(text):
            return _note(NoteKind.SIGNALLED, text, line_no, signal=signal_name(match[1] or match[2]))
    elif b"elastic.rendezvous.api.Rendezvous" in line:
        text = clean_line(line)
        if (match := _RENDEZVOUS.search(text)) and not match[1].startswith("RendezvousGracefulExitError"):
            return _note(NoteKind.RENDEZVOUS, match[1], line_no)
    elif b"attempts left; will restart" in line:
        text = clean_line(line)
        if _RESTART.search(text):
            return _note(NoteKind.RESTART, text, line_no)
    elif AGENT_STARTS in line:
        return _note(NoteKind.STARTED, clean_line(line), line_no)
    return None


def signal_name(text: str) -> str | None:
    """`SIGTERM` of `15`, `SIGTERM` or `Signals.SIGTERM` (Python versions differ), None for no signal."""
    name = text.removeprefix("Signals.")
    if name.isascii() and name.isdigit():
        try:
            return Signals(int(name)).name
        except ValueError:
            return f"signal {int(name)}"
    return name if name.startswith("SIG") else None


def _note(
    kind: NoteKind,
    text: str,
    line_no: int,
    *,
    pid: int | None = None,
    local: int | None = None,
    code: int | None = None,
    signal: str | None = None,
) -> AgentNote:
    return AgentNote(kind, line_no, text[:_TEXT_LIMIT], pid, local, code, signal, _time_text(text))


def _time_text(text: str) -> str | None:
    if match := _TORCH_TIME.search(text):
        return f"{match[1]}-{match[2]} {match[3]}"
    if match := _LOGGING_TIME.search(text):
        return f"{match[1]} {match[2]}"
    return None
