"""Asks NCCL's RAS service in a rank which collectives each rank of the job has launched, twice or often, and compares.

Any one rank answers for the whole job. The service counts launches, not point-to-point operations, and says nothing of
communicators that are being created. Formats: JSON from NCCL 2.28.7 (without a comma before a missing rank's status in
2.28.9, so it is scanned for its pairs), text from 2.24.
"""

from __future__ import annotations

import re
import socket
import time

from atlctl.remote.proc import decoded, listening
from atlctl.remote.sentences import Sentence

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Found = dict[str, Any]

#: Seconds for the ranks to answer the asked one; seconds for its own greeting, and for all of an answer.
_PEERS, _GREETING, _ANSWER = 2, 0.5, 6.0
#: Ranks of one machine share the port, and the kernel picks one of them for each connection: it may be a stopped one.
_TRIES = 8
#: Maximum bytes of an answer, and members of all its communicators; communicators and members that are reported.
_BYTES, _MEMBERS = 256 << 20, 1 << 19
_TOLD, _NAMED = 64, 64
#: Seconds between two pairs of questions.
_PAUSE = 0.4
_PORT = 28028
_OPERATIONS = {
    "Broadcast": "broadcast", "Reduce": "reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
}  # fmt: skip

_PAIR = re.compile(rb'"(\w{1,30})"\s*:\s*("[^"\n]{0,200}"|-?\d{1,19}\b|true|false|\[)')
_HEAD = re.compile(r"#\d+-\d+ \(([0-9a-f]{1,16})\) (\w+)")
_DIFFER = re.compile(r"  Communicator ranks have different (\w+)(?: operation counts| operation|)")
_MANY = re.compile(r"  (\d+) ranks have (?:launched up to operation (\d+)|not launched any operations|status \w+)")
_WHERE = r" -- GPU [\d ()NVML]{1,40} managed by process (\d+) on node (\S+)"
_ONE = re.compile(r"  Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched any operations)))?" + _WHERE)
_STATUS = re.compile(r"  Rank (\d+) has status (\w+)" + _WHERE)
_ERROR = re.compile(r"  Rank (\d+) reported (.{1,60}?)" + _WHERE)
_PROCESS = re.compile(r"  Process (\d+) on node (\S+) managing GPU")


class Member:
    """A rank of a communicator. `counts`: launches by operation. `fault`: `error`, `remote_error` (of a peer),
    `aborted`, `unresponsive`, `dead`, `absent` (its process answers, without this communicator); None if there is
    none."""

    __slots__ = ("counts", "fault", "host", "pid", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.host, self.pid = "", 0
        self.counts: dict[str, int] = {}
        self.fault: str | None = None


class Communicator:
    """`unlisted`: how many members a text counts without naming them, by operation and launches."""

    __slots__ = ("members", "missing", "size", "unlisted")

    def __init__(self) -> None:
        self.size = 0
        self.members: dict[int, Member] = {}
        self.missing: dict[int, Member] = {}
        self.unlisted: dict[tuple[str, int], int] = {}


class RasStatus:
    """The answer of one rank. `lost`: processes that no rank reaches, each its host, pid and fault."""

    def __init__(self) -> None:
        self.version = ""
        self.text = False
        self.communicators: dict[str, Communicator] = {}
        self.lost: list[tuple[str, int, str]] = []


class Ras:
    """Either `begin` and later `facts`, or `lags`. `ranks`: environments of the ranks of this worker."""

    def __init__(self, ranks: dict[int, dict[bytes, bytes]], deadline: float) -> None:
        self._deadline = deadline
        self._where = next(services(ranks), None)
        self._first: RasStatus | None = None

    def begin(self) -> None:
        """Asks for the first time."""
        self._first = self._ask()

    def _ask(self) -> RasStatus | None:
        return None if self._where is None else ask(self._where, self._deadline)

    def facts(self) -> Found | None:
        """The comparison of two answers; None without a service."""
        if self._where is None:
            return None
        second = None if self._first is None else self._ask()
        if self._first is None or second is None:
            return {"problem": Sentence("NCCL's RAS service does not answer")}
        return compared(self._first, second)

    def lags(self, seconds: float) -> Found | None:
        """How often each process was late, in `looks` pairs of questions one behind the other; None if there were
        none. Takes `seconds`, and questions a fifth of them at most: all ranks of the job answer each."""
        late: dict[tuple[str, int], int] = {}
        looks, until = 0, min(time.monotonic() + seconds, self._deadline)
        while self._where is not None and time.monotonic() < until:
            begun = time.monotonic()
            first = self._ask()
            second = None if first is None else self._ask()
            if first is None or second is None:
                break
            found = late_processes(first, second)
            if found is not None:
                looks += 1
                for process in found:
                    late[process] = late.get(process, 0) + 1
            asked = time.monotonic() - begun
            time.sleep(max(0.0, min(max(_PAUSE, 4 * asked), until - time.monotonic())))
        most = sorted(late.items(), key=lambda item: -item[1])[:_NAMED]
        return {"looks": looks, "late": [[host[:64], pid, count] for (host, pid), count in most]} if looks else None


def late_processes(first: RasStatus, second: RasStatus) -> set[tuple[str, int]] | None:
    """Host and pid of those that had not launched, at the second answer, what a peer had launched before the first one,
    and were ahead in no communicator. Independent of the order in which the ranks answer. None if it cannot be said."""
    behind, leading, groups = set(), set(), 0
    for name, communicator in second.communicators.items():
        before = first.communicators.get(name)
        if before is None:
            continue
        most, least = _extremes(before)[1], _extremes(communicator)[0]
        found = {
            (member.host, member.pid) for member in communicator.members.values()
            if any(count < most.get(operation, 0) for operation, count in member.counts.items())
        }  # fmt: skip
        groups += bool(found)
        behind |= found
        leading |= {
            (member.host, member.pid) for member in before.members.values()
            if any(count > least.get(operation, count) for operation, count in member.counts.items())
        }  # fmt: skip
    # A text does not name those that are ahead, which may be those that are behind elsewhere.
    return None if second.text and groups > 1 else behind - leading


def _extremes(communicator: Communicator) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the most launches by operation."""
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    known = [item for member in communicator.members.values() for item in member.counts.items()]
    for operation, count in [*known, *communicator.unlisted]:
        least[operation] = min(count, least.get(operation, count))
        most[operation] = max(count, most.get(operation, count))
    return least, most


def services(ranks: dict[int, dict[bytes, bytes]]) -> Iterator[tuple[str, int]]:
    """Addresses of RAS services on which one of these ranks listens itself: the service has no password."""
    for pid, environ in ranks.items():
        if environ.get(b"NCCL_RAS_ENABLE") == b"0":
            continue
        port = environ.get(b"NCCL_RAS_ADDR", b"").rpartition(b":")[2] or b"%d" % _PORT
        for host, number in listening(pid):
            if b"%d" % number == port:
                yield reached(host), number


def reached(host: str) -> str:
    """The address at which this machine reaches a socket that is bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  nothing is bound


def ask(where: tuple[str, int], deadline: float) -> RasStatus | None:
    """The answer of one of the ranks behind this address; None if there is none in time."""
    for _ in range(_TRIES):
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            with socket.create_connection(where, timeout=min(_GREETING, left)) as connection:
                connection.sendall(b"CLIENT PROTOCOL 2\n")
                if not _line(connection).startswith(b"SERVER PROTOCOL"):
                    return None
                connection.settimeout(max(0.01, min(_ANSWER, left)))
                connection.sendall(b"TIMEOUT %d\n" % _PEERS)
                _line(connection)
                connection.sendall(b"SET FORMAT json\n")
                json = _line(connection).startswith(b"OK")
                connection.sendall(b"VERBOSE STATUS\n")
                pieces = _pieces(connection, min(deadline, time.monotonic() + _ANSWER))
                return of_json(pieces) if json else of_text(b"".join(pieces))
        except socket.timeout:  # noqa: UP041  another class before Python 3.10
            continue
        except (OSError, ValueError):
            return None
    return None


def _line(connection: socket.socket) -> bytes:
    """One line, byte by byte: further bytes belong to the answer."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 200:
        piece = connection.recv(1)
        if not piece:
            raise ValueError
        data += piece
    return data


def _pieces(connection: socket.socket, deadline: float) -> Iterator[bytes]:
    """All data until the end. Raises ValueError if it is too long or too late: half an answer is none."""
    size = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ValueError
        connection.settimeout(left)
        piece = connection.recv(1 << 18)
        if not piece:
            return
        size += len(piece)
        if size > _BYTES:
            raise ValueError
        yield piece


def of_json(pieces: Iterator[bytes]) -> RasStatus:
    """Raises ValueError if it has no end, or too many members."""
    answer, rest, whole, count = RasStatus(), b"", False, 0
    communicator, name, member, missing = Communicator(), "", Member(0), False
    for piece in pieces:
        data = rest + piece
        # Numbers and words may be cut: the last line waits for its end.
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        for found, value in _PAIR.findall(data[:end]):
            key = found.decode()
            if key == "hash":
                communicator, name = Communicator(), decoded(value)
                answer.communicators[name] = communicator
            elif key == "secondary_hash":
                answer.communicators[name + decoded(value)] = answer.communicators.pop(name, communicator)
            elif key == "size":
                communicator.size = _whole(value)
            elif key in ("ranks", "missing_ranks"):
                missing = key == "missing_ranks"
            elif key == "rank":
                count += 1
                if count > _MEMBERS:
                    raise ValueError
                member = Member(_whole(value))
                member.fault = "absent" if missing else None
                (communicator.missing if missing else communicator.members)[member.rank] = member
            elif key == "host":
                member.host = decoded(value.strip(b'"'))
            elif key == "pid":
                member.pid = _whole(value)
            elif key in _OPERATIONS:
                member.counts[_OPERATIONS[key]] = _whole(value)
            elif key in ("init_state", "async_error") and value not in (b"0", b"7"):
                member.fault = "remote_error" if value == b"6" else "error"
            elif key == "abort_flag" and value == b"true":
                member.fault = "aborted"
            elif key == "unresponsive" and value == b"true":
                member.fault = "unresponsive"
            elif key == "considered_dead" and value == b"true":
                member.fault = "dead"
            elif key == "nccl_version":
                answer.version = decoded(value.strip(b'"'))
            elif key == "timeouts_count":
                whole = True
    if not whole:
        raise ValueError
    return answer


def _whole(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        return 0


def of_text(data: bytes) -> RasStatus:
    """Raises ValueError if the last section has not begun."""
    answer = RasStatus()
    answer.text = True
    communicator, operation, listed, section, part = Communicator(), "", 0, "", ""
    for line in decoded(data).splitlines():
        if line.startswith("NCCL version "):
            answer.version = line.split()[2]
        elif line in ("Errors", "Warnings"):
            section = line
        elif line in ("INCOMPLETE", "DEAD"):
            part = line
        elif head := _HEAD.match(line):
            part = head[2]
            communicator = answer.communicators.setdefault(head[1], Communicator())
        elif process := _PROCESS.match(line):
            answer.lost.append((process[2], int(process[1]), "dead" if part == "DEAD" else "unresponsive"))
        elif differ := _DIFFER.match(line):
            operation, listed = _OPERATIONS.get(differ[1], differ[1]), 0  # `status` for that of the ranks
        elif many := _MANY.match(line):
            listed = int(many[2] or 0)
            communicator.unlisted[operation, listed] = int(many[1])
        elif status := _STATUS.match(line):
            if status[2] == "NOCOMM":
                _member(communicator.missing, status[1], status[3], status[4]).fault = "absent"
        elif error := _ERROR.match(line):
            fault = "remote_error" if error[2] == "Remote process error" else "error"
            _member(communicator.members, error[1], error[3], error[4]).fault = fault
        elif one := _ONE.match(line):
            if part == "INCOMPLETE":
                _member(communicator.missing, one[1], one[4], one[5]).fault = "unresponsive"
            elif operation and part == "MISMATCH":
                count = int(one[2]) if one[2] else 0 if one[3] else listed
                if not one[2] and not one[3] and communicator.unlisted.get((operation, listed)):
                    communicator.unlisted[operation, listed] -= 1
                _member(communicator.members, one[1], one[4], one[5]).counts[operation] = count
    if section != "Warnings":
        raise ValueError
    for communicator in answer.communicators.values():
        named = [name for member in communicator.members.values() for name in member.counts]
        sizes = {name: named.count(name) for name in named}
        for (name, _), number in communicator.unlisted.items():
            sizes[name] = sizes.get(name, 0) + number
        if sizes:
            communicator.size = max(len(communicator.members), *sizes.values()) + len(communicator.missing)
    return answer


def _member(members: dict[int, Member], rank: str, pid: str, host: str) -> Member:
    member = members.setdefault(int(rank), Member(int(rank)))
    member.host, member.pid = host, int(pid)
    return member


def compared(first: RasStatus, second: RasStatus) -> Found:
    """For the client: communicators in which nothing was launched between the answers and some members had launched
    less than others, or have faults. `moved`: whether any rank launched something, None if a text does not say."""
    told: list[Found] = []
    moved, processes = False, set()
    for name, communicator in second.communicators.items():
        before = first.communicators.get(name)
        older = before.members if before is not None else {}
        least, most = _extremes(communicator)
        behind, ahead, faulty = [], [], list(communicator.missing.values())
        # A rank that creates another communicator is absent, too.
        lost = any(member.fault in ("unresponsive", "dead") for member in faulty)
        unnamed = max(
            (
                number
                for (name, count), number in communicator.unlisted.items()
                if count == most[name] and (lost or count > least[name])
            ),
            default=0,
        )
        moves = False
        for rank, member in communicator.members.items():
            processes.add((member.host, member.pid))
            if member.fault:
                faulty.append(member)
            if rank not in older or older[rank].counts != member.counts:
                moved = moves = True
            lacks = {operation: [count, most[operation]] for operation, count in member.counts.items()
                     if count < most[operation]}  # fmt: skip
            leads = [operation for operation, count in member.counts.items() if count > least[operation]]
            if lacks:
                behind.append([*_who(member), lacks, leads])
            elif leads or lost:
                ahead.append(_who(member))
        if moves:
            behind, ahead, unnamed = [], [], 0
        if behind or faulty:
            told.append({
                "size": communicator.size,
                "behind": behind[:_NAMED],
                "behind_count": len(behind),
                "ahead": ahead[:_NAMED],
                "ahead_count": len(ahead) + unnamed,
                "faulty": [[*_who(member), member.fault] for member in faulty[:_NAMED]],
            })  # fmt: skip
    told.sort(key=lambda item: (not item["behind"], item["behind_count"], -item["size"]))
    return {
        "problem": None,
        "version": second.version[:40],
        "communicators": told[:_TOLD],
        "processes": len(processes),
        "moved": None if second.text else moved,
        "lost": [list(item) for item in second.lost[:_NAMED]],
    }


def _who(member: Member) -> list[Any]:
    return [member.rank, member.host[:64], member.pid]
