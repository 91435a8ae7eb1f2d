"""Help pages: usage, examples, options, in that order; in the reader's language, coloured by the palette."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from atlctl.i18n import Language, Message, language, translated
from atlctl.render.palette import Tone, painted
from atlctl.render.width import display_width, wrapped

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
#: Options that a group takes for the commands that have them.
_FOR_COMMANDS = ("job", "output")
_WIDEST = 100
_GAP = 2
_FIRST_COLUMN = 30


class _Page:
    """A help page. Lines have at most `width` cells (default: the terminal's, 100 at most)."""

    def __init__(self, lang: Language | None, width: int | None, color: bool) -> None:
        self.lang = lang or language()
        self._width = width or max(40, min(shutil.get_terminal_size().columns - 1, _WIDEST))
        self._color = color
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def heading(self, title: Message) -> None:
        self._lines += [*([""] if self._lines else []), painted(translated(title, self.lang), Tone.STRONG, self._color)]

    def usage(self, ctx: Any) -> None:
        title = translated(Message("Usage: "), self.lang)
        self._lines.append(
            f"{painted(title.rstrip(), Tone.STRONG, self._color)}{' ' * title.endswith(' ')}{usage(ctx)}"
        )

    def paragraphs(self, text: str) -> None:
        for paragraph in translated(text, self.lang).split("\n"):
            self._lines += [f"  {line}" for line in wrapped(paragraph, self._width - 2)]

    def gap(self) -> None:
        self._lines.append("")

    def examples(self, text: str) -> None:
        """Command lines with comments: beside them, or above them if one is too long for the page."""
        lines = translated(text, self.lang).splitlines()
        above = any("  #" in line and display_width(line) + 2 > self._width for line in lines)
        for words, mark, comment in (line.partition("  #") for line in lines):
            remark = painted(f"#{comment}" if above else mark + comment, Tone.DIM, self._color)
            if above:
                self._lines += [*([f"  {remark}"] if mark else ()), f"  {words.rstrip()}"]
            else:
                self._lines.append(f"  {words}{remark}")

    def rows(self, rows: Sequence[tuple[str, str]], first: int) -> None:
        """Names, and beside them their texts. A name that is wider than the first column has its own line."""
        for name, text in rows:
            body = wrapped(text, self._width - first - _GAP)
            gap = first - display_width(name)
            shown = f"  {painted(name, Tone.NOTE, self._color)}"
            self._lines.append(shown if gap < _GAP else f"{shown}{' ' * gap}{body.pop(0)}")
            self._lines += [f"  {' ' * first}{line}" for line in body]

    def options(self, heading: Message, params: Sequence[Any]) -> None:
        rows = [(spelling(param), describe(param, self.lang)) for param in params]
        self.heading(heading)
        self.rows(rows, min(_widest(rows), _FIRST_COLUMN, self._width // 3) + _GAP)


def render(
    command: Any, ctx: Any, lang: Language | None = None, width: int | None = None, *, color: bool = False
) -> str:
    """The help page of `command`."""
    page = _Page(lang, width, color)
    page.usage(ctx)
    page.gap()
    page.paragraphs(command.summary)
    if command.examples:
        page.heading(Message("Examples:"))
        page.examples(command.examples)
    if command.text:
        page.gap()
        page.paragraphs(command.text)
    groups: dict[Message, list[tuple[str, str]]] = {}
    for name, entry in getattr(command, "table", {}).items():
        groups.setdefault(entry.section or COMMANDS, []).append((name, translated(entry.summary, page.lang)))
    for section, rows in groups.items():
        page.heading(section)
        page.rows(rows, _widest([row for rows in groups.values() for row in rows]) + _GAP)
    for heading, params in sections(command, ctx):
        if heading is not SHARED:
            page.options(heading, params)
    page.gap()
    page.paragraphs(Message("Options of every command: {command}", command="atlctl options"))
    return page.text


def shared_options(command: Any, ctx: Any, *, color: bool) -> str:
    """The page of the options that every command has, which the program `command` takes, too."""
    page = _Page(None, None, color)
    page.options(SHARED, dict(sections(command, ctx))[SHARED])
    page.gap()
    page.paragraphs(
        Message("They are accepted before and after a command's name; -j and -o only if the command has them.")
    )
    return page.text


def sections(command: Any, ctx: Any) -> list[tuple[Message, list[Any]]]:
    """Parameters under their headings: arguments, options of the command, options every command has."""
    shared = (*EVERYWHERE, *_FOR_COMMANDS) if hasattr(command, "table") else EVERYWHERE
    found: dict[Message, list[Any]] = {ARGUMENTS: [], OPTIONS: [], SHARED: []}
    for param in command.get_params(ctx):
        if param.hidden:
            continue
        if param.param_type_name == "argument":
            found[ARGUMENTS].append(param)
        else:
            found[SHARED if key_of(param) in shared else OPTIONS].append(param)
    return [(heading, params) for heading, params in found.items() if params]


def key_of(param: Any) -> str:
    """The name of a parameter: its longest option without dashes, or its metavar."""
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
    """The description of a parameter, with its default."""
    text = translated(help_of(param), lang)
    default = param.default
    if param.show_default and isinstance(default, (str, int, float)) and not isinstance(default, bool) and default:
        value = f"{default:g}s" if param.metavar == "DURATION" else default
        text += translated(Message(" (default: {value})", value=value), lang)
    return text


def help_of(param: Any) -> str:
    """The text that a parameter was declared with; typer's copy of it is not a Message."""
    if key_of(param) == "help":
        return Message("show this help and exit")
    return param.type_descriptor.parameter_info.help or ""


def _widest(rows: Sequence[tuple[str, str]]) -> int:
    return max(display_width(name) for name, _ in rows)
