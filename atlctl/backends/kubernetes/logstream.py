"""Splits log answers of the API server into lines and removes duplicates after interrupted answers.

A log can be requested from a second on, not from a line on. Returned lines are therefore remembered and counted by
(timestamp, line) from that second on, and dropped when they are repeated.
"""

from __future__ import annotations

from array import array
from datetime import UTC, datetime

from atlctl.backends.base import LogLine

#: Longer lines are returned in pieces of this size, all but the last marked as incomplete.
PIECE = 16 * 1024 * 1024
#: Minimum number of remembered lines, because a node's clock may be set back.
KEEP = 4096
#: The container's two streams get timestamps independently: a line may be older than the previous one.
SLACK = 1
#: Messages of a kubelet in place of a log. They have no timestamp, unlike lines of the container.
NODE_WORDS = (
    b"unable to retrieve container logs for ",
    b"failed to try resolving symlinks in path ",
    b"failed to open log file ",
    b"failed to create fsnotify watcher",
    b"failed to watch file ",
    b"rpc error: code = ",
)
_WORDS_LIMIT = 300
_BILLION = 1_000_000_000


class Stamps:
    """Parses RFC 3339 timestamps of lines, with any fraction and zone. Caches the second, which most lines share."""

    def __init__(self) -> None:
        self._head = self._zone = b""
        self._second = 0

    def split(self, line: bytes) -> tuple[int | None, int]:
        """Nanoseconds since the epoch, and the start of the text; (None, 0) for a line without a timestamp."""
        end = line.find(b" ", 20, 40)
        if end < 0:
            return None, 0
        last = end - 1 if line[end - 1] == 0x5A else end - 6  # Z
        head, fraction, zone = line[:19], line[20:last], line[last:end]
        if head != self._head or zone != self._zone:
            second = _second(head, zone)
            if second is None:
                return None, 0
            self._head, self._zone, self._second = head, zone, second
        if last == 19:
            return self._second * _BILLION, end + 1
        if line[19] != 0x2E or not fraction.isdigit():  # .
            return None, 0
        return self._second * _BILLION + int(fraction.ljust(9, b"0")[:9]), end + 1


def _second(head: bytes, zone: bytes) -> int | None:
    try:
        utc = int(datetime.strptime(head.decode("ascii"), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp())
        if zone == b"Z":
            return utc
        if zone[:1] not in (b"+", b"-") or zone[3:4] != b":" or not (zone[1:3] + zone[4:]).isdigit():
            return None
        east = int(zone[1:3]) * 3600 + int(zone[4:]) * 60
        return utc - east if zone[:1] == b"+" else utc + east
    except ValueError:
        return None


class Replay:
    """Recognizes the lines of a new answer that were returned before."""

    def __init__(self, counts: dict[int, int], floor: int | None, last: int, newest: int) -> None:
        """`floor`: until the first known line, lines up to this time count as old.

        `last`: key of the last returned line; `reached` shows whether it was repeated. `newest`: timestamp of the
        newest known line (0: the clock was set back); nothing is kept from some time after it.
        """
        self._counts = counts
        self._end = newest + 2 * SLACK * _BILLION if newest else 1 << 62
        self._floor = floor
        self._last = last
        self.reached = False

    def old(self, key: int, when: int) -> bool:
        """Whether this line was returned before. Counts each occurrence once."""
        left = self._counts.get(key)
        if left:
            self._counts[key] = left - 1
            self._floor = None
            if key == self._last:
                self.reached = True
            return True
        if when > self._end and self._counts:
            self._counts = {}
        return self._floor is not None and when <= self._floor


class SeenLines:
    """The returned lines of a worker's log: a 64-bit key for each, by the second of its timestamp.

    `open_line`: the line of which some pieces were returned: the key of its first piece, and their number.
    """

    def __init__(self) -> None:
        self.open_line: tuple[int, int] | None = None
        self._keys: dict[int, array[int]] = {}
        self._size = 0
        self._top: int | None = None
        self._highest = 0
        self._second: int | None = None
        self._here: array[int] = array("q")
        self._last = 0
        self._pin: tuple[int | None, int] | None = None
        self._mark: tuple[int | None, int] = (None, 0)

    def add(self, when: int, key: int) -> None:
        """Remember a returned line with the timestamp `when` (nanoseconds)."""
        second = when // _BILLION
        if second != self._second:
            self._turn(second)
        self._here.append(key)
        self._last = key
        self._size += 1
        if when > self._highest:
            self._highest = when

    def _turn(self, second: int) -> None:
        self._second = second
        self._here = self._keys.setdefault(second, array("q"))
        if self._top is None or second > self._top:
            self._top = second
            if self._size > 2 * KEEP:
                held = self.pinned_since
                self._forget(second - SLACK if held is None and self._pin is None else min(second - SLACK, held or 0))
        elif second < self._top - SLACK:  # the clock was set back
            self._top, self._highest = second, 0

    def _forget(self, below: int) -> None:
        for second in sorted(self._keys):
            if second >= below or self._size - len(self._keys[second]) < KEEP:
                break
            self._size -= len(self._keys.pop(second))

    @property
    def since(self) -> int | None:
        """The second from which the log has to be requested again; None: from the first request's start."""
        return None if self._top is None else self._top - SLACK

    def restart(self) -> None:
        """The next lines are from another container, whose node may have another clock."""
        self._top = self._second = self._pin = None
        self._highest = 0

    def pin(self) -> None:
        """Keep all lines until `unpin`, while the container of the next lines is uncertain."""
        if self._pin is None:
            self._pin = self._mark = (self.since, self._highest)

    def unpin(self) -> None:
        self._pin = None

    def repin(self) -> None:
        """Confirm the lines before the last call."""
        if self._pin is not None:
            self._pin, self._mark = self._mark, (self.since, self._highest)

    @property
    def pinned_since(self) -> int | None:
        """The value of `since` at the pin."""
        return self.since if self._pin is None else self._pin[0]

    def replay(self, *, pinned: bool = False) -> Replay | None:
        """The lines to expect again in an answer from `since` (`pinned_since`) on; None if no line was returned."""
        if not self._size:
            return None
        since, floor = self._pin if pinned and self._pin is not None else (self.since, self._highest)
        return Replay(self._counts(), None if since is None else floor, self._last, self._highest)

    def _counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for keys in self._keys.values():
            for key in keys:
                counts[key] = counts.get(key, 0) + 1
        return counts


class LineFeed:
    """Splits one answer of the server into lines.

    `got`: bytes received; `fresh`: lines returned. `wary`: the answer should begin with known lines; if it does not,
    `other` is set and nothing is returned.
    """

    def __init__(self, seen: SeenLines, replay: Replay | None, since: int, *, cut: bool, piece: int = PIECE) -> None:
        """`since`: skip older lines (nanoseconds). `cut`: the answer may begin inside a line."""
        self.got = 0
        self.fresh = 0
        self.wary = False
        self.other = False
        self._seen = seen
        self._replay = replay
        self._since = since
        self._cut = cut
        self._limit = piece
        self._stamps = Stamps()
        self._parts: list[bytes] = []
        self._size = 0
        # Of the unfinished line: number of pieces removed, key, time, number of pieces not returned.
        self._index = 0
        self._key = 0
        self._when: int | None = None
        self._known = 0
        self._words: str | None = None

    @property
    def words(self) -> str | None:
        """The kubelet's message in place of a log or at its end."""
        if self._words is None and self._index == 0 and self._parts:
            self._hear(b"".join(self._parts))
        return self._words

    @property
    def reached(self) -> bool:
        """Whether the answer reached the end of the previous one."""
        return self._replay is None or self._replay.reached or self.fresh > 0

    @property
    def rest(self) -> int | None:
        """Identifies the unfinished line at the end; None if there is none."""
        return hash((self._index, b"".join(self._parts))) if self.torn else None

    @property
    def torn(self) -> bool:
        """Whether the answer so far ends inside a line."""
        return self._size > 0 or self._index > 0

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines, and pieces of long lines, completed by `data`."""
        self.got += len(data)
        out: list[LogLine] = []
        if self.other:
            return out
        first, *lines = data.split(b"\n")
        self._grow(first, out)
        if lines:
            self._close(out, complete=True)
            rest = lines.pop()
            self._whole(lines, out)
            self._grow(rest, out)
        self.fresh += len(out)
        return out

    def finish(self) -> list[LogLine]:
        """The last line if it has no newline. Call it at the end of the log."""
        out: list[LogLine] = []
        if self.torn:
            self._close(out, complete=False)
        self.fresh += len(out)
        return out

    def _whole(self, lines: list[bytes], out: list[LogLine]) -> None:
        """Handle lines within one chunk: most of a log."""
        split, replay, seen, since, limit = self._stamps.split, self._replay, self._seen, self._since, self._limit
        for raw in lines:
            if self.other:
                return
            when, start = split(raw)
            if when is None or len(raw) > limit:
                self._grow(raw, out)
                self._close(out, complete=True)
                continue
            self._cut = False
            key = hash(raw)
            if replay is not None and replay.old(key, when):
                self.wary = False
                continue
            if self.wary:
                self.other = True
                return
            seen.add(when, key)
            if when >= since:
                out.append(LogLine(when, "stdout", raw[start:]))

    def _grow(self, data: bytes, out: list[LogLine]) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
        while self._size > self._limit:
            raw = b"".join(self._parts)
            self._parts, self._size = [raw[self._limit :]], len(raw) - self._limit
            self._piece(raw[: self._limit], out, last=False, complete=False)

    def _close(self, out: list[LogLine], *, complete: bool) -> None:
        raw = b"".join(self._parts)
        self._parts, self._size = [], 0
        self._piece(raw, out, last=True, complete=complete)
        self._index = 0

    def _piece(self, raw: bytes, out: list[LogLine], *, last: bool, complete: bool) -> None:
        if self.other:
            return
        start = 0
        if self._index == 0:
            self._when, start = self._stamps.split(raw)
            if self._when is None:
                self._unstamped(raw, out, last=last, complete=complete)
                return
            self._cut = False
            self._key = hash(raw)
            self._known = self._pieces_known(self._key, self._when)
            self.other = self.wary and not self._known
            self.wary = False
            if self.other:
                return
        self._index += 1
        if self._when is None or self._index > self._known:
            if self._when is None or self._when >= self._since:
                out.append(LogLine(self._when, "stdout", raw[start:], complete))
            if self._when is not None:
                self._note(last)

    def _pieces_known(self, key: int, when: int) -> int:
        """How many pieces of the line that begins here were returned before."""
        if self._replay is not None and self._replay.old(key, when):
            return 1 << 62
        open_line = self._seen.open_line
        return open_line[1] if open_line is not None and open_line[0] == key else 0

    def _note(self, last: bool) -> None:
        assert self._when is not None
        if last:
            self._seen.add(self._when, self._key)
            self._seen.open_line = None
        else:
            self._seen.open_line = (self._key, self._index)

    def _unstamped(self, raw: bytes, out: list[LogLine], *, last: bool, complete: bool) -> None:
        if not self._hear(raw) and not self._cut and (raw or complete):
            out.append(LogLine(None, "stdout", raw, complete))
        self._index = 0 if last else 1
        if not last and (self._cut or self._words):
            self._known = 1 << 62
            self._when = 0

    def _hear(self, raw: bytes) -> bool:
        if raw.startswith(NODE_WORDS):
            self._words = raw[:_WORDS_LIMIT].decode("utf-8", "replace").strip()
            return True
        return False
