"""Sends programs to workers: a shell finds a Python there, which boots from the source text of the required modules
(see `boot.py`, `sh/find_python.sh`). On a worker it starts the agent's children."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import sys
import zlib

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = "atlctl.remote"
_IMPORT = re.compile(r"^ *from (\.?[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
#: On a worker: the modules that were sent.
_SENT = getattr(sys.modules["__main__"], "texts", {})


def source(name: str) -> str | None:
    """The source of a module of `atlctl.remote`; empty for a package, None if it is unknown."""
    if _SENT:
        sent = _SENT.get(name)
        return sent if sent is None else str(sent)
    if not (name + ".").startswith(_PACKAGE + "."):
        return None
    path = os.path.join(os.path.dirname(__file__), *name.split(".")[2:])
    return "" if os.path.isdir(path) else _read(path + ".py")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def needed(*names: str) -> dict[str, str]:
    """Sources of these modules, of all modules of `atlctl.remote` that they import, and of the packages around them."""
    texts: dict[str, str] = {"atlctl": ""}
    todo = list(names)
    while todo:
        name = todo.pop()
        text = None if name in texts else source(name)
        if text is None:
            continue
        texts[name] = text
        package = name.rpartition(".")[0]
        todo.append(package)
        for where, many, few in _IMPORT.findall(text):
            base = package + where.rstrip(".") if where.startswith(".") else where
            if (base + ".").startswith(_PACKAGE + "."):
                todo += [base, *(f"{base}.{word}" for word in re.findall(r"\w+", many or few))]
    return texts


def packed(texts: dict[str, str]) -> bytes:
    """Modules in the format of the boot code."""
    return zlib.compress(json.dumps(texts).encode(), 6)


def inline(texts: dict[str, str]) -> str:
    """Modules as a base64 argument."""
    return base64.b64encode(packed(texts)).decode("ascii")


@functools.lru_cache(maxsize=None)  # noqa: UP033 - `cache` is younger than Python 3.8
def boot() -> str:
    """The source of `boot.py` without its docstring."""
    if _SENT:
        with open("/proc/self/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        return words[words.index("-c") + 1]
    return (_read(os.path.join(os.path.dirname(__file__), "boot.py")) or "").split('"""')[2]


@functools.lru_cache(maxsize=None)  # noqa: UP033
def shell(name: str) -> str:
    """The minified text of `sh/NAME.sh`. A line `. ./OTHER.sh` is replaced by that file."""
    folder = os.path.dirname(name)
    lines = []
    for line in (_read(os.path.join(os.path.dirname(__file__), "sh", name + ".sh")) or "").splitlines(keepends=True):
        part = re.fullmatch(r" *\. \./(\w+)\.sh\n", line)
        lines.append(shell(os.path.join(folder, part[1])) if part else line)
    return small_shell("".join(lines))


def small_shell(text: str) -> str:
    """Shell text without comments, indentation and spaces around operators, outside quotes."""
    kept = [""]
    for part in re.findall(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|(?<![^\s;])#[^\n]*|[^'"\\#]+|.""", text, re.DOTALL):
        if part[0] in "'\"\\" or not part.startswith("#") or kept[-1][-1:] not in ("", " ", "\n", ";"):
            kept.append(part)
    quoted: list[str] = []

    def away(part: str) -> str:
        quoted.append(part)
        return f"\x01{len(quoted) - 1}\x02"

    plain = "".join(away(part) if part[:1] in ("'", '"', "\\") else part for part in kept)
    plain = "\n".join(" ".join(line.split()) for line in plain.split("\n") if line.strip())
    plain = re.sub(r" ?([;|&]+) ?", r"\1", plain)
    plain = re.sub(r"(?<![0-9]) (?=[<>])", "", plain)
    plain = re.sub(r"\n?;;\n", ";;", plain).replace(") {", "){").replace("(\n", "(")
    return re.sub("\x01([0-9]+)\x02", lambda match: quoted[int(match[1])], plain) + "\n"


def command(name: str, flags: str, words: Sequence[str], before: str = "") -> tuple[str, ...]:
    """The command that runs a Python on a worker, with `flags` (split at blanks), `-c` and `words`. A shell named
    `name` runs the text `before` first. Exits with 3 if there is no suitable Python."""
    return ("/bin/sh", "-c", before + shell("find_python"), name, flags, *words)
