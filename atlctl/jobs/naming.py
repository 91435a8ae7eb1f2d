"""Names of workers and jobs: folding to ranges, natural order, valid job names, safe file names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from atlctl.i18n import LIST, Message, general, joined
from atlctl.jobs.errors import UsageError

Reason = TypeVar("Reason")

_ALNUM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_FILE_SAFE = _ALNUM | frozenset("._-")
_DIGITS = re.compile("[0-9]+")
_LAST_DIGITS = re.compile("([0-9]+)([^0-9]*)$")

#: Longest job name, in bytes: that of a Kubernetes label value.
MAX_JOB_NAME = 63
#: Most jobs in a hint.
MAX_MEANT = 3
#: Longest run of digits that is folded, since `selection` reads numbers of at most this many digits.
MAX_DIGITS = 18
#: Longest result of `safe_file_name`, in bytes: leaves 55 of NAME_MAX for suffixes.
MAX_FILE_NAME = 200


def meant(name: str) -> Message:
    """The hint "did you mean" for one name."""
    return Message("did you mean '{name}'?", name=name)


def meant_job(word: str, jobs: Iterable[str]) -> Message | None:
    """The hint with the jobs whose names begin with `word`, else with similar names; None if there are none."""
    from difflib import get_close_matches

    names = sorted(dict.fromkeys(jobs), key=natural_key)
    near = [name for name in names if word and name.lower().startswith(word.lower())]
    near = near or get_close_matches(word, names, MAX_MEANT)
    if len(near) < 2:
        return meant(near[0]) if near else None
    return Message("did you mean one of these? {jobs}", jobs=joined(near[:MAX_MEANT], LIST))


def fold_names(names: Iterable[str]) -> str:
    """Fold names to ranges: `worker-[0-2,5],gpu[01-16]`.

    Only the last run of digits of a name varies; zero padding is kept, groups are in natural order, duplicates count
    once. A name without a group is unchanged, and so is one that holds `[`, `]` or `,` (the result would be ambiguous).
    `selection` accepts the result.
    """
    alone: list[str] = []
    families: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(names):
        match = _LAST_DIGITS.search(name)
        if match is None or len(match[1]) > MAX_DIGITS or not _foldable(name):
            alone.append(name)
        else:
            families.setdefault((name[: match.start()], match[2]), []).append(match[1])
    texts = alone
    for (prefix, suffix), numbers in families.items():
        padded = {len(text) for text in numbers if len(text) > 1 and text[0] == "0"}
        widths: dict[int, list[int]] = {}
        for text in numbers:
            widths.setdefault(len(text) if len(text) in padded else 0, []).append(int(text))
        for width, values in widths.items():
            if len(values) == 1:
                texts.append(f"{prefix}{values[0]:0{width}d}{suffix}")
            else:
                texts.append(f"{prefix}[{fold_numbers(values, width)}]{suffix}")
    return ",".join(sorted(texts, key=lambda text: (natural_key(text.replace("[", "", 1)), text)))


def fold_numbers(values: Iterable[int], width: int = 0) -> str:
    """Fold numbers to ranges: `0-2,5`, each padded with zeros to `width` digits. Duplicates count once."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ",".join(
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in spans
    )


def names_by_reason(pairs: Iterable[tuple[str, Reason]]) -> dict[Reason, list[str]]:
    """Group names by reason; both keep their order, duplicates count once. Reasons that differ only in the worker that
    they are about are one, see `i18n.specific`."""
    found: dict[Any, dict[str, Reason]] = {}
    for name, reason in pairs:
        found.setdefault(general(reason) if isinstance(reason, str) else reason, {})[name] = reason
    return {shared if len(names) > 1 else next(iter(names.values())): list(names) for shared, names in found.items()}


def by_frequency(pairs: Iterable[tuple[str, Reason]]) -> list[tuple[Reason, list[str]]]:
    """As `names_by_reason`, the most frequent reason first."""
    return sorted(names_by_reason(pairs).items(), key=lambda group: -len(group[1]))


def and_more(names: str, count: int) -> str:
    """Names, and the number of further ones."""
    return Message("{names} and {count} more", names=names, count=count) if count > 0 else names


def pad_alike(example: str) -> Message:
    """The hint for a range such as `[1-016]`, with different padding."""
    return Message("pad both ends alike: {example}", example=example)


def natural_key(name: str) -> tuple[Any, ...]:
    """Sort key that puts `worker-2` before `worker-10`. Total: different names never compare equal."""
    parts: list[Any] = []
    end = 0
    for match in _DIGITS.finditer(name):
        # Compared as (length, digits): a long run of digits needs no conversion to int.
        digits = match[0].lstrip("0")
        parts += (name[end : match.start()], (len(digits), digits))
        end = match.end()
    return ((*parts, name[end:]), name)


def check_job_name(name: str) -> None:
    """Raise UsageError unless `name` is 1 to 63 ASCII letters, digits, `.`, `_`, `-`, and both ends are letters or
    digits."""
    if not name:
        problem = Message("a job name cannot be empty")
    elif not all(char in _FILE_SAFE for char in name):
        bad = next(char for char in name if char not in _FILE_SAFE)
        problem = Message(
            "job name {name} contains a character that is not allowed: {bad!a}", name=_short(name), bad=bad
        )
    elif len(name) > MAX_JOB_NAME:
        problem = Message(
            "job name {name} is {count} bytes long, {most} are allowed",
            name=_short(name),
            count=len(name),
            most=MAX_JOB_NAME,
        )
    elif name[0] not in _ALNUM or name[-1] not in _ALNUM:
        problem = Message("job name {name} must start and end with a letter or digit", name=_short(name))
    else:
        return
    raise UsageError(
        problem,
        Message(
            "1 to {most} letters, digits, '.', '_' or '-'; the first and the last a letter or digit", most=MAX_JOB_NAME
        ),
    )


def safe_file_name(name: str) -> str:
    """A safe and unique file name for any string: worker names are never used as raw paths.

    ASCII letters, digits, `.`, `_` and `-` are kept; a leading `.` or `-` and every other byte become `%XX`. A long
    result is cut and ends with a hash; at most `MAX_FILE_NAME` bytes.
    """
    # surrogatepass: argv and file names may hold bytes that are not UTF-8; two such names must stay different.
    parts = [
        char if char in _FILE_SAFE else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in name
    ]
    if parts and parts[0] in (".", "-"):
        parts[0] = f"%{ord(parts[0]):02X}"
    encoded = "".join(parts)
    if not encoded:
        return "%"  # in all other results two hex digits follow a `%`
    if len(encoded) <= MAX_FILE_NAME:
        return encoded
    import hashlib

    # `%h` is not a hex escape either, so a cut name never equals a whole one.
    digest = hashlib.sha256(encoded.encode("ascii")).hexdigest()[:32]
    return f"{encoded[: MAX_FILE_NAME - len(digest) - 2]}%h{digest}"


def _foldable(name: str) -> bool:
    return "[" not in name and "]" not in name and "," not in name


def _short(name: str) -> str:
    return repr(name) if len(name) <= 80 else repr(name[:77] + "...")
