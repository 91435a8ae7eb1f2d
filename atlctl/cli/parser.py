"""The command-line parser: typer's groups and commands with lazy loading, shared options and our own errors.

The one file that knows how typer works inside (0.29; pyproject.toml keeps it below 0.30, since what is overridden here
may change with any minor version). It changes three things:

- a command's module is imported only when that command is asked for;
- the shared options are accepted before and after a command's name;
- plain values (texts, numbers, flags) are converted here. typer converts through pydantic, which costs more CPU
  than the rest of the start and refuses arguments that are not valid UTF-8.

Of the parser's exceptions only some have public names: the others are known by their public fields.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from atlctl.cli import helptext, runtime
from atlctl.cli.helptext import EVERYWHERE, key_of
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import meant

_SHARED = (*EVERYWHERE, "job", "output")
_GIVEN = "atlctl.given"


def _plain(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` as typer calls it: a coroutine function runs in the event loop."""
    if not inspect.iscoroutinefunction(inspect.unwrap(command)):
        return command

    @wraps(command)
    def run(**given: Any) -> Any:
        return runtime.run_async(lambda: command(**given))

    return run


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet.

    `module`, by default that of its name in `cli.commands`, holds its function `command`, plain or `async`, and `TEXT`
    and `EXAMPLES` of its help page if it has any; `summary` is the line about it, `section` the heading above that
    line, `guide` the document (by default the group's, else the one of the command's name). `aliases` are understood,
    and not listed.
    `options_first`: options end at the first positional word, with which a command to run begins. `group`: instead of
    a module, builds a group of further commands.
    """

    summary: str = ""
    section: Message | None = None
    guide: str = ""
    aliases: tuple[str, ...] = ()
    options_first: bool = False
    group: Callable[[], typer.Typer] | None = None
    module: str = ""


class Commands(MutableMapping[str, Any]):
    """Command names to commands, imported when first asked for. Aliases are found, and never listed."""

    def __init__(self, path: str, guide: str, table: Mapping[str, Lazy], shared: Sequence[Any]) -> None:
        self._path, self._guide = path, guide
        self._table = table
        self._shared = [param for param in shared if key_of(param) in EVERYWHERE]
        self._aliases = {alias: name for name, entry in table.items() for alias in entry.aliases}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        name = self._aliases.get(key, key)
        if name not in self._loaded:
            self._loaded[name] = self._load(name, self._table[name])
        return self._loaded[name]

    def _load(self, name: str, entry: Lazy) -> Any:
        path = f"{self._path} {name}".strip()
        if entry.group is not None:
            return get_command(entry.group())
        module = importlib.import_module(entry.module or f"atlctl.cli.commands.{path.replace(' ', '_')}")
        # Words that are too many are refused in `parse_args`, in our words.
        settings = {"allow_interspersed_args": not entry.options_first, "allow_extra_args": True}
        single = new_app()
        single.command(name, cls=Command, help="", context_settings=settings)(_plain(module.command))
        command = get_command(single)
        assert isinstance(command, Command)
        command.path = path
        command.summary, command.guide = entry.summary, entry.guide or self._guide or name
        command.text, command.examples = getattr(module, "TEXT", ""), getattr(module, "EXAMPLES", "")
        command.alone = getattr(module, "ALONE", {})
        command.behind = getattr(module, "BEHIND", "")
        own = {key_of(param) for param in command.params}
        command.params += [copy.copy(param) for param in self._shared if key_of(param) not in own]
        _convert_plainly(command.params)
        return command

    def __setitem__(self, key: str, value: Any) -> None:
        self._loaded[key] = value

    def __delitem__(self, key: str) -> None:
        del self._loaded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def entry(self, name: str) -> Lazy:
        """The entry of a command, without importing it."""
        return self._table[self._aliases.get(name, name)]


class _Parser:
    """What `Command` and `Group` have in common."""

    #: The full name below `atlctl`.
    path: str = ""
    #: Its help page: one line, more about it, command lines to copy.
    summary: str = ""
    text: str = ""
    examples: str = ""
    #: Its document in both languages: a file name below `docs/LANGUAGE`, without the extension.
    guide: str = ""
    #: Options that need no value, and the value that they then have.
    alone: Mapping[str, str] = {}
    #: The argument that takes the words behind `--`, and no others; empty if there is none.
    behind: str = ""
    params: list[Any]

    def get_help_option(self, ctx: Any) -> Any:
        """The help option is made by typer, when it is first asked for."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        _convert_plainly([option])
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole help page is ours, and so is the decision on colours: typer would take them out."""
        ctx.color = True
        formatter.write(helptext.render(self, ctx, color=runtime.context().streams.stdout_color))


class Command(_Parser, TyperCommand):
    """One command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        behind: list[str] = []
        if self.behind and "--" in args:
            at = args.index("--")
            args, behind = args[:at], args[at + 1 :]
        valued = (
            f"{word}={self.alone[word]}" if word in self.alone and after[:1] in ("", "-") else word
            for word, after in zip(args, [*args[1:], ""], strict=False)
        )
        with _located(ctx):
            rest = super().parse_args(ctx, list(valued))
        if self.behind:
            rest, ctx.params[self.behind] = ctx.params[self.behind] or rest, behind
        if rest:
            raise UsageError(Message("too many arguments ({words})", words=" ".join(rest)), _see(f"atlctl {self.path}"))
        given = _merge_shared(self, ctx)
        own = {key_of(param): param for param in self.params}
        for key, value in given.items():
            if key not in own:
                raise UsageError(
                    Message("'--{option}' does not apply to 'atlctl {command}'", option=key, command=self.path),
                    _see(f"atlctl {self.path}"),
                )
            param = own[key]
            ctx.params[param.name] = value if key in EVERYWHERE else param.process_value(ctx, value)
        shared = {key: ctx.params.pop(own[key].name) for key in EVERYWHERE}
        runtime.start(
            self.path,
            output=next((str(ctx.params[p.name]) for k, p in own.items() if k == "output"), None),
            **{key: value for key, value in shared.items() if value is not None},
        )
        return rest


class Group(_Parser, TyperGroup):
    """A command that has commands. Subclasses name them in `table`, and themselves in `path`."""

    table: Mapping[str, Lazy] = {}
    #: Commands of other tools -> the words of the program that do the same: run, or only shown.
    same: Mapping[str, tuple[str, ...]] = {}
    shown: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.help = None
        self.commands = Commands(self.path, self.guide, self.table, self.params)
        _convert_plainly(self.params)

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self.table)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            typer.echo(ctx.get_help())
            raise typer.Exit
        with _located(ctx):
            rest = super().parse_args(ctx, args)
        _merge_shared(self, ctx)
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name in self.same:
            found: tuple[str | None, Any, list[str]] = ctx.parent.command.resolve_command(
                ctx.parent, [*self.same[name], *args[1:]]
            )
            return found
        try:
            return name, self.commands[name], args[1:]
        except KeyError:
            pass
        prefix = f"atlctl {self.path}".strip()
        unknown = Message("no such command '{command}'", command=f"{prefix} {name}")
        if name in self.shown:
            raise UsageError(unknown, shlex.join(["atlctl", *_instead(self.shown[name], args[1:])]))
        known = [*self.table, *(alias for entry in self.table.values() for alias in entry.aliases)]
        near = _nearest(name, known)
        hint = meant(f"{prefix} {near}") if near else _see(prefix)
        raise UsageError(unknown, hint)


def _instead(words: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """`words` with what was given in the place of JOB."""
    for word in words:
        yield from given if word == "JOB" and given else (word,)


@contextmanager
def _located(ctx: Any) -> Iterator[None]:
    """Some of the parser's exceptions do not say which command they are about."""
    try:
        yield
    except typer.TyperException as error:
        known: Any = error
        known.ctx = known.ctx or ctx
        raise


def new_app(**settings: Any) -> typer.Typer:
    """A typer app without typer's completion (its zsh script evaluates candidates), markup or boxes."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def parse_and_run(command: Any, args: Sequence[str]) -> int:
    """Parse `args`, run the command they name, return its exit code. Raises UsageError for bad command lines."""
    try:
        with command.make_context("atlctl", list(args), help_option_names=["-h", "--help"]) as ctx:
            result = command.invoke(ctx)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.TyperException as error:
        raise _usage_error(error) from error
    return result if isinstance(result, int) else 0


def _merge_shared(command: Any, ctx: Any) -> dict[str, Any]:
    """Collect the shared options given at this level with those given before; refuse two different values."""
    given: dict[str, Any] = ctx.meta.setdefault(_GIVEN, {})
    for param in command.params:
        key = key_of(param)
        source = ctx.get_parameter_source(param.name)
        if key not in _SHARED or source is None or source.name != "COMMANDLINE":
            continue
        value = ctx.params[param.name]
        if key not in given or isinstance(value, bool):
            given[key] = value
        elif isinstance(value, int):
            given[key] += value
        elif given[key] != value:
            raise UsageError(
                Message(
                    "'--{option}' is given twice with different values: '{before}' before the command's name "
                    "and '{after}' after it",
                    option=key,
                    before=given[key],
                    after=value,
                ),
                Message("give it once"),
            )
    return given


class _Plain:
    """Converts the words of one parameter. Stands in for typer's converter, with the same `coerce`."""

    def __init__(self, kind: type, parse: Callable[[str], Any] | None) -> None:
        # If a parser is given, its message describes the error.
        self._kind = kind if parse is None else str
        self._parse: Callable[[str], Any] = parse or kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 - typer passes it by name
        if param.multiple or param.nargs == -1:
            return () if value is None else tuple(self._one(word, param) for word in value)
        return None if value is None else self._one(value, param)

    def _one(self, word: Any, param: Any) -> Any:
        if not isinstance(word, str):
            return word
        try:
            value = self._parse(word)
        except ValueError as error:
            raise _invalid(word, param, _NEEDED.get(self._kind) or error.args[0]) from error
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if param.min is not None and value < param.min:
                raise _invalid(word, param, Message("at least {least}", least=param.min))
            if param.max is not None and value > param.max:
                raise _invalid(word, param, Message("at most {most}", most=param.max))
        return value


_NEEDED: Mapping[type, str] = {int: Message("a whole number is needed"), float: Message("a number is needed")}
_PLAIN: dict[Any, type] = {str: str, int: int, float: float, bool: bool, list[str]: str, list[int]: int}


def _convert_plainly(params: Sequence[Any]) -> None:
    for param in params:
        kind = _PLAIN.get(param.type_descriptor.annotation)
        parse = param.type_descriptor.parameter_info.parser
        if kind is not None or parse is not None:
            param.get_runtime_param = partial(_Plain, kind or str, parse)


def _spelled(param: Any) -> str:
    return Message("'{name}'", name=max(param.opts, key=len) if isinstance(param, TyperOption) else key_of(param))


def _invalid(word: str, param: Any, why: str) -> UsageError:
    return UsageError(
        Message("invalid value '{value}' for {option}: {why}", value=word, option=_spelled(param), why=why)
    )


def _see(name: str) -> Message:
    return Message("see: {command}", command=f"{name} -h")


def _usage_error(error: Any) -> UsageError:
    """The parser's exceptions in our words, with the next step as hint."""
    ctx = error.ctx
    name = f"atlctl {ctx.command.path}".strip()
    hint = _see(name)
    if hasattr(error, "possibilities"):  # there is no such option
        options = [opt for param in ctx.command.get_params(ctx) for opt in param.opts]
        near = _nearest(error.option_name, options)
        return UsageError(
            Message("no such option '{option}' for '{command}'", option=error.option_name, command=name),
            meant(near) if near else hint,
        )
    if hasattr(error, "param_type"):  # a parameter is missing
        missing = Message("{option} is missing", option=_spelled(error.param))
        return UsageError(missing, Message("usage: {usage}", usage=helptext.usage(ctx)))
    if hasattr(error, "option_name"):  # of a flag a value, of another option none
        given = next((param for param in ctx.command.get_params(ctx) if error.option_name in param.opts), None)
        if given is not None and (given.is_flag or given.count):
            return UsageError(Message("option '{option}' does not take a value", option=error.option_name), hint)
        return UsageError(Message("option '{option}' requires an argument", option=error.option_name), hint)
    if isinstance(ctx.command, Group):
        return UsageError(Message("missing command"), hint)
    message = error.format_message().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint)


def _nearest(word: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1)
    return found[0] if found else None
