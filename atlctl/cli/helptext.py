"""Help pages: usage, examples, options, in that order; in the reader's language."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from atlctl.i18n import Language, Message, language, translated
from atlctl.render.width import display_width, fold_points

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

#: Headings of a page.
COMMANDS, ARGUMENTS, OPTIONS, SHARED = (
    Message("Commands:"),
    Message("Arguments:"),
    Message("Options:"),
    Message("Options of every command:"),
)
_WIDEST = 100
_GAP = 2
_FIRST_COLUMN = 30


def render(command: Any, ctx: Any, lang: Language | None = None, width: int | None = None) -> str:
    """The help page of `command`, lines at most `width` cells (default: the terminal's, 100 at most)."""
    lang = lang or language()
    width = width or max(40, min(shutil.get_terminal_size().columns - 1, _WIDEST))
    lines = [f"{translated(Message('Usage: '), lang)}{usage(ctx)}", ""]
    lines += _wrapped(translated(command.summary, lang), width, "  ")
    if command.text:
        for paragraph in translated(command.text, lang).split("\n"):
            lines += _wrapped(paragraph, width, "  ")
    if command.examples:
        lines += ["", translated(Message("Examples:"), lang)]
        lines += [f"  {line}" for line in translated(command.examples, lang).splitlines()]
    table = getattr(command, "table", None)
    if table:
        rows = [(", ".join((sub, *entry.aliases)), translated(entry.summary, lang)) for sub, entry in table.items()]
        lines += ["", translated(COMMANDS, lang), *_rows(rows, width)]
    for heading, params in sections(command, ctx):
        rows = [(spelling(param), describe(param, lang)) for param in params]
        lines += ["", translated(heading, lang), *_rows(rows, width)]
    return "\n".join(lines) + "\n"


def sections(command: Any, ctx: Any) -> list[tuple[Message, list[Any]]]:
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
        (ARGUMENTS, arguments),
        (OPTIONS, own or shared),
        (SHARED, shared if own else []),
    ]
    return [(heading, params) for heading, params in found if params]


def key_of(param: Any) -> str:
    """What a parameter is called: its longest option without dashes, or its metavar."""
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


def describe(param: Any, lang: Language) -> str:
    """What a parameter does, with its default."""
    text = translated(help_of(param), lang)
    default = param.default
    if param.show_default and isinstance(default, (str, int, float)) and not isinstance(default, bool) and default:
        text += translated(Message(" (default: {value})", value=default), lang)
    return text


def help_of(param: Any) -> str:
    """The text that a parameter was declared with: typer's own copy of it is no message any more."""
    if key_of(param) == "help":
        return Message("show this help and exit")
    return param.type_descriptor.parameter_info.help or ""


def _rows(rows: Sequence[tuple[str, str]], width: int) -> Iterable[str]:
    first = min(max(display_width(name) for name, _ in rows), _FIRST_COLUMN, width // 3) + _GAP
    for name, text in rows:
        body = _wrapped(text, width - first - 2, "") or [""]
        if display_width(name) > first - _GAP:
            yield f"  {name}"
        else:
            yield f"  {name}{' ' * (first - display_width(name))}{body.pop(0)}"
        for line in body:
            yield f"  {' ' * first}{line}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width` cells."""
    starts = [0, *fold_points(text, width - len(indent)), len(text)]
    return [indent + text[start:end].rstrip() for start, end in itertools.pairwise(starts) if text[start:end].strip()]
