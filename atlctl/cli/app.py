"""The typer app: the one command table. Everything else (help, completion, reference) is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from atlctl import __version__
from atlctl.cli import options, runtime
from atlctl.cli.parser import Group, Lazy, new_app, parse_and_run
from atlctl.i18n import Message


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
        "run": Lazy(Message("Start a job on this machine."), options_first=True),
        "rm": Lazy(Message("Remove ended jobs on this machine, with their logs.")),
    }


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
        "run": Lazy(Message("Start a job on hosts, over SSH."), options_first=True),
        "rm": Lazy(Message("Remove ended jobs on hosts, with their logs.")),
    }


_LOOK, _DIAGNOSE, _ACT = Message("Look:"), Message("Diagnose:"), Message("Act:")
_JOBS, _TOOL = Message("Jobs:"), Message("Tool:")


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
            Message("List jobs with their state, workers and GPUs."), _LOOK, guide="kubernetes", aliases=("list",)
        ),
        "ps": Lazy(
            Message("List the workers of a job with their state and host."),
            _LOOK,
            guide="glossary",
            aliases=("workers", "pods"),
        ),
        "logs": Lazy(Message("Show the logs of many workers, merged by time."), _LOOK, guide="exec"),
        "top": Lazy(Message("Show GPUs, CPU and memory of all workers, live."), _LOOK),
        "events": Lazy(Message("Show the events of a job, its pods and their nodes."), _LOOK, guide="kubernetes"),
        "errors": Lazy(Message("Show the root cause of a failure: which rank, and why."), _DIAGNOSE),
        "stacks": Lazy(Message("Show what every rank is doing right now."), _DIAGNOSE),
        "slow": Lazy(Message("Show which rank or link makes a job slow, and why."), _DIAGNOSE, guide="slow-job"),
        "smoke": Lazy(Message("Test workers, network, storage and GPUs: which one is bad."), _DIAGNOSE),
        "record": Lazy(Message("Save logs, states and events while a job runs."), _DIAGNOSE),
        "report": Lazy(Message("Collect the evidence of a failure in one folder or archive."), _DIAGNOSE),
        "exec": Lazy(Message("Run a command on the selected workers at once."), _ACT, options_first=True),
        "shell": Lazy(Message("Open an interactive shell in one worker."), _ACT, guide="exec"),
        "cp": Lazy(Message("Copy files and folders to or from workers."), _ACT),
        "stop": Lazy(Message("Stop a job: show the plan, ask, save its logs, end it."), _ACT),
        "resume": Lazy(Message("Resume a suspended job."), _ACT, guide="stop"),
        "run": Lazy(
            Message("Wrap a launch script: check, run, find the cause."), _JOBS, options_first=True, guide="run"
        ),
        "rerun": Lazy(Message("Start the command of kept workers again."), _JOBS, guide="run"),
        "release": Lazy(Message("Let the kept workers of a job go."), _JOBS, guide="run"),
        "local": Lazy(_Local.summary, _JOBS, group=lambda: _local),
        "ssh": Lazy(_Ssh.summary, _JOBS, group=lambda: _ssh),
        "demo": Lazy(
            Message("Start a real failing job on this machine, and diagnose it."), _JOBS, guide="tutorial-local"
        ),
        "use": Lazy(Message("Choose the current job of this terminal."), _TOOL, guide="configuration"),
        "doctor": Lazy(Message("Check backend, identity, rights and tools; show the fixes."), _TOOL),
        "notify": Lazy(Message("Send a text to a chat, a mailbox or a webhook."), _TOOL, guide="run"),
        "help": Lazy(Message("Show the help of a command."), _TOOL, guide="README"),
        "options": Lazy(Message("Show the options that every command has."), _TOOL, guide="README"),
        "completion": Lazy(Message("Print the completion script for a shell."), _TOOL),
    }


app = new_app(cls=_Root)
_local: typer.Typer = new_app(cls=_Local, name="local")
_ssh: typer.Typer = new_app(cls=_Ssh, name="ssh")

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
        typer.echo(f"atlctl {__version__}")
        raise typer.Exit


@app.callback()
@_local.callback()
@_ssh.callback()
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
    """Shared options, accepted before a command's name and a group's; the parser merges them with those after it."""


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
