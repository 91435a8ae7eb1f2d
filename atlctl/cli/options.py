"""Options that several commands share, as annotated types, and the parsing of their values.

A command declares `job: JobOption = None`. Help texts are in English at the options, and are shown in the reader's
language. The kind of a value is given by the metavar, which completion reads, too: JOB, WORKER, WORKERS, PATH, DIR,
DURATION, or `one|two|three`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.errors import LEAVE_ONE_OUT, UsageError
from atlctl.jobs.selection import Selection

T = TypeVar("T")

#: The parameter `selection` of a command, see `selecting`, and its value without any of the options.
Selected = Selection
NO_SELECTION = Selection()
BACKENDS = ("local", "kubernetes", "ssh")
FORMATS = ("table", "wide", "json", "yaml", "name")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smhd]?)", re.ASCII)


def one_of(*values: str) -> Callable[[str], str]:
    """A parser that accepts exactly `values`."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(Message("one of {values} is needed", values=joined(values, LIST)))
        return text

    return parse


def choice(*names: str, values: tuple[str, ...], help: str) -> typer.models.OptionInfo:  # noqa: A002 - as typer's
    """The option `names` (`"-o", "--output"`) whose value is one of `values`."""
    option: typer.models.OptionInfo = typer.Option(*names, parser=one_of(*values), metavar="|".join(values), help=help)
    return option


def output(*formats: str) -> typer.models.OptionInfo:
    """`-o/--output` with these formats: `output: Annotated[str, options.output("table", "json")] = "table"`."""
    return choice("-o", "--output", values=formats, help=Message("output format"))


def parse_duration(text: str) -> float:
    """Seconds in `10`, `1.5s`, `2m`, `1h`, `1d`; 0 is allowed. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(Message("a duration is needed, like 10, 1.5s, 2m or 1h"))
    return float(match[1]) * _SECONDS[match[2]]


def parse_timeout(text: str) -> float:
    """Seconds, as `parse_duration`, but more than 0. Raises ValueError."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError(Message("must be more than 0; without the option there is no limit"))
    return seconds


def duration(*names: str, help: str, zero: bool = False) -> typer.models.OptionInfo:  # noqa: A002 - as typer's
    """An option whose value is a duration, handed to the command as float seconds."""
    option: typer.models.OptionInfo = typer.Option(
        *names, parser=parse_duration if zero else parse_timeout, metavar="DURATION", help=help
    )
    return option


CMD = Message("the command and its arguments, passed as is, without a shell")
Job = Annotated[str | None, typer.Argument(metavar="JOB", help=Message("the job (default: the current one)"))]
OwnJob = Annotated[str | None, typer.Argument(metavar="JOB", help=Message("the job (default: that of this worker)"))]
JobOption = Annotated[str | None, typer.Option("-j", "--job", metavar="JOB", help=Message("the job"))]
AllWorkers = Annotated[bool, typer.Option("--all", help=Message("all workers"))]
Workers = Annotated[
    list[str] | None,
    typer.Option(
        "-w",
        "--workers",
        metavar="WORKERS",
        help=Message("indexes, ranges, names or globs of workers (0,2-5 or worker-[0-3]); can be repeated"),
    ),
]
Rank = Annotated[
    list[str] | None, typer.Option("--rank", metavar="RANKS", help=Message("the workers of these global ranks (8-15)"))
]
Role = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE", help=Message("the workers of this role; can be repeated"))
]
Failed = Annotated[bool, typer.Option("--failed", help=Message("workers in state Failed or Held"))]
Exclude = Annotated[
    list[str] | None,
    typer.Option("-x", "--exclude", metavar="WORKERS", help=Message("all but these workers (same form as -w)")),
]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", min=1, metavar="N", help=Message("that attempt of 'run' or 'rerun', from 1")),
]
Watch = Annotated[bool, typer.Option("--watch", help=Message("show it again when something changes"))]
Yes = Annotated[bool, typer.Option("-y", "--yes", help=Message("do not ask for confirmation"))]
DryRun = Annotated[bool, typer.Option("--dry-run", help=Message("only show what would be done"))]
Namespace = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        help=Message("the Kubernetes namespace (default: the context's, or the pod's own)"),
    ),
]
KubeContext = Annotated[
    str | None, typer.Option("--context", metavar="CONTEXT", help=Message("the kubeconfig context"))
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="PATH",
        help=Message("the kubeconfig file (default: KUBECONFIG, ~/.kube/config, or the pod's service account)"),
    ),
]
Hostfile = Annotated[
    str | None,
    typer.Option(
        "--hostfile",
        metavar="PATH",
        help=Message("hosts to reach over SSH, one a line: gpu[01-16], user@gpu1:2222, gpu1 slots=8"),
    ),
]
Selector = Annotated[
    str | None,
    typer.Option(
        "-l", "--selector", metavar="SELECTOR", help=Message("treat the pods that match this label selector as one job")
    ),
]
Container = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--container",
        metavar="CONTAINER",
        help=Message("the container of each worker (default: the one that trains)"),
    ),
]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help=Message("list the jobs of all namespaces"))]
Timeout = Annotated[
    float | None, duration("--timeout", help=Message("end the command on a worker after this time (10, 1.5s, 2m, 1h)"))
]
WorkerTimeout = Annotated[float, duration("--timeout", help=Message("time limit for each worker (10, 1.5s, 2m, 1h)"))]
ConnectTimeout = Annotated[
    float | None, duration("--connect-timeout", help=Message("time limit for reaching a worker"))
]
SavedLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help=Message(
            "read saved logs instead of a job: a folder (WORKER.log, error files), a file, or - (stdin), also "
            "compressed (.gz, .zst); can be repeated"
        ),
    ),
]
NoPySpy = Annotated[bool, typer.Option("--no-pyspy", help=Message("take no Python stacks with py-spy"))]
NoFiles = Annotated[bool, typer.Option("--no-files", help=Message("with --from: read only logs, no error files"))]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help=Message("the job's name (default: a new one)"))
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K=V", help=Message("set this variable in every worker; can be repeated")),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        min=1,
        max=65535,
        metavar="PORT",
        help=Message("MASTER_PORT of the workers (default: 29500 if it is free, else another)"),
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help=Message("print the job's name and leave it running"))]
Command = Annotated[list[str], typer.Argument(metavar="CMD", help=CMD)]
EndedJobs = Annotated[list[str], typer.Argument(metavar="JOB", help=Message("the jobs to remove"))]
NoPrefix = Annotated[bool, typer.Option("--no-prefix", help=Message("do not prefix lines with the worker's name"))]
Raw = Annotated[bool, typer.Option("--raw", help=Message("show control characters unchanged on a terminal"))]


def selection(
    all_workers: AllWorkers = False,
    workers: Workers = None,
    rank: Rank = None,
    role: Role = None,
    failed: Failed = False,
    exclude: Exclude = None,
) -> Selection:
    """The selection that the options state, unresolved."""
    return Selection(
        all=all_workers,
        workers=tuple(workers or ()),
        ranks=tuple(rank or ()),
        roles=tuple(role or ()),
        failed=failed,
        exclude=tuple(exclude or ()),
    )


def selecting(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a command the options that select workers, in the place of its parameter `selection`."""
    own = inspect.signature(selection, eval_str=True).parameters
    stated: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        stated += own.values() if parameter.name == "selection" else (parameter,)

    @functools.wraps(command)
    def parsed(**given: Any) -> T:
        chosen = selection(**{name: given.pop(name) for name in own})
        return command(**given, selection=chosen)

    # Read by typer.
    vars(parsed)["__signature__"] = inspect.Signature(stated)
    parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in stated}
    return parsed


def refuse_job(argument: str | None, option: str | None) -> None:
    """Raises UsageError if a job is named beside saved logs."""
    if argument is not None or option is not None:
        raise UsageError(
            Message("a job and saved logs (--from) are both named"),
            Message("name one; several logs: --from A --from B, or a folder"),
        )


def not_together(one: str, other: str) -> UsageError:
    return UsageError(Message("'--{one}' and '--{other}' do not go together", one=one, other=other), LEAVE_ONE_OUT)


def stated_job(argument: str | None, option: str | None = None, env: Mapping[str, str] = os.environ) -> str | None:
    """The job that was named: the argument or `-j` (both only when they agree), else ATLCTL_JOB, else None.

    Raises UsageError where the two differ or a name is empty.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(
            Message("two jobs are named: '{argument}' and '{option}' (-j)", argument=argument, option=option),
            Message("name one job"),
        )
    named = argument if argument is not None else option
    if named == "":
        raise UsageError(Message("the job's name is empty"), Message("see: {command}", command="atlctl jobs"))
    return named if named is not None else env.get("ATLCTL_JOB") or None
