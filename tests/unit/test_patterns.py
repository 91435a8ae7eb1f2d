"""No pattern of the package is slow on a text made for it: for 64 KiB that almost match, the time is linear.

The patterns are found automatically, in modules and in arguments of `re` calls. The texts come from each pattern's
tree: the part before a repetition, then the repeated part, and finally a part that cannot match.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import atlctl
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.steps import formats
from atlctl.recording import feed
from atlctl.render import redact

ROOT = Path(atlctl.__file__).parent
CALLS = (
    "re.compile", "re.search", "re.match", "re.fullmatch", "re.sub", "re.subn", "re.split", "re.findall", "re.finditer",
)  # fmt: skip
#: These try a pattern at only one position.
ANCHORED = ("match", "fullmatch")
#: Functions with patterns that are known only at run time, and the reason why they need no check here.
MADE_LATER = {
    ("remote.supervisor.starting", "environment"): "the contract's own, which is looked at there",
    ("remote.cgroups", "throttled"): "one of two names",
    ("cli.commands.logs", "_pattern"): "the user's own, for the user's own output",
    ("diagnosis.scanner", "plain_sieve"): "literals",
    ("diagnosis.signatures", "_pattern"): "the signatures', looked at below",
    ("diagnosis.signatures", "shape"): "compiled, never matched",
    ("diagnosis.signatures", "_characters"): "matched with one character",
    ("diagnosis.steps", "_compiled"): "of steps.toml, looked at below",
    ("diagnosis.torchelastic", "_prefix_pattern"): "literals and runs of digits",
    ("recording.feed", "learned_prefix"): "of the log's own words, two of which are looked at below",
    ("render.redact", "_compiled"): "its table and LATE, looked at below",
    ("diagnosis.consequence", ""): "of the module's table, which holds it",
    ("diagnosis.logline", ""): "of the module's table, which holds it",
    ("diagnosis.rankreport", ""): "of the module's table, which holds it",
    ("diagnosis.torchelastic", "_compiled"): "of the module's table, which holds it",
    ("recording.excerpts", ""): "of the module's table, which holds it",
    ("recording.feed", "__init__"): "the shapes of prefixes, looked at below",
}
#: Patterns of `render.redact` that are compiled on demand, in addition to its table.
LATE = ("_OPENS", "_NAMES_NEXT", "_VALUE_NEXT", "_PERHAPS", "_SURE_NAME", "_PERHAPS_NAME")
SIZES = (1 << 8, 1 << 11, 1 << 14, 1 << 16)
#: CPU seconds that are always acceptable, and those for each further character, on a machine at rest.
LITTLE, SHARE = 0.02, 10e-6
#: A pattern and a text that take NOMINAL CPU seconds on such a machine.
FLOOR, NOMINAL = (re.compile(r"(?:(?!x).){1,200}+y"), "ab" * 4096), 0.05
#: If a size takes less than these seconds, larger ones need no check.
QUICK = {SIZES[1]: 0.0003, SIZES[2]: 0.03}


@dataclass(frozen=True)
class Found:
    where: str
    pattern: re.Pattern[Any]
    anchored: bool


def found() -> list[Found]:
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__" and parts != ("remote", "boot"):  # importing them runs them
            trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    searched = {
        (name, node.value.id) if isinstance(node.value, ast.Name) else node.value.attr
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr not in ANCHORED
        if isinstance(node.value, ast.Attribute | ast.Name)
    }
    made: dict[tuple[Any, int, bool], Found] = {}
    unknown = set()
    for name, tree in trees.items():
        module = importlib.import_module(f"atlctl.{name}" if name else "atlctl")
        here = [
            *((f"{name}.{key}", one, isinstance(value, re.Pattern) and not {(name, key), key} & searched)
              for key, value in vars(module).items() for one in held(value)),
        ]  # fmt: skip
        for function, call in calls(tree):
            try:
                value = eval(compile(ast.Expression(call.args[0]), name, "eval"), vars(module))
            except NameError:
                unknown.add((name, function))
                continue
            assert isinstance(call.func, ast.Attribute)
            given = [ast.unparse(part) for part in (*call.args[1:], *(keyword.value for keyword in call.keywords))]
            flags = [text for text in given if re.fullmatch(r"re\.[A-Z]+(?: \| re\.[A-Z]+)*", text)]
            one = re.compile(value, eval("|".join(flags) or "0", {"re": re}))
            if call.func.attr != "compile" or function:
                here.append((f"{name}:{call.lineno}", one, call.func.attr in ANCHORED))
        for where, one, anchored in here:
            made.setdefault((one.pattern, one.flags, anchored), Found(where, one, anchored))
    assert unknown == set(MADE_LATER)
    texts = [value for key, value in vars(redact).items() if key in LATE]
    for text in (*texts, *(text for _, _, text in redact._TABLE)):
        one = redact._compiled(text)
        made[one.pattern, one.flags, False] = Found(f"render.redact: {text[:60]}", one, False)
    for form in formats():
        for one in (form.pattern, *form.also):
            made[one.pattern, one.flags, False] = Found(f"steps {form.id}", one, False)
    heads = (b"[2026-11-20T17:45:05Z] team/w-%d.log 10:00: ", b"\x1b[36mtrain.w-%d.x7@node    |\x1b[0m ")
    trace = (b"Traceback (most recent call last):", b'  File "/x.py", line 3, in y', b"ValueError: x")
    learned = [feed.learned_prefix(b"\n".join(head % n + line for n in (0, 1) for line in trace)) for head in heads]
    for prefix in (feed.KUBECTL, *feed.SHAPES, *(one.shape for one in learned if one)):
        one = re.compile(prefix.pattern)
        made[one.pattern, one.flags, True] = Found(f"recording.feed: {prefix.pattern[:60]!r}", one, True)
    matcher = Matcher(builtin().signatures)
    for place, signature in enumerate(builtin().signatures):
        one = matcher._pattern(place, signature)
        made[one.pattern, one.flags, False] = Found(f"signature {signature.id}", one, False)
    return list(made.values())


def calls(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Call) and ast.unparse(child.func) in CALLS:
            yield function, child
        yield from calls(child, inner)


def held(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """The patterns in a module's value."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from held(list(value.values()), depth)
    elif isinstance(value, list | tuple | set | frozenset) and depth < 4:
        for part in value:
            yield from held(part, depth + 1)
    elif type(value).__module__.startswith("atlctl.") and not isinstance(value, type) and depth < 4:
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        for name in (*slots, *getattr(value, "__dict__", ())):
            yield from held(getattr(value, name, None), depth + 1)


# --- texts that almost match ---------------------------------------------------------------------------------------

#: The preferred characters for a class, in this order.
USUAL = "a0 -.A_/:\"'=\\x\t1b"


class Maker:
    """Texts for one pattern: its shortest match, and the prefix of each of its repetitions."""

    def __init__(self) -> None:
        self.pumps: list[tuple[str, str]] = []
        self._groups: dict[int, str] = {}

    def sequence(self, items: Iterable[Any], before: str) -> str:
        """A short text that matches `items` after `before`."""
        text = ""
        for op, value in items:
            text += self.item(op, value, before + text)
        return text

    def item(self, op: Any, value: Any, before: str) -> str:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, high, inner = value
            one = self.sequence(inner, before)
            if high > 60 and len(self.pumps) < 16:
                self.pumps.append((before, one))
                if len(inner) == 1 and (others := samples(*inner[0])):
                    self.pumps += [(before, other) for other in others if other != one]
            times: int = min(low, 8)
            return one * times
        if op is sre.SUBPATTERN:
            inside = self.sequence(value[3], before)
            if value[0] is not None:
                self._groups[value[0]] = inside
            return inside
        if op is sre.BRANCH:
            branches = [self.sequence(branch, before) for branch in value[1]]
            return branches[0]
        if op is sre.ATOMIC_GROUP:
            return self.sequence(value, before)
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            self.sequence(value[1], before)
            return ""
        if op is sre.GROUPREF:
            return self._groups.get(value, "")
        return next(iter(samples(op, value)), "")


def samples(op: Any, value: Any) -> list[str]:
    """Up to four characters that match one item of a pattern."""
    if op is sre.LITERAL:
        return [chr(value)]
    if op not in (sre.IN, sre.ANY, sre.NOT_LITERAL):
        return []
    if op is sre.ANY:
        return list(USUAL[:4])
    if op is sre.NOT_LITERAL:
        return [char for char in USUAL if ord(char) != value][:4]
    taken = [char for char in USUAL if in_class(value, ord(char))]
    rest = [chr(code) for code in range(32, 127) if in_class(value, code)]
    return list(dict.fromkeys((*taken, *rest[:2])))[:4]


def in_class(items: Iterable[Any], code: int) -> bool:
    negate = inside = False
    for op, value in items:
        if op is sre.NEGATE:
            negate = True
        elif op is sre.LITERAL:
            inside |= code == value
        elif op is sre.RANGE:
            inside |= value[0] <= code <= value[1]
        elif op is sre.CATEGORY:
            escape = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).split("_")[-1]]
            inside |= (re.match(escape, chr(code)) is None) == ("NOT" in str(value))
    return inside != negate


def near_misses(pattern: re.Pattern[Any], anchored: bool) -> Iterator[tuple[str, str]]:
    """Prefixes and repeated parts of texts."""
    maker = Maker()
    whole = maker.sequence(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE & ~re.DEBUG), "")
    seen = set()
    for before, one in [*maker.pumps, ("", whole), ("", whole[:-1])]:
        options = [(before, one)] if anchored else [(before, one), ("", before + one * 2), ("", one)]
        for text in options:
            if text[1] and text not in seen:
                seen.add(text)
                yield text


def seconds(found: Found, before: str, one: str, size: int) -> float:
    made = (before + one * (size // len(one) + 1))[:size] + "\x01"
    text: Any = made.encode("utf-8", "surrogateescape") if isinstance(found.pattern.pattern, bytes) else made
    begin = time.thread_time()
    (found.pattern.fullmatch if found.anchored else found.pattern.search)(text)
    return time.thread_time() - begin


def pace() -> float:
    """How many times slower than at rest patterns are now, by neighbours that share the caches and the core."""
    begin = time.thread_time()
    FLOOR[0].search(FLOOR[1])
    return max(1.0, (time.thread_time() - begin) / NOMINAL)


def slow(found: Found) -> str | None:
    """The first text for which the pattern takes too long, with the times."""
    for before, one in near_misses(found.pattern, found.anchored):
        last = 0.0
        for size in SIZES:
            took = seconds(found, before, one, size)
            grown = last and size == SIZES[3] and took > LITTLE and took > 8 * last
            if took > LITTLE + SHARE * size or grown:
                took = min(seconds(found, before, one, size) / pace() for _ in range(8))
                if took > LITTLE + SHARE * size or (grown and took > 8 * last):
                    return f"{found.where}: {before[-60:]!r} + {one[:40]!r} * n: {took:.3f} s for {size} characters"
            if took < QUICK.get(size, 0):  # even its square would be small
                break
            last = took
    return None


@pytest.mark.timeout(400)
def test_no_pattern_takes_more_than_its_share():
    patterns = found()
    assert len(patterns) > 400
    assert [line for one in patterns if (line := slow(one))] == []
