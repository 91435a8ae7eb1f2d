"""`atlctl smoke`: in seconds, which GPU, node, link, mount or rank is bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async
from atlctl.i18n import COMMA, LIST, Message, joined, language
from atlctl.jobs.errors import LEAVE_ONE_OUT, ExitCode, Unreachable, UsageError
from atlctl.jobs.naming import fold_names
from atlctl.jobs.selection import Selection, parse_numbers, resolve

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.smoke.telling import Words
    from atlctl.jobs.model import Job, Worker
    from atlctl.smoke.context import Options, Tier
    from atlctl.smoke.findings import Report
    from atlctl.smoke.run import Smoke

TIERS = ("quick", "standard", "deep")
#: Seconds for a whole run, where --timeout says nothing.
_SECONDS = {"quick": 120.0, "standard": 300.0, "deep": 1200.0}
#: Seconds that a run with a budget may take at least: a worker that does not answer takes some of them.
_BUDGETED = 30.0
_LIST = "list"
ALONE = {"--items": _LIST}


TEXT = Message(
    "Nothing is installed: a program is sent to the Python of each worker, and leaves no trace. With torch it also "
    "tests GPUs, collectives and DDP. While a training runs, it tests only facts, network and storage."
)
EXAMPLES = Message(
    """\
atlctl smoke train-7
atlctl smoke train-7 --net-only                      # only facts and network, also during a training
atlctl smoke train-7 --tier standard --mount /data
atlctl smoke train-7 --items gpus,mesh --budget 20s  # only these, as a check before a training starts
atlctl smoke train-7 --gpus worker-1:0,2 -o json
atlctl smoke train-7 --print-torchrun                # the torchrun command for the workers' environment"""
)


@options.selecting
def command(
    job: options.Job = None,
    job_option: options.JobOption = None,
    selection: options.Selected = options.NO_SELECTION,
    items: Annotated[
        str | None,
        typer.Option(
            "--items",
            metavar="CHECKS",
            help=Message("make only these checks (gpus,mesh); without a value, list the checks with their usual time"),
        ),
    ] = None,
    budget: Annotated[
        float | None,
        options.duration(
            "--budget", help=Message("begin no check that would usually not be done within this time; it is SKIPPED")
        ),
    ] = None,
    tier: Annotated[
        str,
        options.choice(
            "--tier",
            values=TIERS,
            help=Message("depth of the test: quick takes seconds, standard a minute, deep some minutes"),
        ),
    ] = "quick",
    timeout: Annotated[
        float | None,
        options.duration(
            "--timeout",
            help=Message(
                "time limit for the whole test (2m, 5m, 20m by tier; with --budget twice that, at least 30s); later "
                "checks are INCOMPLETE"
            ),
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            "--patience",
            min=1,
            max=100,
            metavar="FACTOR",
            help=Message("multiply all time limits for slow machines; a limit set with --timeout stays"),
        ),
    ] = 1,
    net_only: Annotated[
        bool, typer.Option("--net-only", help=Message("test only facts and network, without torch"))
    ] = False,
    no_gpu: Annotated[
        bool, typer.Option("--no-gpu", help=Message("use no GPU and start no ranks: facts, network and storage"))
    ] = False,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help=Message("also test busy GPUs, and during a training"))
    ] = False,
    gpus: Annotated[
        list[str] | None,
        typer.Option(
            "--gpus", metavar="WORKERS:GPUS", help=Message("test only these GPUs (worker-1:0,2); can be repeated")
        ),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="DIR", help=Message("also test this folder on all workers; can be repeated")),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help=Message("also exit with 1 for a warning, or for what was skipped or not judged")),
    ] = False,
    print_torchrun: Annotated[
        bool,
        typer.Option(
            "--print-torchrun", help=Message("test nothing; print the torchrun command for each worker's environment")
        ),
    ] = False,
    container: options.Container = None,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    if items == _LIST:
        return _list(output)
    _check(net_only=net_only, no_gpu=no_gpu, allow_busy=allow_busy, gpus=gpus, mount=mount, items=items)
    context().container = container
    chosen_items = _items(items)
    seconds = timeout or patience * _seconds(tier, chosen_items, budget)
    if print_torchrun:
        return run_async(lambda: _print_torchrun(job, job_option, selection, seconds, output))

    def wanted(found: Job) -> Options:
        from atlctl.cli.smoke.telling import own_busbw
        from atlctl.smoke.context import Options

        return Options(
            tier=cast("Tier", tier),
            net_only=net_only,
            items=chosen_items,
            gpu=False if no_gpu else None,
            allow_busy=allow_busy,
            gpus=_gpus(gpus, found) if gpus else None,
            mounts=tuple(mount or ()),
            timeout=seconds,
            budget=budget,
            patience=patience,
            busbw=own_busbw(),
        )

    async def run() -> int:
        source, found, chosen = await _chosen(job, job_option, selection, seconds)
        whole = selection.empty or selection.all
        return await _smoke(source, found, chosen, wanted(found), whole=whole, strict=strict, output=output)

    return run_async(run)


def _check(
    *,
    net_only: bool,
    no_gpu: bool,
    allow_busy: bool,
    gpus: Sequence[str] | None,
    mount: Sequence[str] | None,
    items: str | None,
) -> None:
    """Raises UsageError for options that contradict each other."""
    for narrow, wide in (("--no-gpu", no_gpu), ("--net-only", net_only)):
        for name, given in (("--allow-busy", allow_busy), ("--gpus", bool(gpus))):
            if wide and given:
                raise UsageError(
                    Message("'{narrow}' touches no GPU, and '{option}' is about GPUs", narrow=narrow, option=name),
                    LEAVE_ONE_OUT,
                )
    if net_only and items is not None:
        raise UsageError(Message("'--net-only' and '--items' both say what is tested"), LEAVE_ONE_OUT)
    if net_only and mount:
        raise UsageError(Message("'--net-only' tests no mount"), Message("leave out --net-only, or --mount"))
    for path in mount or ():
        if not path.startswith("/"):
            raise UsageError(
                Message("--mount {path}: a folder on the workers is needed, from its root", path=path), "--mount /data"
            )


def _items(text: str | None) -> tuple[str, ...]:
    """The checks that `--items` names, empty without it. Raises UsageError."""
    if text is None:
        return ()
    from atlctl.smoke.run import TITLES

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    see = Message("see: {command}", command="atlctl smoke --items")
    if unknown := [name for name in names if name not in TITLES]:
        raise UsageError(Message("--items: no such check '{name}'", name=unknown[0]), see)
    if not names:
        raise UsageError(Message("--items: at least one check is needed"), see)
    return names


def _seconds(tier: str, items: Sequence[str], budget: float | None) -> float:
    """The time limit of a run without `--timeout`: that of the deepest tier which the checks belong to."""
    from atlctl.smoke.run import items as known

    tiers = {tier, *(begins for step, begins in known() if step.name in items)}
    longest = max(_SECONDS[one] for one in tiers)
    return longest if budget is None else min(longest, max(_BUDGETED, 2 * budget))


def _list(output: str) -> int:
    """What `--items` shows without a value."""
    from atlctl.cli.smoke.telling import Words
    from atlctl.render.table import Column, Table, render_table
    from atlctl.smoke.run import items

    if output == "json":
        keys = ("check", "tier", "seconds", "purpose")
        told = [(step.name, tier, step.seconds, step.title) for step, tier in items()]
        say.document({"checks": [dict(zip(keys, one, strict=True)) for one in told]})
        return ExitCode.OK
    columns = [Column(Message("CHECK")), Column(Message("TIER")), Column(Message("SECONDS"), "right")]
    columns.append(Column(Message("LOOKS AT"), least=30))
    words = Words(language())
    rows = [[step.name, tier, f"{step.seconds:g}", words(step.title)] for step, tier in items()]
    say.out(render_table(Table(columns, rows), context().streams))
    return ExitCode.OK


def _gpus(texts: Sequence[str], job: Job) -> Mapping[str, Sequence[int]]:
    """`worker-1:0,2` as the GPUs of each worker. Raises UsageError, NothingMatched."""
    found: dict[str, list[int]] = {}
    for text in texts:
        who, colon, numbers = text.rpartition(":")
        if not colon or not who or not numbers:
            raise UsageError(
                Message("--gpus {value}: workers and their GPUs are needed", value=text), "--gpus worker-1:0,2"
            )
        chosen = [number for span in parse_numbers(numbers) for number in span if number < 1024]
        for worker in resolve(Selection(workers=(who,)), job):
            found.setdefault(worker.name, []).extend(number for number in chosen if number not in found[worker.name])
    return found


async def _chosen(
    argument: str | None, option: str | None, selection: Selection, timeout: float
) -> tuple[Backend, Job, Sequence[Worker]]:
    """The selected job and workers, at least one of which is alive, found within `timeout` seconds."""
    from atlctl.cli.target import backend, job_and_workers, say_guessed

    source = backend(argument, option)
    job, chosen = await job_and_workers(source, argument, option, selection, timeout)
    say_guessed(chosen)
    if not any(worker.state.active for worker in chosen):
        states = joined(dict.fromkeys(worker.state.label for worker in chosen), LIST)
        names = fold_names(worker.name for worker in chosen)
        raise Unreachable(
            Message("no running worker to test: {workers} ({states})", workers=names, states=states),
            f"atlctl errors {job.name}",
        )
    return source, job, chosen


async def _smoke(
    source: Backend, job: Job, chosen: Sequence[Worker], wanted: Options, *, whole: bool, strict: bool, output: str
) -> int:
    import asyncio

    from atlctl.cli.smoke.telling import Words
    from atlctl.smoke.run import Smoke, absent, names

    words = Words(language())
    executor = source.executor(job)
    living = [worker for worker in chosen if worker.state.active]
    seen: list[str] = []
    detail = ""

    def now(check: str, what: str) -> None:
        nonlocal detail
        detail = what
        if check not in seen:
            seen.append(check)

    def doing() -> str:
        if not seen:
            return Message("connecting to {workers}", workers=workers)
        what = Message("{check}: {what}", check=seen[-1], what=words.check(seen[-1]))
        return joined((what, detail), COMMA) if detail else what

    smoke = Smoke(executor, living, wanted, absent(job, chosen, whole=whole), now)
    workers = fold_names(worker.name for worker in living)

    def ending() -> None:
        if not context().reader_gone:
            say.line(Message("interrupted; ending the agents on {workers} (Ctrl-C leaves at once)", workers=workers))

    context().on_first = ending
    context().on_second = lambda: say.now(Message("agents may still run for a moment on {workers}", workers=workers))
    try:
        checks = len(names(wanted))
        with say.doing(doing, done=lambda: max(0, min(len(seen), checks) - 1), total=checks, limit=wanted.timeout):
            await smoke.run()
    except asyncio.CancelledError:
        if smoke.report.checks and not context().reader_gone:
            _tell(smoke, job, words, output, interrupted=True)
        raise
    finally:
        context().on_first = None
        await executor.aclose()
    _tell(smoke, job, words, output)
    return exit_code(smoke.report, strict=strict)


def exit_code(report: Report, *, strict: bool) -> ExitCode:
    """A fault counts most, and with `strict` whatever was not judged; then what was due and not tested."""
    from atlctl.smoke.findings import SmokeVerdict

    seen = {report.verdict, *(check.verdict for check in report.checks)}
    seen |= {SmokeVerdict(finding.severity) for finding in report.findings}
    allowed = {SmokeVerdict.PASS, SmokeVerdict.INCOMPLETE}
    if seen - allowed if strict else SmokeVerdict.FAIL in seen:
        return ExitCode.FAILED
    return ExitCode.INCOMPLETE if SmokeVerdict.INCOMPLETE in seen else ExitCode.OK


def _tell(smoke: Smoke, job: Job, words: Words, output: str, *, interrupted: bool = False) -> None:
    """The report, whole or as far as it got; and what may still run."""
    left = smoke.may_still_run()
    if output == "json":
        from atlctl.cli.smoke.telling import to_data

        data = {"job": job.name, "uid": job.uid, "complete": not interrupted, **to_data(smoke.report, left)}
        problem = {"kind": "interrupted", "message": Message("ended before all checks were made"), "hint": None}
        say.document(data, [problem] if interrupted else ())
    else:
        from atlctl.cli.smoke.telling import report_text

        if interrupted:
            say.line(Message("results so far:"))
        say.out(report_text(smoke.report, words, context().streams))
    if left:
        say.warning(Message("agents may still run on {names}", names=fold_names(left)))


async def _print_torchrun(
    argument: str | None, option: str | None, selection: Selection, timeout: float, output: str
) -> int:
    from atlctl.cli.smoke.torchrun import told

    source, job, chosen = await _chosen(argument, option, selection, timeout)
    executor = source.executor(job)
    try:
        return await told(executor, job, [worker for worker in chosen if worker.state.active], timeout, output)
    finally:
        await executor.aclose()
