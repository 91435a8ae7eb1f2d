"""The typer app: the one command table. Everything else (help, completion, reference) is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from atlctl.cli import options, runtime
from atlctl.cli.parser import Group, Lazy, new_app, parse_and_run

_COMMANDS = "atlctl.cli.commands"


class _Local(Group):
    path = "local"
    table: Mapping[str, Lazy] = {
        "run": Lazy(f"{_COMMANDS}.local_run", options_first=True),
        "rm": Lazy(f"{_COMMANDS}.local_rm"),
    }


def _local_app() -> typer.Typer:
    return _local


class _Ssh(Group):
    path = "ssh"
    table: Mapping[str, Lazy] = {
        "run": Lazy(f"{_COMMANDS}.ssh_run", options_first=True),
        "rm": Lazy(f"{_COMMANDS}.ssh_rm"),
    }


def _ssh_app() -> typer.Typer:
    return _ssh


class _Root(Group):
    table: Mapping[str, Lazy] = {
        "jobs": Lazy(f"{_COMMANDS}.jobs"),
        "ps": Lazy(f"{_COMMANDS}.ps", aliases=("workers",)),
        "exec": Lazy(f"{_COMMANDS}.exec", options_first=True),
        "shell": Lazy(f"{_COMMANDS}.shell"),
        "logs": Lazy(f"{_COMMANDS}.logs"),
        "top": Lazy(f"{_COMMANDS}.top"),
        "errors": Lazy(f"{_COMMANDS}.errors"),
        "stacks": Lazy(f"{_COMMANDS}.stacks"),
        "smoke": Lazy(f"{_COMMANDS}.smoke"),
        "record": Lazy(f"{_COMMANDS}.record"),
        "events": Lazy(f"{_COMMANDS}.events"),
        "report": Lazy(f"{_COMMANDS}.report"),
        "cp": Lazy(f"{_COMMANDS}.cp"),
        "stop": Lazy(f"{_COMMANDS}.stop"),
        "resume": Lazy(f"{_COMMANDS}.resume"),
        "local": Lazy(group=_local_app),
        "ssh": Lazy(group=_ssh_app),
        "demo": Lazy(f"{_COMMANDS}.demo"),
        "doctor": Lazy(f"{_COMMANDS}.doctor"),
        "completion": Lazy(f"{_COMMANDS}.completion"),
    }


app = new_app(cls=_Root, no_args_is_help=True)
_local = new_app(cls=_Local, name="local", no_args_is_help=True)
_ssh = new_app(cls=_Ssh, name="ssh", no_args_is_help=True)

Backend = Annotated[str | None, options.choice("--backend", values=options.BACKENDS)]
Output = Annotated[str | None, options.output(*options.FORMATS)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet")]
Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True)]
Debug = Annotated[bool, typer.Option("--debug")]
Color = Annotated[str | None, options.choice("--color", values=("always", "never", "auto"))]


def _version(asked: bool) -> None:
    if asked:
        from atlctl import __version__

        typer.echo(f"atlctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    job: options.JobOption = None,
    output: Output = None,
    backend: Backend = None,
    namespace: options.Namespace = None,
    context: options.KubeContext = None,
    kubeconfig: options.Kubeconfig = None,
    selector: options.Selector = None,
    hostfile: options.Hostfile = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    debug: Debug = False,
    color: Color = None,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version)] = False,
) -> None:
    """Shared options, accepted before a command's name; the parser merges them with those after it."""


@_local.callback()
@_ssh.callback()
def _group_root(
    job: options.JobOption = None,
    output: Output = None,
    backend: Backend = None,
    namespace: options.Namespace = None,
    context: options.KubeContext = None,
    kubeconfig: options.Kubeconfig = None,
    selector: options.Selector = None,
    hostfile: options.Hostfile = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    debug: Debug = False,
    color: Color = None,
) -> None:
    """The same shared options between `local` or `ssh` and the command's name."""


def run(argv: Sequence[str]) -> int:
    """Run the command line `argv` (without the program's name); returns the exit code."""
    command: Any = get_command(app)
    return runtime.guard(argv, lambda: parse_and_run(command, argv), peek=lambda: peek(argv))


def peek(argv: Sequence[str]) -> tuple[str, str | None]:
    """The command and the value of `-o` in a command line that was not understood.

    Words that belong to the command of `exec`, `local run` or `ssh run` do not count. Reads the generated table, since
    the command's module may be what failed.
    """
    from atlctl.cli.completion.complete import load_table, position

    here = position(load_table(), list(argv))
    return here.path, here.output
