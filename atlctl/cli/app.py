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
    summary = Message("Jobs on this machine: real process groups with the platform's environment.")
    examples = Message(
        """\
atlctl local run --workers 4 -- python3 "$PWD/train.py"
atlctl local rm train-7"""
    )
    path = "local"
    guide = "local-jobs"
    table: Mapping[str, Lazy] = {
        "run": Lazy(f"{_COMMANDS}.local_run", options_first=True, summary=Message("Start a job on this machine.")),
        "rm": Lazy(f"{_COMMANDS}.local_rm", summary=Message("Remove ended jobs of this machine, with their logs.")),
    }


def _local_app() -> typer.Typer:
    return _local


class _Ssh(Group):
    summary = Message("Jobs on hosts that are reached over SSH.")
    examples = Message(
        """\
atlctl ssh run --hostfile hosts -- torchrun --nnodes 2 train.py
atlctl ssh rm train-7"""
    )
    path = "ssh"
    guide = "ssh"
    table: Mapping[str, Lazy] = {
        "run": Lazy(
            f"{_COMMANDS}.ssh_run", options_first=True, summary=Message("Start a job on the hosts of a list, over SSH.")
        ),
        "rm": Lazy(f"{_COMMANDS}.ssh_rm", summary=Message("Remove ended jobs of hosts, with their logs there.")),
    }


def _ssh_app() -> typer.Typer:
    return _ssh


class _Root(Group):
    summary = Message("See, run, diagnose and stop distributed PyTorch training jobs.")
    text = Message("'atlctl COMMAND -h' explains a command. The options below are accepted before and after its name.")
    examples = Message(
        """\
atlctl jobs                        # which jobs there are
atlctl errors train-7              # why the job failed, and which worker failed first
atlctl exec --all nvidia-smi       # one command on every worker of the current job
atlctl demo                        # all of it on a real job on this machine"""
    )
    table: Mapping[str, Lazy] = {
        "jobs": Lazy(
            f"{_COMMANDS}.jobs",
            guide="kubernetes",
            summary=Message("List jobs: kind, name, state, workers ready and expected, GPUs, age."),
        ),
        "ps": Lazy(
            f"{_COMMANDS}.ps",
            guide="glossary",
            aliases=("workers",),
            summary=Message(
                "List the workers of a job: index, node rank, state and reason, host, age. Missing ones by number."
            ),
        ),
        "exec": Lazy(
            f"{_COMMANDS}.exec", options_first=True, summary=Message("Run a command on the selected workers at once.")
        ),
        "shell": Lazy(f"{_COMMANDS}.shell", guide="exec", summary=Message("Open an interactive shell in one worker.")),
        "logs": Lazy(
            f"{_COMMANDS}.logs",
            guide="exec",
            summary=Message("Show the logs of many workers, merged by time, with a prefix for each."),
        ),
        "top": Lazy(
            f"{_COMMANDS}.top",
            summary=Message(
                "Show GPUs, CPU and memory of all workers live; what is idle, slow or broken is marked, and on top."
            ),
        ),
        "errors": Lazy(
            f"{_COMMANDS}.errors",
            summary=Message(
                "Tell the root cause of a failure: which worker and rank failed first, why, with the evidence."
            ),
        ),
        "stacks": Lazy(
            f"{_COMMANDS}.stacks",
            summary=Message("Show what every rank is doing right now: equal stacks folded, the odd one first."),
        ),
        "smoke": Lazy(
            f"{_COMMANDS}.smoke",
            summary=Message(
                "Test workers, network, storage and GPUs in seconds: which node, link, mount, GPU or rank is bad."
            ),
        ),
        "record": Lazy(
            f"{_COMMANDS}.record",
            summary=Message("Follow a job's logs, states and events to disk; tell the root cause at its end."),
        ),
        "events": Lazy(
            f"{_COMMANDS}.events",
            guide="kubernetes",
            summary=Message("Show the events of a job, its pods and their nodes, oldest first."),
        ),
        "report": Lazy(
            f"{_COMMANDS}.report",
            summary=Message(
                "Collect everything that tells why a job failed, in one folder or archive with a page to read."
            ),
        ),
        "cp": Lazy(f"{_COMMANDS}.cp", summary=Message("Copy files and folders to or from workers.")),
        "stop": Lazy(
            f"{_COMMANDS}.stop", summary=Message("Stop a job: show the plan, ask, save its logs, end its workers.")
        ),
        "resume": Lazy(
            f"{_COMMANDS}.resume",
            guide="stop",
            summary=Message("Start a suspended job again: show the plan, ask, take the stop back."),
        ),
        "local": Lazy(group=_local_app, summary=_Local.summary),
        "ssh": Lazy(group=_ssh_app, summary=_Ssh.summary),
        "use": Lazy(
            f"{_COMMANDS}.use",
            guide="configuration",
            summary=Message("Choose the current job of this terminal, show or forget it."),
        ),
        "demo": Lazy(
            f"{_COMMANDS}.demo",
            guide="tutorial-local",
            summary=Message("Start a real failing torchrun job on this machine and show every main command on it."),
        ),
        "doctor": Lazy(
            f"{_COMMANDS}.doctor",
            summary=Message("Check which backend is used and as whom, what is allowed, what is missing; with the fix."),
        ),
        "completion": Lazy(f"{_COMMANDS}.completion", summary=Message("Print the completion script for a shell.")),
    }


app = new_app(cls=_Root)
_local = new_app(cls=_Local, name="local")
_ssh = new_app(cls=_Ssh, name="ssh")

Backend = Annotated[str | None, options.choice("--backend", values=options.BACKENDS, help=Message("where jobs live"))]
Output = Annotated[str | None, options.output(*options.FORMATS)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help=Message("no notes and summaries on stderr"))]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help=Message("say more on stderr; twice for even more"))
]
Debug = Annotated[
    bool, typer.Option("--debug", help=Message("everything that is known about a failure, with traceback"))
]
Color = Annotated[
    str | None,
    options.choice(
        "--color",
        values=("always", "never", "auto"),
        help=Message("colours (without it: NO_COLOR, FORCE_COLOR, else on a terminal)"),
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

    Words that belong to the command of `exec`, `local run` or `ssh run` do not count. Reads the generated table, since
    the command's module may be what failed.
    """
    from atlctl.cli.completion.complete import load_table, position

    here = position(load_table(), list(argv))
    return here.path, here.output
