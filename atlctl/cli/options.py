"""Options that several commands share, as annotated types, and what is made of their values.

A command declares `job: JobOption = None`. Help texts come from the catalogue, by the option's name. Kinds of values
are told by the metavar, which completion reads too: JOB, WORKER, WORKERS, PATH, DIR, DURATION, or `one|two|three`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from atlctl.jobs.errors import UsageError

if TYPE_CHECKING:
    from atlctl.jobs.selection import Selection

BACKENDS = ("local", "kubernetes", "ssh")
FORMATS = ("table", "wide", "json", "yaml", "name")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smhd]?)", re.ASCII)


def one_of(*values: str) -> Callable[[str], str]:
    """A parser that accepts exactly `values`."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)} is needed")
        return text

    return parse


def choice(*names: str, values: tuple[str, ...]) -> typer.models.OptionInfo:
    """The option `names` (`"-o", "--output"`) whose value is one of `values`."""
    option: typer.models.OptionInfo = typer.Option(*names, parser=one_of(*values), metavar="|".join(values))
    return option


def output(*formats: str) -> typer.models.OptionInfo:
    """`-o/--output` with these formats: `output: Annotated[str, options.output("table", "json")] = "table"`."""
    return choice("-o", "--output", values=formats)


def parse_duration(text: str) -> float:
    """Seconds in `10`, `1.5s`, `2m`, `1h`, `1d`; 0 is allowed. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("a duration is needed, like 10, 1.5s, 2m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_timeout(text: str) -> float:
    """Seconds, as `parse_duration`, but more than 0. Raises ValueError."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError("must be more than 0; without the option there is no limit")
    return seconds


def duration(*names: str, zero: bool = False) -> typer.models.OptionInfo:
    """An option whose value is a duration, handed to the command as float seconds."""
    option: typer.models.OptionInfo = typer.Option(
        *names, parser=parse_duration if zero else parse_timeout, metavar="DURATION"
    )
    return option


Job = Annotated[str | None, typer.Argument(metavar="JOB")]
JobOption = Annotated[str | None, typer.Option("-j", "--job", metavar="JOB")]
AllWorkers = Annotated[bool, typer.Option("--all")]
Workers = Annotated[list[str] | None, typer.Option("-w", "--workers", metavar="WORKERS")]
Rank = Annotated[list[str] | None, typer.Option("--rank", metavar="RANKS")]
Role = Annotated[list[str] | None, typer.Option("--role", metavar="ROLE")]
Failed = Annotated[bool, typer.Option("--failed")]
Exclude = Annotated[list[str] | None, typer.Option("-x", "--exclude", metavar="WORKERS")]
Yes = Annotated[bool, typer.Option("-y", "--yes")]
DryRun = Annotated[bool, typer.Option("--dry-run")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", metavar="NAMESPACE")]
KubeContext = Annotated[str | None, typer.Option("--context", metavar="CONTEXT")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", metavar="PATH")]
Hostfile = Annotated[str | None, typer.Option("--hostfile", metavar="PATH")]
Selector = Annotated[str | None, typer.Option("-l", "--selector", metavar="SELECTOR")]
Container = Annotated[str | None, typer.Option("-c", "--container", metavar="CONTAINER")]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces")]
Timeout = Annotated[float | None, duration("--timeout")]
ConnectTimeout = Annotated[float | None, duration("--connect-timeout")]


def selection(
    *,
    all_workers: bool = False,
    workers: list[str] | None = None,
    rank: list[str] | None = None,
    role: list[str] | None = None,
    failed: bool = False,
    exclude: list[str] | None = None,
) -> Selection:
    """The selection that the options state, unresolved."""
    from atlctl.jobs.selection import Selection

    return Selection(
        all=all_workers,
        workers=tuple(workers or ()),
        ranks=tuple(rank or ()),
        roles=tuple(role or ()),
        failed=failed,
        exclude=tuple(exclude or ()),
    )


def stated_job(argument: str | None, option: str | None = None, env: Mapping[str, str] = os.environ) -> str | None:
    """The job that was named: the argument or `-j` (both only when they agree), else ATLCTL_JOB, else None.

    Raises UsageError where the two differ or a name is empty.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"two jobs are named: '{argument}' and '{option}' (-j)", "name one job")
    named = argument if argument is not None else option
    if named == "":
        raise UsageError("the job's name is empty", "see: atlctl jobs")
    return named if named is not None else env.get("ATLCTL_JOB") or None
