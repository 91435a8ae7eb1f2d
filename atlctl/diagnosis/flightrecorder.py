"""Dumps of PyTorch's flight recorder: the collectives that each rank entered, and ranks that did not join.

torch writes one file for each rank when a collective times out (`TORCH_NCCL_DUMP_ON_TIMEOUT`): a pickle, by default
`~/.cache/torch/comm_lib_trace_rank_3`, in older releases `/tmp/nccl_trace_rank_3`. Its debug server returns JSON,
without stacks. Fields are those of version 2.10 of the dump (torch 2.13); versions 1.x, which count differently, are
not read. The content comes from the job and is not trusted.

The numbers in `pg_status` also count point-to-point operations, `collective_seq_id` of the entries does not: only the
latter can be compared between ranks. A recorder without events (gloo) never reports `completed`, only `retired`.

The result is facts only: a rank that did not join may hang, have left, or wait in another group, or its dump may be
older.
"""

from __future__ import annotations

import gc
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import error as struct_error
from struct import unpack_from
from typing import Any

from atlctl.diagnosis.tracebacks import user_frame
from atlctl.i18n import Message, about
from atlctl.jobs import fields
from atlctl.jobs.errors import too_long

#: The largest dump that is read, in bytes. JSON takes twenty times its size in memory, and has no stacks.
DUMP_LIMIT = 64 * 1024 * 1024
JSON_LIMIT = 16 * 1024 * 1024
#: The last entries of a dump that are read; the recorder's buffer has 2,000 by default.
MAX_ENTRIES = 200_000
#: Kept of each group: the first unfinished entries, the last finished ones. Groups of a dump, ranks of all its groups.
MAX_PENDING = 1_024
MAX_DONE = 64
MAX_GROUPS = 1_024
MAX_RANKS = 1_000_000
_TEXT_LIMIT = 1_000
#: Numbers of a smaller size need no second look.
_SHORT = 1 << 62
_FRAMES = 100

_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z]{1,10})?$")
_STATES = ("scheduled", "started", "completed")
#: The group of all ranks. Its status has the id 0, the first of each process.
DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation that a rank enqueued. `operation` is without the backend: `all_reduce`, `recv 0<-1`.

    `seq` counts the collectives of the group from 1; for a point-to-point operation (`p2p`) it is the number of the
    collective before it. `created_ns` is the time by the rank's clock when it was enqueued, `frame` the place in the
    user's code.
    """

    seq: int
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    state: str
    frame: str | None
    created_ns: int | None
    p2p: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """One rank's view of a process group. `ranks` are global, None if the recorder does not know them (gloo).

    `last_enqueued` is from `pg_status`, None if it is missing or -1. `entered` is the number of the last collective
    that the rank enqueued; None if no entry of the group is left. `done` and `pending` are in the queue's order.
    `p2p`: the rank also used the group for point-to-point operations.
    """

    name: str
    description: str
    ranks: tuple[int, ...] | None
    last_enqueued: int | None = None
    pending: tuple[Collective, ...] = ()
    done: tuple[Collective, ...] = ()
    entered: int | None = None
    p2p: bool = False


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's dump. `whole`: the buffer still holds the first entry, so a group without entries was never used."""

    rank: int | None
    groups: tuple[GroupState, ...]
    whole: bool


def parse_dump(data: bytes, name: str) -> tuple[FlightDump | None, str]:
    """Parses a dump: returns it and an empty text, or None and the problem. `name` ends in the rank. Never raises."""
    collects = gc.isenabled()
    gc.disable()  # to walk so many containers again and again takes as long as to make them
    try:
        return _parse(data, name)
    finally:
        if collects:
            gc.enable()


def _parse(data: bytes, name: str) -> tuple[FlightDump | None, str]:
    try:
        found = _document(data)
    except fields.NotRead as error:
        return None, error.why
    if not isinstance(found, dict) or not {"entries", "pg_config", "pg_status"} & found.keys():
        return None, Message("no flight-recorder dump")
    entries = fields.entries(found.get("entries"))
    if entries and not any("process_group" in entry and "collective_seq_id" in entry for entry in entries):
        version = _text(found.get("version")) or "?"
        return None, Message("entries of an unknown form (version {version} of the dump)", version=version)
    match = _RANK.search(name)
    rank = int(match[1]) if match else _whole(found.get("rank"))
    return _DumpReader(found, entries).dump(rank), ""


def _document(data: bytes) -> object:
    """The plain values of a dump. Raises NotRead."""
    start = data[:64].lstrip()
    limit = JSON_LIMIT if start[:1] == b"{" else DUMP_LIMIT
    if len(data) > limit:
        raise fields.NotRead(too_long(limit))
    if not start:
        raise fields.NotRead(about("file", "empty"))
    if start[:1] == b"{":
        return fields.read_json(data.decode("utf-8", "replace"))
    if data[:1] != b"\x80":
        raise fields.NotRead(Message("neither a pickle nor JSON"))
    try:
        return load_plain(data)
    except NotPlain as error:
        raise fields.NotRead(Message("not a pickle of plain values: {why}", why=error.why)) from None


class _DumpReader:
    """Builds a FlightDump from one document. Every field may be missing or of any type."""

    def __init__(self, document: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries[-MAX_ENTRIES:]
        self._config = fields.mapping(document.get("pg_config"))
        self._status = fields.mapping(document.get("pg_status"))
        # Shared by many entries: a small pickle can refer to one large list a million times.
        self._frames: dict[tuple[object, object, object], str | None] = {}
        self._operations: dict[str, str] = {}
        self._shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._ranks_left = MAX_RANKS
        states = {state for entry in self._entries if type(state := entry.get("state")) is str}
        names = {name for entry in self._entries if type(name := entry.get("profiling_name")) is str}
        #: A recorder without events: operations that it no longer watches have ended.
        self._eventless = states.isdisjoint(("started", "completed")) and not any(n.startswith("nccl") for n in names)
        self._named: dict[tuple[str, str], tuple[str, str]] = {}

    def dump(self, rank: int | None) -> FlightDump:
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        described: dict[str, str] = {}
        for entry in self._entries:
            name, description = self._named_of(entry)
            if name not in by_group and len(by_group) >= MAX_GROUPS:
                continue
            by_group.setdefault(name, []).append(entry)
            described[name] = description
        ids = {name: str(_whole(found[-1].get("pg_id"))) for name, found in by_group.items()}
        ranks: dict[str, tuple[int, ...] | None] = {}
        for key, config in list(self._config.items())[:MAX_GROUPS]:
            config = fields.mapping(config)
            name = _text(config.get("name")) or (str(key) if isinstance(key, str | int) else "")
            if name:
                ranks[name] = self._ranks(config.get("ranks"))
                described.setdefault(name, _text(config.get("desc")))
        for name, description in described.items():
            if description == DEFAULT_GROUP:
                ids.setdefault(name, "0")
        groups = tuple(
            self._group(name, description, ranks.get(name), ids.get(name), by_group.get(name, []))
            for name, description in described.items()
        )
        first = _whole(self._entries[0].get("record_id")) if self._entries else None
        return FlightDump(rank, groups, first == 0)

    def _named_of(self, entry: Mapping[str, Any]) -> tuple[str, str]:
        """Name and description of an entry's group."""
        given = fields.items(entry.get("process_group"), 2)
        if len(given) == 2 and type(given[0]) is str and type(given[1]) is str and given[0]:
            key = given[0], given[1]
            if key not in self._named:
                self._named[key] = _text(key[0]), _text(key[1])
            return self._named[key]
        name, description = [*map(_text, given), "", ""][:2]
        return name or str(_whole(entry.get("pg_id"))), description

    def _group(
        self,
        name: str,
        description: str,
        ranks: tuple[int, ...] | None,
        group_id: str | None,
        entries: list[Mapping[str, Any]],
    ) -> GroupState:
        status = fields.mapping(self._status.get(group_id)) if group_id else {}
        done: list[Mapping[str, Any]] = []
        pending: list[Mapping[str, Any]] = []
        for entry in entries:
            (done if self._ended(entry) else pending).append(entry)
        return GroupState(
            name,
            description,
            ranks,
            _counted(status.get("last_enqueued_collective")),
            tuple(self._collective(entry) for entry in pending[:MAX_PENDING]),
            tuple(self._collective(entry) for entry in done[-MAX_DONE:]),
            max(map(_seq, entries), default=None),
            any(entry.get("is_p2p") is True or (_whole(entry.get("p2p_seq_id")) or 0) > 0 for entry in entries),
        )

    def _ranks(self, value: object) -> tuple[int, ...] | None:
        """Ranks of a group. torch writes the list as text: `[0, 1, 2]`."""
        if isinstance(value, str):
            inner = value.strip()
            if len(value) > 16 * MAX_RANKS or inner[:1] != "[" or inner[-1:] != "]":
                return None
            value = inner[1:-1].split(",", self._ranks_left)
        found = [
            _counted(item.strip() if isinstance(item, str) else item) for item in fields.items(value, self._ranks_left)
        ]
        self._ranks_left -= len(found)
        known = {rank for rank in found if rank is not None}
        return tuple(sorted(known)) if found and len(known) == len(found) else None

    def _ended(self, entry: Mapping[str, Any]) -> bool:
        return entry.get("state") == "completed" or (self._eventless and entry.get("retired") is True)

    def _collective(self, entry: Mapping[str, Any]) -> Collective:
        state = entry.get("state")
        return Collective(
            _seq(entry),
            self._operation(entry.get("profiling_name")),
            self._sizes(entry.get("input_sizes")),
            state if state in _STATES else "",
            self._frame(entry.get("frames")),
            _whole(entry.get("time_created_ns")),
            entry.get("is_p2p") is True,
        )

    def _operation(self, name: object) -> str:
        """`nccl:all_reduce` without the backend."""
        if not isinstance(name, str):
            return ""
        if name not in self._operations:
            text = _text(name)
            self._operations[name] = text.partition(":")[2] or text
        return self._operations[name]

    def _sizes(self, value: object) -> tuple[tuple[int, ...], ...]:
        """Sizes of the first 64 tensors, of each the first 16 dimensions."""
        if id(value) not in self._shapes:  # the document holds `value`, so no other object gets its id
            sizes = (tuple(_whole(part) or 0 for part in fields.items(item, 16)) for item in fields.items(value, 64))
            self._shapes[id(value)] = tuple(sizes)
        return self._shapes[id(value)]

    def _frame(self, frames: object) -> str | None:
        """The innermost frame in the user's code. The recorder lists the innermost first."""
        for frame in fields.items(frames, _FRAMES):
            parts = fields.mapping(frame)
            key = (parts.get("filename"), parts.get("line"), parts.get("name"))
            if not all(isinstance(part, str | int) for part in key) or not str(key[0]).endswith(".py"):
                continue
            if key not in self._frames:
                found = user_frame([f'File "{_text(key[0])}", line {key[1]}, in {_text(key[2])}'])
                self._frames[key] = str(found) if found else None
            if self._frames[key]:
                return self._frames[key]
        return None


def _seq(entry: Mapping[str, Any]) -> int:
    return _whole(entry.get("collective_seq_id")) or 0


def _counted(value: object) -> int | None:
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _whole(value: object) -> int | None:
    """A whole number, also one written as text, as in JSON dumps."""
    if type(value) is int and -_SHORT < value < _SHORT:
        return value
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    return fields.whole(value)


def _text(value: object) -> str:
    return fields.text(value, _TEXT_LIMIT)


#: Operations that cannot end on any rank before every rank has entered them.
_ALL_WAIT = frozenset(
    {
        "all_reduce",
        "allreduce_coalesced",
        "all_reduce_barrier",
        "barrier",
        "all_gather",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)
#: Operations whose input has the same size on all ranks. Other sizes may differ: uneven shards, a root without input.
_SAME_SIZE = frozenset(
    {
        "all_reduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)

#: The operations of one rank with one number: a coalesced collective has several.
_Step = tuple[tuple[str, tuple[tuple[int, ...], ...] | None], ...]
#: Name and ranks of a group.
_Key = tuple[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A rank that ran another operation under the same number."""

    rank: int
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class MissedCollective:
    """A collective of one group at which its ranks diverged. `seq` counts the group's collectives from 1.

    `absent` had not entered it, `no_dump` are members without a dump, `unclear` are members whose dump does not reach
    back far enough. `mismatches` are the minority, or all ranks if there is no majority. `operation`, `input_sizes`
    and `created_ns` (the earliest) are those of most ranks that joined; None if no dump still has the entry.
    """

    group: str
    description: str
    seq: int
    joined: tuple[int, ...]
    absent: tuple[int, ...]
    no_dump: tuple[int, ...]
    unclear: tuple[int, ...]
    mismatches: tuple[Mismatch, ...]
    operation: str | None
    input_sizes: tuple[tuple[int, ...], ...]
    created_ns: int | None


def missing_ranks(dumps: Sequence[FlightDump]) -> tuple[MissedCollective, ...]:
    """For each group, the first collective that only some ranks entered, and the first one that differs between ranks.

    A rank without a dump counts if the others still wait. Dumps of an unknown rank are skipped; of two dumps of one
    rank the last is used. Sorted by the ranks' clocks.
    """
    by_rank = {dump.rank: dump for dump in dumps if dump.rank is not None}
    found = [item for group in _groups(by_rank) for item in group.findings()]
    return tuple(sorted(found, key=lambda item: (item.created_ns is None, item.created_ns or 0, item.group, item.seq)))


def _groups(by_rank: Mapping[int, FlightDump]) -> Iterator[_GroupDumps]:
    """Groups over all ranks. A name alone may stand for several groups that share no rank."""
    known: dict[_Key, str] = {
        (state.name, state.ranks): state.description
        for dump in by_rank.values()
        for state in dump.groups
        if state.ranks is not None
    }
    members: dict[_Key, dict[int, GroupState | None]] = {
        key: dict.fromkeys(sorted(by_rank.keys() & set(key[1] or ()))) for key in known
    }
    described = dict(known)
    for rank, dump in by_rank.items():
        for state in dump.groups:
            told = (key for key in known if key[0] == state.name and rank in (key[1] or ()))
            key: _Key = (state.name, state.ranks) if state.ranks is not None else next(told, (state.name, None))
            described.setdefault(key, state.description)
            members.setdefault(key, {})[rank] = state
    for key, states in members.items():
        if key[1] is None and described[key] == DEFAULT_GROUP:
            states |= dict.fromkeys(by_rank.keys() - states.keys())
        yield _GroupDumps(key[0], described[key], key[1], states, by_rank)


class _GroupDumps:
    """One group: the collectives of each rank with a dump (None: the dump has none of this group)."""

    def __init__(
        self,
        name: str,
        description: str,
        ranks: tuple[int, ...] | None,
        states: Mapping[int, GroupState | None],
        by_rank: Mapping[int, FlightDump],
    ) -> None:
        self._name = name
        self._description = description
        self._states = states
        self._no_dump = tuple(sorted(set(ranks or ()) - by_rank.keys()))
        self._whole = {rank: by_rank[rank].whole for rank in states}
        self._kept = {rank: _kept(state) for rank, state in states.items() if state}

    def findings(self) -> Iterator[MissedCollective]:
        entered = self._entered()
        unclear = tuple(sorted(rank for rank, last in entered.items() if last is None))
        reached = {rank: last for rank, last in entered.items() if last is not None}
        parted = self._first_unlike()
        behind = self._first_missing(reached)
        for seq in sorted({seq for seq in (parted, behind) if seq is not None}):
            yield self._missing(seq, reached, unclear, unlike=seq == parted)

    def _entered(self) -> dict[int, int | None]:
        """The last collective that each rank had certainly entered; None if its dump does not show it."""
        p2p = any(state.p2p for state in self._states.values() if state)
        proven = max(
            (
                item.seq
                for state in self._states.values()
                if state
                for item in state.done
                if item.state == "completed" and item.operation in _ALL_WAIT
            ),
            default=0,
        )
        entered: dict[int, int | None] = {}
        for rank, state in self._states.items():
            last = state.entered if state else None
            if last is None and state and not p2p:
                last = state.last_enqueued
            if last is None and self._whole[rank]:
                last = 0
            # A collective that ended on one rank was entered by all, also by those whose dump does not contain it.
            entered[rank] = max(last or 0, proven) if last is not None or proven else None
        return entered

    def _first_missing(self, reached: Mapping[int, int]) -> int | None:
        if not reached:
            return None
        low = min(reached.values())
        if low < max(reached.values()):
            return low + 1
        if not self._no_dump:
            return None
        waiting = (item.seq for state in self._states.values() if state for item in state.pending if not item.p2p)
        return min(waiting, default=None)

    def _first_unlike(self) -> int | None:
        """The number of the first collective in which two ranks ran different operations."""
        steps: dict[int, set[_Step]] = {}
        for by_seq in self._kept.values():
            for seq, items in by_seq.items():
                steps.setdefault(seq, set()).add(_step(items))
        return min((seq for seq, seen in steps.items() if len(seen) > 1), default=None)

    def _missing(
        self, seq: int, reached: Mapping[int, int], unclear: tuple[int, ...], *, unlike: bool
    ) -> MissedCollective:
        at = {rank: by_seq[seq] for rank, by_seq in sorted(self._kept.items()) if seq in by_seq}
        votes = Counter(_step(items) for items in at.values()).most_common(2)
        tied = len(votes) == 2 and votes[0][1] == votes[1][1]
        usual = [items[0] for items in at.values() if _step(items) == votes[0][0]]
        first = min(usual, key=lambda item: item.created_ns or 0, default=None)
        others = [(rank, items[0]) for rank, items in at.items() if tied or _step(items) != votes[0][0]]
        return MissedCollective(
            self._name,
            self._description,
            seq,
            joined=tuple(sorted(rank for rank, last in reached.items() if last >= seq)),
            absent=tuple(sorted(rank for rank, last in reached.items() if last < seq)),
            no_dump=self._no_dump,
            unclear=unclear,
            mismatches=tuple(Mismatch(rank, item.operation, item.input_sizes) for rank, item in others)
            if unlike
            else (),
            operation=first.operation if first else None,
            input_sizes=first.input_sizes if first else (),
            created_ns=first.created_ns if first else None,
        )


def _kept(state: GroupState) -> dict[int, list[Collective]]:
    """Collectives by number. The first is omitted if it may be incomplete."""
    by_seq: dict[int, list[Collective]] = {}
    for item in (*state.done, *state.pending):
        if not item.p2p:
            by_seq.setdefault(item.seq, []).append(item)
    if by_seq and min(by_seq) > 1:
        del by_seq[min(by_seq)]
    return by_seq


def _step(items: Sequence[Collective]) -> _Step:
    """The values that are compared: operations and, if they must be equal on all ranks, sizes."""
    return tuple((item.operation, item.input_sizes if item.operation in _SAME_SIZE else None) for item in items)


# Reader for plain values in an untrusted pickle.
#
# Python's unpickler is not safe, not even with `find_class` disabled: nine bytes with a memo index of 2**28 make it
# allocate 4 GiB, a key of shared tuples makes it hash forever, one of nested tuples overflows the C stack. This reader
# supports only opcodes of plain values (protocols 2 to 5: containers, text, bytes, numbers, True, False, None), makes
# keys text, and limits every count. Dumps as torch writes them, which can do none of that, are left to Python's.

#: Operations of one pickle: each makes at most one container of about 60 bytes.
MAX_OPERATIONS = 4_000_000
#: Nesting depth of containers.
MAX_DEPTH = 100
#: Bytes of a whole number.
_NUMBER = 8
_DAMAGED = Message("cut off or damaged")


class NotPlain(fields.NotRead):
    """The bytes are not a pickle of plain values."""


def load_plain(data: bytes) -> object:
    """The value of a pickle. Raises NotPlain. Values may be shared or contain themselves: never walk them unguarded.
    Keys may be of any type that can be hashed."""
    if _harmless(data):
        with suppress(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError):
            return pickle.loads(data)  # noqa: S301
    try:
        return _load(data)
    except (IndexError, KeyError, struct_error):
        raise NotPlain(_DAMAGED) from None


#: Opcodes that a dump of torch has between texts, and that Python's unpickler runs without harm: no tuple is in the
#: memo, a memo index is below 2**20, a number has 64 bits at most, and only two values of the memo make a tuple.
_RUN = re.compile(
    rb"(?:h.h.\x86(?![qr])|[hKq].|\((?![eu])|\](?:\(e)?|\}(?:\(u)?|[euasN\x88\x89)]|M..|[Jj].{4}|G.{8}|r..[\x00-\x0f]\x00"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))*+",
    re.DOTALL,
)
#: Other tuples: as many can be nested.
_TUPLES = 64


def _harmless(data: bytes) -> bool:
    """Whether Python's unpickler runs no other opcodes than those of `_RUN`, texts, and a few tuples."""
    if not data.startswith(b"\x80\x02") or len(data) > MAX_OPERATIONS:
        return False
    at, tuples = 2, 0
    while (at := _RUN.match(data, at).end()) < len(data):  # type: ignore[union-attr]  # it may match nothing
        op = data[at]
        if op == 0x58:  # BINUNICODE
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif op == 0x86 and data[at + 1 : at + 2] not in (b"q", b"r"):  # TUPLE2
            at, tuples = at + 1, tuples + 1
        else:
            return op == 0x2E and tuples <= _TUPLES  # STOP
    return False


def _load(data: bytes) -> object:
    """Runs the opcodes. Frequent ones are tested first: a dump of 2,000 collectives has 150,000 opcodes."""
    stack: list[object] = []
    below: list[list[object]] = []
    memo: dict[int, object] = {}
    at = 0
    for _ in range(MAX_OPERATIONS):
        op = data[at]
        at += 1
        if op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif op == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[unpack_from("<I", data, at)[0]])
            at += 4
        elif op == 0x28:  # MARK
            if len(below) >= MAX_DEPTH:
                raise NotPlain(Message("nested too deeply"))
            below.append(stack)
            stack = []
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op == 0x65:  # APPENDS
            items, stack = stack, below.pop()
            _list(stack[-1]).extend(items)
        elif op == 0x75:  # SETITEMS
            items, stack = stack, below.pop()
            _set(stack[-1], items)
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x72:  # LONG_BINPUT
            memo[unpack_from("<I", data, at)[0]] = stack[-1]
            at += 4
        elif op in _SIZES:
            width, text = _SIZES[op]
            length = int.from_bytes(data[at : at + width], "little")
            at += width
            taken = data[at : at + length]
            stack.append(str(taken, "utf-8", "replace") if text else taken)
            at += length
        elif op in _NUMBERS:
            form, width = _NUMBERS[op]
            stack.append(unpack_from(form, data, at)[0])
            at += width
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op == 0x8A:  # LONG1
            length = data[at]
            if length > _NUMBER:
                raise NotPlain(Message("a number of more than 64 bits"))
            stack.append(int.from_bytes(data[at + 1 : at + 1 + length], "little", signed=True))
            at += 1 + length
        elif op in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            count = op - 0x84
            if len(stack) < count:
                raise NotPlain(_DAMAGED)
            stack[-count:] = [tuple(stack[-count:])]
        elif op == 0x74:  # TUPLE
            items, stack = stack, below.pop()
            stack.append(tuple(items))
        elif op == 0x61:  # APPEND
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif op == 0x80:  # PROTO
            if not 2 <= data[at] <= 5:
                raise NotPlain(Message("protocol {number}", number=data[at]))
            at += 1
        elif op == 0x95:  # FRAME
            at += 8
        elif op == 0x2E:  # STOP
            return stack.pop()
        else:
            raise NotPlain(Message("it asks for more than plain values (opcode 0x{op:02x})", op=op))
    raise NotPlain(Message("more than {most} operations", most=MAX_OPERATIONS))


#: Opcode -> width of the length field, and whether text follows (else bytes).
_SIZES = {
    0x58: (4, True),  # BINUNICODE
    0x8C: (1, True),  # SHORT_BINUNICODE
    0x8D: (8, True),  # BINUNICODE8
    0x42: (4, False),  # BINBYTES
    0x43: (1, False),  # SHORT_BINBYTES
    0x8E: (8, False),  # BINBYTES8
}
_NUMBERS = {0x4A: ("<i", 4), 0x4D: ("<H", 2), 0x47: (">d", 8)}  # BININT, BININT2, BINFLOAT
_CONSTANTS: dict[int, object] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}


def _list(target: object) -> list[object]:
    if type(target) is not list:
        raise NotPlain(_DAMAGED)
    return target


def _set(target: object, items: list[object]) -> None:
    if type(target) is not dict or len(items) % 2:
        raise NotPlain(_DAMAGED)
    for place in range(0, len(items), 2):
        key = items[place]
        if type(key) is int:
            key = str(key)
        if type(key) is not str:  # the hash of text is cheap, and randomised
            raise NotPlain(Message("a key that is not text"))
        target[key] = items[place + 1]
