"""Flight-recorder dumps of torch: what each rank had entered of each group's collectives when it was written.

torch writes one file for each rank where a collective timed out (`TORCH_NCCL_DUMP_ON_TIMEOUT`): a pickle, by default
`~/.cache/torch/comm_lib_trace_rank_3`, in older releases `/tmp/nccl_trace_rank_3`. Its debug server gives JSON, without
stacks. Fields are those of version 2.10 of the dump (torch 2.13); versions 1.x, which count otherwise, are not read.
The file is hostile until shown to be plain.

Numbers of `pg_status` count point-to-point operations too, those of the entries' `collective_seq_id` do not: only these
are good for comparing ranks. A recorder without events (gloo) never says `completed`, only `retired`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.recorder.pickled import NotPlain, load_plain
from atlctl.diagnosis.text import without_surrogates
from atlctl.diagnosis.tracebacks import user_frame
from atlctl.jobs.fields import parse_json

#: Bytes of a dump that is still read. JSON takes twenty times its size in memory, and has no stacks.
SIZE_LIMIT = 64 * 1024 * 1024
JSON_LIMIT = 16 * 1024 * 1024
#: Entries of a dump that are looked at, its last ones; the recorder's buffer has 2,000 unless told otherwise.
MAX_ENTRIES = 200_000
#: Kept of each group: the first that did not end, the last that did. Groups of a dump, ranks of all its groups.
MAX_PENDING = 1_024
MAX_DONE = 64
MAX_GROUPS = 1_024
MAX_RANKS = 1_000_000
_TEXT_LIMIT = 1_000
_FRAMES = 100

_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z]{1,10})?$")
_STATES = ("scheduled", "started", "completed")
#: The group of all ranks. Its status stands under the id 0, the first of each process.
DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation that a rank put into its queue. `operation` is without the backend: `all_reduce`, `recv 0<-1`.

    `seq` counts the collectives of the group from 1; of a point-to-point operation (`p2p`) it is the number of the
    collective before it. `created_ns` is the rank's clock when it was put into the queue, `frame` where in the user's
    code.
    """

    group: str
    seq: int
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    state: str
    frame: str | None
    created_ns: int | None
    p2p: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """One rank's view of a process group. `ranks` are global, None where the recorder does not know them (gloo).

    `last_enqueued` is of `pg_status`, None where it is missing or -1. `entered` is the number of the last collective
    that the rank put into its queue; None where no entry of the group is left. `done` and `pending` are in the queue's
    order. `p2p`: the rank used the group for point-to-point operations, too.
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
    """The dump and an empty string, or None and why it cannot be read. `name` ends in the rank. Never raises."""
    if len(data) > SIZE_LIMIT:
        return None, f"larger than {SIZE_LIMIT} bytes"
    start = data[:64].lstrip()
    if not start:
        return None, "empty"
    if start[:1] == b"{":
        found, reason = _from_json(data)
    elif data[:1] == b"\x80":
        found, reason = _from_pickle(data)
    else:
        return None, "neither a pickle nor JSON"
    if reason:
        return None, reason
    if not isinstance(found, dict) or not {"entries", "pg_config", "pg_status"} & found.keys():
        return None, "no flight-recorder dump"
    entries = [entry for entry in _items(found.get("entries")) if isinstance(entry, dict)]
    if entries and not any("process_group" in entry and "collective_seq_id" in entry for entry in entries):
        return None, f"entries of an unknown form (version {_text(found.get('version')) or '?'} of the dump)"
    match = _RANK.search(name)
    rank = int(match[1]) if match else _whole(found.get("rank"))
    return _Reader(found, entries).dump(rank), ""


def _from_json(data: bytes) -> tuple[object, str]:
    if len(data) > JSON_LIMIT:
        return None, f"larger than {JSON_LIMIT} bytes"
    try:
        return parse_json(data.decode("utf-8", "replace")), ""
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:
        return None, f"not valid JSON (cut off?): {str(error)[:200]}"


def _from_pickle(data: bytes) -> tuple[object, str]:
    try:
        return load_plain(data), ""
    except NotPlain as error:
        return None, f"not a pickle of plain values: {error}"


class _Reader:
    """Makes a FlightDump of one document. Every field may be missing or of any type."""

    def __init__(self, document: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries[-MAX_ENTRIES:]
        self._config = _mapping(document.get("pg_config"))
        self._status = _mapping(document.get("pg_status"))
        # What many entries share is made once: a small pickle can name one large list a million times.
        self._frames: dict[tuple[object, object, object], str | None] = {}
        self._operations: dict[str, str] = {}
        self._shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._ranks_left = MAX_RANKS
        #: A recorder without events: what it no longer watches has ended.
        self._eventless = not any(
            entry.get("state") in ("started", "completed") or _text(entry.get("profiling_name"))[:4] == "nccl"
            for entry in self._entries
        )

    def dump(self, rank: int | None) -> FlightDump:
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        described: dict[str, str] = {}
        ids: dict[str, str] = {}
        for entry in self._entries:
            name, description = _named(entry)
            if name not in by_group and len(by_group) >= MAX_GROUPS:
                continue
            by_group.setdefault(name, []).append(entry)
            described[name] = description
            ids[name] = str(_whole(entry.get("pg_id")))
        ranks: dict[str, tuple[int, ...] | None] = {}
        for key, config in list(self._config.items())[:MAX_GROUPS]:
            config = _mapping(config)
            name = _text(config.get("name")) or key
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

    def _group(
        self,
        name: str,
        description: str,
        ranks: tuple[int, ...] | None,
        group_id: str | None,
        entries: list[Mapping[str, Any]],
    ) -> GroupState:
        status = _mapping(self._status.get(group_id)) if group_id else {}
        done: list[Mapping[str, Any]] = []
        pending: list[Mapping[str, Any]] = []
        for entry in entries:
            (done if self._ended(entry) else pending).append(entry)
        return GroupState(
            name,
            description,
            ranks,
            _counted(status.get("last_enqueued_collective")),
            tuple(self._collective(name, entry) for entry in pending[:MAX_PENDING]),
            tuple(self._collective(name, entry) for entry in done[-MAX_DONE:]),
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
            _counted(item.strip() if isinstance(item, str) else item) for item in _items(value)[: self._ranks_left]
        ]
        self._ranks_left -= len(found)
        known = {rank for rank in found if rank is not None}
        return tuple(sorted(known)) if found and len(known) == len(found) else None

    def _ended(self, entry: Mapping[str, Any]) -> bool:
        return entry.get("state") == "completed" or (self._eventless and entry.get("retired") is True)

    def _collective(self, group: str, entry: Mapping[str, Any]) -> Collective:
        state = entry.get("state")
        return Collective(
            group,
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
            sizes = (tuple(_whole(part) or 0 for part in _items(item)[:16]) for item in _items(value)[:64])
            self._shapes[id(value)] = tuple(sizes)
        return self._shapes[id(value)]

    def _frame(self, frames: object) -> str | None:
        """The innermost frame in the user's code. The recorder lists the innermost first."""
        for frame in _items(frames)[:_FRAMES]:
            parts = _mapping(frame)
            key = (parts.get("filename"), parts.get("line"), parts.get("name"))
            if not all(isinstance(part, str | int) for part in key) or not str(key[0]).endswith(".py"):
                continue
            if key not in self._frames:
                found = user_frame([f'File "{_text(key[0])}", line {key[1]}, in {_text(key[2])}'])
                self._frames[key] = str(found) if found else None
            if self._frames[key]:
                return self._frames[key]
        return None


def _named(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's group."""
    parts = [_text(part) for part in _items(entry.get("process_group"))[:2]]
    name, description = [*parts, "", ""][:2]
    return name or str(_whole(entry.get("pg_id"))), description


def _seq(entry: Mapping[str, Any]) -> int:
    return _whole(entry.get("collective_seq_id")) or 0


def _counted(value: object) -> int | None:
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _whole(value: object) -> int | None:
    """A whole number of at most 64 bits, also written as text, as in the JSON form."""
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        return None
    return value


def _items(value: object) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return without_surrogates(value[:_TEXT_LIMIT]) if isinstance(value, str) else ""
