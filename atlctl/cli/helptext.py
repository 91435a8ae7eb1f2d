"""Help pages: usage, examples, options, in that order; in the reader's language."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from atlctl.cli import catalogue
from atlctl.cli.catalogue import Language

#: Shared options every command has; the other shared ones (`--job`, `--output`) only where a command declares them.
EVERYWHERE = (
    "backend",
    "namespace",
    "context",
    "kubeconfig",
    "selector",
    "hostfile",
    "quiet",
    "verbose",
    "debug",
    "color",
)

_WIDEST = 100
_GAP = 2
#: Marks that never begin a line, and marks that never end one.
_CLOSING = "，。；：、）！？》”"
_OPENING = "（《“"
_FIRST_COLUMN = 30


def render(command: Any, ctx: Any, lang: Language | None = None, width: int | None = None) -> str:
    """The help page of `command`, lines at most `width` cells (default: the terminal's, 100 at most)."""
    lang = lang or catalogue.language()
    width = width or max(40, min(shutil.get_terminal_size().columns - 1, _WIDEST))
    name = dotted(command.path)
    label = catalogue.texts(lang)
    lines = [f"{label['label.usage']}{usage(ctx)}", ""]
    lines += _wrapped(catalogue.find(lang, f"{name}.summary"), width, "  ")
    if catalogue.has(f"{name}.text"):
        for paragraph in catalogue.find(lang, f"{name}.text").split("\n"):
            lines += _wrapped(paragraph, width, "  ")
    if catalogue.has(f"{name}.examples"):
        lines += ["", label["label.examples"]]
        lines += [f"  {line}" for line in catalogue.find(lang, f"{name}.examples").splitlines()]
    table = getattr(command, "table", None)
    if table:
        rows = [
            (", ".join((sub, *entry.aliases)), catalogue.find(lang, f"{dotted(f'{command.path} {sub}')}.summary"))
            for sub, entry in table.items()
        ]
        lines += ["", label["label.commands"], *_rows(rows, width)]
    for heading, params in sections(command, ctx):
        rows = [(spelling(param), describe(command.path, param, lang)) for param in params]
        lines += ["", label[heading], *_rows(rows, width)]
    return "\n".join(lines) + "\n"


def sections(command: Any, ctx: Any) -> list[tuple[str, list[Any]]]:
    """Parameters under their headings: arguments, options of the command, options every command has."""
    arguments: list[Any] = []
    own: list[Any] = []
    shared: list[Any] = []
    for param in command.get_params(ctx):
        if param.hidden:
            continue
        if param.param_type_name == "argument":
            arguments.append(param)
        else:
            (shared if key_of(param) in (*EVERYWHERE, "help") else own).append(param)
    if getattr(command, "table", None):
        own, shared = [*own, *shared], []
    found = [
        ("label.arguments", arguments),
        ("label.options", own or shared),
        ("label.shared", shared if own else []),
    ]
    return [(heading, params) for heading, params in found if params]


def key_of(param: Any) -> str:
    """What a parameter is called in the catalogue: its longest option without dashes, or its metavar."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len)).lstrip("-")
    return str(param.metavar or param.name).upper().removesuffix("...")


def usage(ctx: Any) -> str:
    """The usage line: `atlctl exec [OPTIONS] [--] CMD...`."""
    command = ctx.command
    words = [f"atlctl {command.path}".strip(), "[OPTIONS]"]
    if not ctx.allow_interspersed_args and not hasattr(command, "table"):
        words.append("[--]")
    for param in command.params:
        if param.param_type_name == "argument" and not param.hidden:
            name = spelling(param)
            words.append(name if param.required else f"[{name}]")
    if hasattr(command, "table"):
        words.append("COMMAND ...")
    return " ".join(words)


def spelling(param: Any) -> str:
    """A parameter as it is typed: `-w, --workers LIST`, `CMD...`."""
    if param.param_type_name == "argument":
        name = str(param.metavar or param.name).upper()
        return f"{name}..." if param.nargs == -1 and not name.endswith("...") else name
    names = ", ".join(sorted(param.opts, key=len))
    if param.opts and all(opt.startswith("--") for opt in param.opts):
        names = f"    {names}"
    return names if param.is_flag or param.count else f"{names} {param.metavar or 'VALUE'}"


def describe(path: str, param: Any, lang: Language) -> str:
    """What a parameter does, with its default."""
    kind = "arg" if param.param_type_name == "argument" else "opt"
    key = f"{kind}.{key_of(param)}"
    text = catalogue.find(lang, f"{dotted(path)}.{key}", key)
    default = param.default
    if param.show_default and isinstance(default, (str, int, float)) and not isinstance(default, bool) and default:
        text += catalogue.find(lang, "label.default").format(value=default)
    return text


def dotted(path: str) -> str:
    """A command's name in catalogue keys; the program itself is `atlctl`."""
    return path.strip().replace(" ", ".") or "atlctl"


def _cells(text: str) -> int:
    return sum(2 if _wide(char) else 1 for char in text)


def _wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


def _rows(rows: Sequence[tuple[str, str]], width: int) -> Iterable[str]:
    first = min(max(_cells(name) for name, _ in rows), _FIRST_COLUMN, width // 3) + _GAP
    for name, text in rows:
        body = _wrapped(text, width - first - 2, "") or [""]
        if _cells(name) > first - _GAP:
            yield f"  {name}"
        else:
            yield f"  {name}{' ' * (first - _cells(name))}{body.pop(0)}"
        for line in body:
            yield f"  {' ' * first}{line}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width` cells. Breaks at spaces, and between Chinese characters but not before their marks."""
    lines: list[str] = []
    line = ""
    for piece in _pieces(text):
        if line and _cells(indent + line + piece.rstrip()) > width:
            lines.append(indent + line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
    return [*lines, indent + line.rstrip()] if line.strip() else lines


def _pieces(text: str) -> list[str]:
    pieces: list[str] = []
    for char in text:
        before = pieces[-1][-1] if pieces else " "
        may_break = before == " " or _wide(char) or (_wide(before) and char != " ")
        if not pieces or (may_break and char not in _CLOSING and before not in _OPENING):
            pieces.append(char)
        else:
            pieces[-1] += char
    return pieces
