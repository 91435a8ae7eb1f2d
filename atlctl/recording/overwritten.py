"""Tells a log that several processes overwrote: all of them `tee` into one file on a shared volume, without appending.

Each writes from its own place, so that the file holds at every place what was written there last. Where the writer
changes, a line is torn: its beginning is one process's and its rest another's, or only a tail is left. Mostly it is in
the middle of a word. A process that began late may also leave a hole of NUL bytes. Often there is one such place only,
where the shorter log ends in its summary and the rest of a longer one follows.

Lines that run together are no sign: processes that share a pipe make them every day. But there each write comes whole,
a word is not cut. So only words that are cut count, and two such lines are needed, or one behind a summary.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from atlctl.diagnosis.logline import is_utf8
from atlctl.i18n import Message, joined, plural

#: Lines at the beginning of a log whose forms are learned; bytes of a line that are looked at.
LEARNED = 256
_WIDTH = 200
#: Lines behind a summary that may be another process's tail; such lines, and hosts, that are kept.
_BEHIND = 8
_KEPT = 64
#: A tail, or a beginning, of fewer bytes proves nothing; nor does a form of line that was seen less often.
_TAIL = 6
_LONG_TAIL = 12
_HEAD = 3
_OFTEN = 3
#: Beginnings of lines that are looked for inside of others.
_STARTS = 16
_START = 6

_DIGITS = re.compile(rb"\d+")
_HOST = re.compile(rb"^  host      : (\S{1,253})")
_BORDER = re.compile(rb"={20,}\s*$")
#: Rows of an entry in torchelastic's summaries, in their order.
_ROWS = {
    b"  time      : ": 0,
    b"  host      : ": 1,
    b"  rank      : ": 2,
    b"  exitcode  : ": 3,
    b"  error_file: ": 4,
    b"  traceback : ": 5,
}
#: How lines begin that their writer writes whole, with their newline: torch's tracebacks with ranks, c10's logs,
#: Python's logging. Such a beginning further on in such a line is where another process wrote over it.
_GLOG = rb"\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d{6}"
_LOGGING = rb"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}"
_PREFIX = re.compile(rb"\[rank\d{1,7}\]: ?|%b[^\]]{0,200}\] ?|%b" % (_GLOG, _LOGGING))
_WHOLE = (b"Traceback (mo", b'  File "', b"Root Cause (f", b"torch.distributed.")
_ANOTHER = re.compile(rb"\[rank\d{1,7}\]: |%b|%b|Traceback \(most recent call last\):" % (_GLOG, _LOGGING))
#: A date of logging that was cut, and whole behind it.
_CUT_DATE = re.compile(rb"20\d\d-\d\d-(?:\d\d(?: \d{0,2}(?::\d{0,2}){0,2})?)?(?=%b)" % _LOGGING)
#: Bytes of a line in which another beginning is looked for.
_SEARCHED = 2_000

#: Lines that every failed job prints, whole.
_KNOWN = (
    b"Traceback (most recent call last):",
    b"Root Cause (first observed failure):",
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    b"  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)


class Overwritten:
    """Takes the lines of one log. Once it is `full`, only torch's own lines and those behind summaries count."""

    def __init__(self, *, alone: bool) -> None:
        """`alone`: the log is named as one worker's, so the summaries in it should be of one host."""
        self._alone = alone
        self._fed = 0
        self._forms: Counter[bytes] = Counter()
        self._hosts: dict[bytes, None] = {}
        self._row: int | None = None
        self._torn_rows = 0
        self._torn_prefixes: Counter[bytes] = Counter()
        self._cut_characters = 0
        self._not_utf8 = 0
        self._in_root = False
        self._behind = 0
        self._next_forms: list[bytes] = []
        self._behind_forms: list[bytes] = []
        self._row_behind = False

    @property
    def full(self) -> bool:
        """Whether enough lines were seen to know what the log's lines look like."""
        return self._fed >= LEARNED

    def feed_line(self, line: bytes) -> None:
        """Takes one line, without what collectors put in front of it. Never raises."""
        self._fed += 1
        row = _ROWS.get(line[:14])
        if row is not None:
            self._take_row(row, line)
        elif line[:1] == b"=":
            if self._in_root and _BORDER.match(line):
                self._in_root = False
                self._behind = _BEHIND
        elif line[:10] == b"Root Cause":
            self._in_root = True
        elif self._behind and self._alone:
            kept = self._next_forms if self._behind == _BEHIND else self._behind_forms
            self._behind -= 1
            if len(kept) < _KEPT:
                kept.append(_form(line))
        self._row = row
        # A line of logging is looked at only where there may be a second time, or a rank, in it.
        seen = line[:1] in b"[IWEFTRt " or (line[:2] == b"20" and (line.count(b":") > 3 or b"[rank" in line))
        if not (seen and self._look_inside(line)) and self._fed <= LEARNED:
            self._learn(line)

    def verdict(self, holes: int = 0) -> str | None:
        """What goes behind the file's name in a sentence for the user; None for a log like any other.

        `holes` is how often LineReader met NUL bytes.
        """
        starts = self._starts()
        often = {form for form, count in self._forms.items() if count >= _OFTEN}
        whole = sorted({*(form for form in often if _starts_inside(form, starts, 1) < 0), *_KNOWN})
        backwards = sorted(form[::-1] for form in whole)
        heads = [form for form in self._forms.keys() - set(whole) if _is_cut(form, starts, whole)]
        tails = {form for form in self._forms.keys() - often if _is_tail(form, backwards)}
        behind = {form for form in self._next_forms if _is_tail(form, backwards, in_a_word=False)}
        behind |= {form for form in self._behind_forms if _is_tail(form, backwards)}
        behind -= often
        characters = self._cut_characters if self._cut_characters > self._not_utf8 else 0
        count = len(tails.union(behind).difference(heads)) + sum(self._forms[form] for form in heads)
        count += self._torn_rows + self._torn_prefixes.total() + characters
        sure = bool(behind) or self._row_behind
        hosts = [host.decode(errors="replace") for host in self._hosts]
        several = self._alone and len(hosts) > 1
        signs = [plural("{n} hole", "{n} holes", holes)] if holes else []
        if count and (count > 1 or sure or holes or several):
            signs.append(plural("{n} line cut in the middle of a word", "{n} lines cut in the middle of a word", count))
        if several:
            signs.append(
                Message(
                    "summaries of {count} hosts ({hosts})",
                    count=len(hosts),
                    hosts=", ".join([*hosts[:4], "..."] if len(hosts) > 4 else hosts),
                )
            )
        if not signs:
            return None
        if several and len(signs) == 1:
            return Message("has {signs}: several workers wrote into it", signs=signs[0])
        return Message(
            "has {signs}: several processes wrote over each other in it, lines may be missing",
            signs=joined(signs, Message(" and ")),
        )

    def _starts(self) -> list[bytes]:
        """How most of the lines begin."""
        starts: Counter[bytes] = Counter()
        for form, count in self._forms.items():
            if len(form) >= 2 * _START and not form[:1].isspace():
                starts[form[:_START]] += count
        return [start for start, count in starts.most_common(_STARTS) if count >= _OFTEN]

    def _take_row(self, row: int, line: bytes) -> None:
        if self._alone and row and self._row != row - 1 and self._fed > 1:
            self._torn_rows += 1
            self._row_behind |= self._behind > 0
        if row == 1 and len(self._hosts) < _KEPT and (host := _HOST.match(line)):
            short = host[1].partition(b".")[0]  # a host may be named with its domain, and without
            self._hosts[host[1] if short.isdigit() else short] = None

    def _look_inside(self, line: bytes) -> bool:
        """Counts beginnings of other lines. A rank that goes on later lost nothing: a full pipe cut its text in two."""
        found = _beginnings_inside(line)
        rank = line[: line.find(b"]", 5, 16) + 1] if line[:5] == b"[rank" else b""
        if rank:
            self._torn_prefixes.pop(rank, None)
        if found and len(self._torn_prefixes) < _KEPT:
            self._torn_prefixes[rank] += found
        return found > 0

    def _learn(self, line: bytes) -> None:
        if line[:1] >= b"\x80" and self._fed > 1:
            rest = line.lstrip(bytes(range(0x80, 0xC0)))
            if len(line) - len(rest) in (1, 2, 3) and is_utf8(rest):
                self._cut_characters += 1
            elif not is_utf8(line):
                self._not_utf8 += 1
        form = _form(line)
        if form:
            self._forms[form] += 1


def _beginnings_inside(line: bytes) -> int:
    """How often another line begins inside of this one."""
    at = cut.end() if (cut := _CUT_DATE.match(line)) else 0
    found = int(at > 0)
    while (prefix := _PREFIX.match(line, at)) and at < _WIDTH:
        at = prefix.end()
    if not at and not line.startswith(_WHOLE):
        return 0
    for another in _ANOTHER.finditer(line, at + 1, _SEARCHED):
        before = line[at : another.start()]
        # What a message quotes stands behind a quote or an escaped newline; words of it, and times, behind a space.
        quoted = b"\"'(=_ " if another[0][:1] in b"T2" else b"\"'"
        found += bool(before.strip()) and before[-1:] not in quoted and before[-2:] != b"\\n"
    return found


def _form(line: bytes) -> bytes:
    """What equal lines have in common: numbers do not count, nor what a carriage return has overwritten."""
    text = line.rstrip()
    cut = text.rfind(b"\r") + 1
    return _DIGITS.sub(b"0", text[cut : cut + _WIDTH])


def _is_tail(form: bytes, backwards: Sequence[bytes], *, in_a_word: bool = True) -> bool:
    """Whether `form` is the end of a known line and begins inside of a word, or (then longer) not behind a space.

    `backwards` holds the known lines in reverse, sorted.
    """
    before = _longer(form[::-1], backwards)
    if not in_a_word and len(form) >= _LONG_TAIL and any(not byte.isspace() for byte in before):
        return True
    return len(form) >= _TAIL and form[:1].isalpha() and any(map(bytes.isalpha, before))


def _is_cut(form: bytes, starts: Sequence[bytes], whole: Sequence[bytes]) -> bool:
    """Whether `form` begins as a known line does, and goes on, inside of a word, with the beginning of another."""
    at = _starts_inside(form, starts, _HEAD)
    return at > 0 and form[at - 1 : at].isalpha() and any(map(bytes.isalpha, _longer(form[:at], whole)))


def _starts_inside(form: bytes, starts: Sequence[bytes], first: int) -> int:
    """Where in `form`, from `first` on, one of `starts` stands; -1 where none does."""
    return min((at for start in starts if (at := form.find(start, first)) >= 0), default=-1)


def _longer(part: bytes, ordered: Sequence[bytes]) -> list[bytes]:
    """How the texts of `ordered`, which is sorted, go on behind `part`: one byte of each that does."""
    at = bisect_right(ordered, part)
    found = []
    while at < len(ordered) and ordered[at].startswith(part):
        found.append(ordered[at][len(part) : len(part) + 1])
        at += 1
    return found
