"""The typer app: the one command table. Everything else (help, completion, reference) is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from atlctl.cli import options, runtime
from atlctl.cli.parser import Group, Lazy, new_app, parse_and_run
from atlctl.i18n import Message

_COMMANDS = "atlctl.cli.commands"


class _Local(Group):
    summary = Message("Start and remove jobs on this machine.")
    examples = Message(
        """\
atlctl local run --workers 4 -- python3 "$PWD/train.py"
atlctl local rm train-7"""
    )
    path = "local"
    guide = "local-jobs"
    same: Mapping[str, tuple[str, ...]] = {"ls": ("jobs", "--backend", "local")}
    table: Mapping[str, Lazy] = {
        "run": Lazy(f"{_COMMANDS}.local_run", options_first=True, summary=Message("Start a job on this machine.")),
        "rm": Lazy(f"{_COMMANDS}.local_rm", summary=Message("Remove ended jobs on this machine, with their logs.")),
    }


def _local_app() -> typer.Typer:
    return _local


class _Ssh(Group):
    summary = Message("Start and remove jobs on hosts, over SSH.")
    examples = Message(
        """\
atlctl ssh run --hostfile hosts -- torchrun --nnodes 2 train.py
atlctl ssh rm train-7"""
    )
    path = "ssh"
    guide = "ssh"
    table: Mapping[str, Lazy] = {
        "run": Lazy(f"{_COMMANDS}.ssh_run", options_first=True, summary=Message("Start a job on hosts, over SSH.")),
        "rm": Lazy(f"{_COMMANDS}.ssh_rm", summary=Message("Remove ended jobs on hosts, with their logs.")),
    }


def _ssh_app() -> typer.Typer:
    return _ssh


_LOOK, _DIAGNOSE, _ACT, _JOBS, _TOOL = (
    Message("Look:"),
    Message("Diagnose:"),
    Message("Act:"),
    Message("Jobs:"),
    Message("Tool:"),
)


class _Root(Group):
    summary = Message("See, run, diagnose and stop distributed PyTorch training jobs.")
    text = Message("'atlctl COMMAND -h' explains a command.")
    examples = Message(
        """\
atlctl jobs                   # which jobs there are
atlctl errors train-7         # which rank failed first, and why
atlctl exec --all nvidia-smi  # one command on all workers of the job
atlctl demo                   # all of this on a real job on this machine"""
    )
    shown: Mapping[str, tuple[str, ...]] = {
        "kill": ("stop", "JOB"),
        "delete": ("stop", "JOB", "--delete"),
        "version": ("--version",),
    }
    table: Mapping[str, Lazy] = {
        "jobs": Lazy(
            f"{_COMMANDS}.jobs",
            section=_LOOK,
            guide="kubernetes",
            aliases=("list",),
            summary=Message("List jobs with their state, workers and GPUs."),
        ),
        "ps": Lazy(
            f"{_COMMANDS}.ps",
            section=_LOOK,
            guide="glossary",
            aliases=("workers", "pods"),
            summary=Message("List the workers of a job with their state and host."),
        ),
        "logs": Lazy(
            f"{_COMMANDS}.logs",
            section=_LOOK,
            guide="exec",
            summary=Message("Show the logs of many workers, merged by time."),
        ),
        "top": Lazy(
            f"{_COMMANDS}.top", section=_LOOK, summary=Message("Show GPUs, CPU and memory of all workers, live.")
        ),
        "events": Lazy(
            f"{_COMMANDS}.events",
            section=_LOOK,
            guide="kubernetes",
            summary=Message("Show the events of a job, its pods and their nodes."),
        ),
        "errors": Lazy(
            f"{_COMMANDS}.errors",
            section=_DIAGNOSE,
            summary=Message("Show the root cause of a failure: which rank, and why."),
        ),
        "stacks": Lazy(
            f"{_COMMANDS}.stacks", section=_DIAGNOSE, summary=Message("Show what every rank is doing right now.")
        ),
        "slow": Lazy(
            f"{_COMMANDS}.slow",
            section=_DIAGNOSE,
            guide="slow-job",
            summary=Message("Show which rank or link makes a job slow, and why."),
        ),
        "smoke": Lazy(
            f"{_COMMANDS}.smoke",
            section=_DIAGNOSE,
            summary=Message("Test workers, network, storage and GPUs: which one is bad."),
        ),
        "record": Lazy(
            f"{_COMMANDS}.record", section=_DIAGNOSE, summary=Message("Save logs, states and events while a job runs.")
        ),
        "report": Lazy(
            f"{_COMMANDS}.report",
            section=_DIAGNOSE,
            summary=Message("Collect the evidence of a failure in one folder or archive."),
        ),
        "exec": Lazy(
            f"{_COMMANDS}.exec",
            section=_ACT,
            options_first=True,
            summary=Message("Run a command on the selected workers at once."),
        ),
        "shell": Lazy(
            f"{_COMMANDS}.shell",
            section=_ACT,
            guide="exec",
            summary=Message("Open an interactive shell in one worker."),
        ),
        "cp": Lazy(f"{_COMMANDS}.cp", section=_ACT, summary=Message("Copy files and folders to or from workers.")),
        "stop": Lazy(
            f"{_COMMANDS}.stop", section=_ACT, summary=Message("Stop a job: show the plan, ask, save its logs, end it.")
        ),
        "resume": Lazy(f"{_COMMANDS}.resume", section=_ACT, guide="stop", summary=Message("Resume a suspended job.")),
        "run": Lazy(
            f"{_COMMANDS}.run",
            section=_JOBS,
            options_first=True,
            guide="run",
            summary=Message("Wrap a launch script: check, run, find the cause."),
        ),
        "rerun": Lazy(
            f"{_COMMANDS}.rerun",
            section=_JOBS,
            guide="run",
            summary=Message("Start the command of kept workers again."),
        ),
        "release": Lazy(
            f"{_COMMANDS}.release", section=_JOBS, guide="run", summary=Message("Let the kept workers of a job go.")
        ),
        "local": Lazy(group=_local_app, section=_JOBS, summary=_Local.summary),
        "ssh": Lazy(group=_ssh_app, section=_JOBS, summary=_Ssh.summary),
        "demo": Lazy(
            f"{_COMMANDS}.demo",
            section=_JOBS,
            guide="tutorial-local",
            summary=Message("Start a real failing job on this machine, and diagnose it."),
        ),
        "use": Lazy(
            f"{_COMMANDS}.use",
            section=_TOOL,
            guide="configuration",
            summary=Message("Choose the current job of this terminal."),
        ),
        "doctor": Lazy(
            f"{_COMMANDS}.doctor",
            section=_TOOL,
            summary=Message("Check backend, identity, rights and tools; show the fixes."),
        ),
        "help": Lazy(
            f"{_COMMANDS}.help", section=_TOOL, guide="README", summary=Message("Show the help of a command.")
        ),
        "options": Lazy(
            f"{_COMMANDS}.options",
            section=_TOOL,
            guide="README",
            summary=Message("Show the options that every command has."),
        ),
        "completion": Lazy(
            f"{_COMMANDS}.completion", section=_TOOL, summary=Message("Print the completion script for a shell.")
        ),
    }


app = new_app(cls=_Root)
_local = new_app(cls=_Local, name="local")
_ssh = new_app(cls=_Ssh, name="ssh")

Backend = Annotated[
    str | None, options.choice("--backend", values=options.BACKENDS, help=Message("the backend to use"))
]
Output = Annotated[str | None, options.output(*options.FORMATS)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help=Message("print no notes or summaries on stderr"))]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help=Message("print more on stderr (-vv: even more)"))
]
Debug = Annotated[bool, typer.Option("--debug", help=Message("print all details of a failure, with traceback"))]
Color = Annotated[
    str | None,
    options.choice(
        "--color",
        values=("always", "never", "auto"),
        help=Message("use colours (default: NO_COLOR, FORCE_COLOR, else on a terminal)"),
    ),
]


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
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help=Message("show the version and exit"))
    ] = False,
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

    Words that belong to the command of `exec`, `run`, `local run` or `ssh run` do not count. Reads the generated table,
    since the command's module may be what failed.
    """
    from atlctl.cli.completion.complete import load_table, position

    here = position(load_table(), list(argv))
    return here.path, here.output
