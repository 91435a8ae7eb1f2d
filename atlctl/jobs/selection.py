"""Select workers: the grammar of `-w`, `-x`, `--rank`, `--role` and `--failed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from atlctl.i18n import Message, plural
from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.jobs.model import FAILED_STATES, Job, RankMap, Worker
from atlctl.jobs.naming import MAX_DIGITS, fold_names, fold_numbers, natural_key, pad_alike

#: The highest index or rank that is accepted. Larger ones are typing errors.
MAX_NUMBER = 9_999_999

_WORKERS_GRAMMAR = Message(
    "-w takes indexes and ranges (0,2-5), names, pods or hosts, globs of them, or worker-[0-3,7]"
)
_NUMBERS_GRAMMAR = Message("numbers and ranges, separated by commas: 0,2-5")
_DIGITS = frozenset("0123456789")
_NUMERIC = _DIGITS | {"-"}
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection options as typed. Each text of a tuple is one use of the option, including its commas."""

    all: bool = False
    workers: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    failed: bool = False
    exclude: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether no option selects workers; `exclude` alone selects none."""
        return not (self.all or self.workers or self.ranks or self.roles or self.failed)


@dataclass(frozen=True, slots=True)
class _Folded:
    """`prefix[numbers]suffix` with literal prefix and suffix; `widths` are the padded widths, 0 for none."""

    prefix: str
    suffix: str
    spans: tuple[tuple[range, int], ...]

    def matches(self, name: str) -> bool:
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return False
        digits = name[len(self.prefix) : len(name) - len(self.suffix)]
        if not digits or len(digits) > MAX_DIGITS or not _DIGITS.issuperset(digits):
            return False
        value = int(digits)
        return any(value in numbers and digits == f"{value:0{width}d}" for numbers, width in self.spans)


def resolve(selection: Selection, job: Job, rank_map: RankMap | None = None) -> tuple[Worker, ...]:
    """The selected workers, ordered by index.

    Different options are combined by intersection, uses of one option by union; `exclude` subtracts. An empty selection
    selects all workers: a command that requires a selection checks `selection.empty` first.

    Raises UsageError for a malformed token, and NothingMatched if a token matches no worker or no worker is left. At
    least one index of a range must have a worker.
    """
    chosen = sorted(job.workers, key=lambda worker: worker.index)
    if selection.workers:
        wanted = _by_tokens(selection.workers, job, excluding=False)
        chosen = [worker for worker in chosen if worker.index in wanted]
    if selection.ranks:
        holders = _by_rank(selection.ranks, job, rank_map)
        chosen = [worker for worker in chosen if worker.name in holders]
    if selection.roles:
        roles = _check_roles(selection.roles, job)
        chosen = [worker for worker in chosen if worker.role in roles]
    if selection.failed:
        if not any(worker.state in FAILED_STATES for worker in job.workers):
            raise NothingMatched(
                Message("no worker of job {job} is Failed or Held", job=job.name),
                Message("see atlctl ps {job}", job=job.name),
            )
        chosen = [worker for worker in chosen if worker.state in FAILED_STATES]
    if selection.exclude:
        removed = _by_tokens(selection.exclude, job, excluding=True)
        chosen = [worker for worker in chosen if worker.index not in removed]
    if not chosen:
        raise NothingMatched(Message("the selection matches no worker of job {job}", job=job.name), _what_exists(job))
    return tuple(chosen)


def parse_numbers(text: str) -> list[range]:
    """Parse `0,2-5` to ranges, in the order of the text and without expanding them. Raises UsageError."""
    return [_number_range(token, MAX_NUMBER, _NUMBERS_GRAMMAR) for token in text.split(",")]


def _number_range(token: str, highest: int, grammar: str) -> range:
    first, dash, last = token.partition("-")
    ends = (first, last) if dash else (first, first)
    if not all(end and _DIGITS.issuperset(end) for end in ends):
        raise UsageError(Message("{token} is neither a number nor a range of numbers", token=_quote(token)), grammar)
    # The length is compared first: a number of a million digits must not be converted.
    if any(len(end) > MAX_DIGITS or int(end) > highest for end in ends):
        text = Message("the number in {token} is too large: the highest is {highest}")
        raise UsageError(text.filled(token=_quote(token), highest=highest), grammar)
    start, stop = int(ends[0]), int(ends[1])
    if stop < start:
        raise UsageError(
            Message("the range {token} ends before it starts", token=_quote(token)),
            Message("write {range}", range=f"{stop}-{start}"),
        )
    return range(start, stop + 1)


def _by_tokens(texts: Sequence[str], job: Job, excluding: bool) -> set[int]:
    """Indexes of the workers that `-w` or `-x` texts match. `-x` also accepts the index of a missing worker."""
    tokens = [token for text in texts for token in _split(text)]
    hit: set[int] = set()
    missing: set[int] | None = None
    for token in tokens:
        if _NUMERIC.issuperset(token):
            numbers = _number_range(token, MAX_NUMBER, _WORKERS_GRAMMAR)
            found = {worker.index for worker in job.workers if worker.index in numbers}
            if not found:
                missing = set(job.missing) if missing is None else missing
                gone = sorted(index for index in missing if index in numbers)
                if gone and excluding:
                    continue
                raise _no_index(token, gone, job)
        else:
            found = _by_name(token, job)
            if not found:
                raise NothingMatched(
                    Message("{token} matches no worker, pod or host of job {job}", token=_quote(token), job=job.name),
                    _what_exists(job),
                )
        hit |= found
    return hit


def _by_name(token: str, job: Job) -> set[int]:
    """Indexes of the workers with that name; else those of that pod, that host, or that pattern."""
    for attribute in ("name", "pod", "host"):
        exact = {worker.index for worker in job.workers if getattr(worker, attribute) == token}
        if exact:
            return exact
    matches = _pattern(token)
    if matches is None:
        return set()
    return {
        worker.index
        for worker in job.workers
        if any(text is not None and matches(text) for text in (worker.name, worker.pod, worker.host))
    }


def _pattern(token: str) -> Callable[[str], bool] | None:
    """The matcher for a token with `*`, `?` or `[...]`; None for a plain name. Raises UsageError."""
    brackets = _brackets(token)
    starred = "*" in token or "?" in token
    if not brackets:
        if not starred:
            return None
    elif len(brackets) == 1 and not starred:
        start, end = brackets[0]
        inside = token[start + 1 : end]
        if not (_NUMERIC | {","}).issuperset(inside):
            return _glob(token)
        spans = []
        for item in inside.split(","):
            low, _, high = item.partition("-")
            padded = len(low) > 1 and low[0] == "0"
            if padded and high and len(high) != len(low):
                text = Message("{item} in {token}: both ends must have the same number of digits")
                raise UsageError(text.filled(item=_quote(item), token=_quote(token)), pad_alike("[01-16]"))
            numbers = _number_range(item, 10**MAX_DIGITS - 1, _WORKERS_GRAMMAR)
            spans.append((numbers, len(low) if padded else 0))
        return _Folded(token[:start], token[end + 1 :], tuple(spans)).matches
    if any(_two_digits(token[start:end]) for start, end in brackets):
        # A glob would read [0-12] as one character of 0, 1 or 2, which the user did not mean.
        raise UsageError(
            Message("{token} mixes a range of numbers with a glob or a second range", token=_quote(token)),
            Message("one bracket and no '*' or '?': worker-[0-12]"),
        )
    return _glob(token)


def _glob(token: str) -> Callable[[str], bool]:
    from fnmatch import fnmatchcase

    return lambda name: fnmatchcase(name, token)


def _split(text: str) -> list[str]:
    """Split a `-w` text at commas outside of brackets. Raises UsageError for an empty token."""
    tokens: list[str] = []
    start = 0
    inside = False
    for position, char in enumerate(text):
        if char == "[":
            inside = True
        elif char == "]":
            inside = False
        elif char == "," and not inside:
            tokens.append(text[start:position])
            start = position + 1
    tokens.append(text[start:])
    if inside:
        raise UsageError(Message("{item}: the bracket is not closed", item=_quote(tokens[-1])), _WORKERS_GRAMMAR)
    if not all(tokens):
        raise UsageError(_empty_item(_quote(text)), _WORKERS_GRAMMAR)
    return tokens


def _brackets(token: str) -> list[tuple[int, int]]:
    """Positions of each `[` and its `]`. Raises UsageError for an empty pair."""
    pairs: list[tuple[int, int]] = []
    start = token.find("[")
    while start >= 0:
        end = token.find("]", start + 1)
        if end == start + 1:
            raise UsageError(Message("{token} has an empty bracket", token=_quote(token)), _WORKERS_GRAMMAR)
        if end < 0:
            break
        pairs.append((start, end))
        start = token.find("[", end + 1)
    return pairs


def _two_digits(text: str) -> bool:
    return any(one in _DIGITS and two in _DIGITS for one, two in pairwise(text))


def _by_rank(texts: Sequence[str], job: Job, rank_map: RankMap | None) -> set[str]:
    ranges = [(token, parse_numbers(token)[0]) for text in texts for token in text.split(",")]
    if rank_map is None:
        raise NothingMatched(
            Message("the ranks of the workers of job {job} are not known", job=job.name),
            Message("select workers by index or name: -w 0,2-5"),
        )
    names = {worker.name for worker in job.workers}
    known = {rank: name for rank, name in rank_map.workers.items() if name in names}
    hit: set[str] = set()
    for token, numbers in ranges:
        found = {name for rank, name in known.items() if rank in numbers}
        if not found:
            there = _cut(fold_numbers(known)) or Message("none")
            raise NothingMatched(
                Message("no worker of job {job} holds rank {token}", job=job.name, token=token),
                Message("known ranks: {known} ({source})", known=there, source=rank_map.source),
            )
        hit |= found
    return hit


def _check_roles(texts: Iterable[str], job: Job) -> set[str]:
    wanted = {role for text in texts for role in text.split(",")}
    if not all(wanted):
        raise UsageError(_empty_item("--role"), Message("roles, separated by commas: --role master,worker"))
    present = {worker.role for worker in job.workers if worker.role}
    for role in sorted(wanted - present):
        hint = Message("its workers have no roles; select them by -w")
        if known := ", ".join(sorted(present, key=natural_key)):
            hint = Message("roles: {roles}", roles=_cut(known))
        raise NothingMatched(Message("no worker of job {job} has role {role}", job=job.name, role=_quote(role)), hint)
    return wanted


def _no_index(token: str, gone: Sequence[int], job: Job) -> NothingMatched:
    if gone:
        message = plural(
            "worker {workers} of job {job} should exist and is missing",
            "workers {workers} of job {job} should exist and are missing",
            len(gone),
            workers=_cut(fold_numbers(gone)),
            job=job.name,
        )
    else:
        message = Message("job {job} has no worker with index {token}", job=job.name, token=token)
    return NothingMatched(message, _what_exists(job))


def _what_exists(job: Job) -> str:
    if not job.workers:
        return Message("the job has no workers, {expected} are expected", expected=job.expected)
    names = _cut(fold_names(worker.name for worker in job.workers))
    indexes = _cut(fold_numbers(worker.index for worker in job.workers))
    text = Message("workers: {names} (index {indexes})", names=names, indexes=indexes)
    missing = job.missing
    return Message("{there}; missing: {missing}", there=text, missing=_cut(fold_numbers(missing))) if missing else text


def _empty_item(text: str) -> Message:
    return Message("{item} has an empty element", item=text)


def _quote(text: str) -> str:
    return f"'{_cut(text)}'"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
