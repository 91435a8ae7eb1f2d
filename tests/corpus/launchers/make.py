"""`python -m tests.corpus.launchers.make --python ENV/bin/python [NAME...]`: real failed jobs under other launchers.

ENV holds torch, deepspeed, accelerate, lightning, ray[train], openmpi and horovod; pdsh, sshd, munge and Slurm come
from Debian. NAME is a launcher, a fault or a case (`deepspeed_sigkill`); all by default. `--shift 1` moves each fault
to the next rank: cases to test on that were not seen before.

The truth is written by the fault, see `scripts/witness.py`, or by the maker that sends a signal. A case is kept only if
the event was written and the log has the words of the fault or of the launcher's report. `also_accepted` below adds
answers that a careful reader of this log would accept, each for a reason that is written into the case.

srun gets `-K` for the faults of `sites._KILLED`: without it, it waits for ever for a rank that sleeps. Ray is started
in a namespace with its own process numbers, as root: instances of Ray on one machine find each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.corpus import processes
from tests.corpus.launchers.sites import ALONE, SITES, SIZE, Job, Site, base_environment
from tests.corpus.running import Unfinished, read_lines
from tests.corpus.writing import replacing, stamp

DATA = Path(__file__).with_name("data")
SCRIPTS = Path(__file__).with_name("scripts")
#: Seconds that processes may go on after the launcher has ended.
LEFT = 5.0
_ADDRESS = "10.42.0.17"
_SOURCE = "written by the failing process just before it failed, or by the action from outside; never read from a log"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, in one rank unless `kind` is another. `shows` are words of the failing process, if it has any.

    `raises`: an exception ends the rank, so torch prints its rank in front of the traceback. `deed`: the signal that
    the maker sends to the rank, or to the launcher if `kind` is `external`.
    """

    name: str
    what: str
    category: str
    kind: Literal["rank", "ranks", "job", "external", "none"] = "rank"
    shows: str = ""
    raises: bool = False
    deed: signal.Signals | None = None
    words: tuple[str, ...] = ()


FAULTS = (
    Fault("exception", "ValueError", "python_exception", shows="ValueError: token id 50431", raises=True),
    Fault(
        "chinese_exception",
        "an exception class with a Chinese name",
        "python_exception",
        shows="样本校验失败: 第 3 步",
        raises=True,
    ),
    Fault("chained", "raise … from …", "python_exception", shows="ShardError: shard 3 is not valid", raises=True),
    Fault("cuda_oom", "torch.OutOfMemoryError", "cuda_oom", shows="OutOfMemoryError: CUDA out of memory", raises=True),
    Fault("exit_three", "sys.exit(3) after a line with the reason", "explicit_exit", shows="giving up"),
    Fault("exit_silent", "os._exit(7), nothing is printed", "explicit_exit"),
    Fault("sigkill", "SIGKILL from outside", "killed", deed=signal.SIGKILL),
    Fault("segfault", "a read of address 0", "native_crash", shows="Fatal Python error: Segmentation fault"),
    Fault("abort", "os.abort()", "native_crash", shows="Fatal Python error: Aborted"),
    Fault("sigterm", "SIGTERM to one rank from outside", "terminated", deed=signal.SIGTERM),
    Fault("launcher_sigterm", "SIGTERM to the launcher", "preemption", "external", deed=signal.SIGTERM),
    Fault(
        "launcher_sigint",
        "SIGINT to the launcher and its processes, as Ctrl-C sends it",
        "interrupted",
        "external",
        deed=signal.SIGINT,
    ),
    Fault(
        "loader_killed", "SIGKILL of a process of the data loader", "killed", shows="is killed by signal", raises=True
    ),
    Fault(
        "loader_exception",
        "an exception in a process of the data loader",
        "python_exception",
        shows="ShardError: sample 3 of shard-00017",
        raises=True,
    ),
    Fault("nan", "the loss is not a number", "numeric", shows="FloatingPointError: loss is nan", raises=True),
    Fault("missing_file", "a file is missing on one rank", "missing_file", shows="mean_std.json", raises=True),
    Fault(
        "size_mismatch",
        "one rank enters a collective with a larger tensor",
        "collective_mismatch",
        shows="third_party/gloo",
    ),
    Fault("key_error_all", "KeyError in the settings of all ranks", "python_exception", "job", "KeyError: 'optimizer'"),
    Fault(
        "bad_argument",
        "an argument that the script does not know",
        "bad_arguments",
        "job",
        "unrecognized arguments",
        words=("--warmup-ratio", "0.03"),
    ),
    Fault("import_error_all", "a package is missing", "import_error", "job", "No module named 'fused_rotary_kernels'"),
    Fault("hang", "one rank sleeps, the others' collective times out", "hang", shows="Timed out waiting"),
    Fault(
        "thread_dies",
        "a thread that reads ahead dies, its rank waits for ever",
        "python_exception",
        shows="IndexError: shard 40 of 40",
    ),
    Fault(
        "handled_sigkill",
        "one rank logs caught exceptions, another gets SIGKILL",
        "killed",
        shows="trying again",
        deed=signal.SIGKILL,
    ),
    Fault("two_fail", "two ranks raise in the same step", "python_exception", "ranks", "of step 3 has"),
    Fault("healthy", "caught exceptions are logged, the job succeeds", "success", "none", "trying again"),
)


@dataclass(slots=True)
class Outcome:
    """What a job left."""

    command: list[str]
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return b"".join(line for _, line in self.lines).decode(errors="replace")

    @property
    def flat(self) -> str:
        """The text without line ends: launchers wrap their sentences."""
        return " ".join(self.text.split())


def victims(fault: Fault, shift: int) -> list[int] | None:
    """The ranks of a fault; None for all."""
    if fault.kind in ("job", "external", "none"):
        return None
    first = (FAULTS.index(fault) * 3 + shift) % SIZE
    return sorted((first, (first + 1) % SIZE)) if fault.kind == "ranks" else [first]


def plan(site: Site, fault: Fault, ranks: list[int] | None) -> dict[str, Any]:
    """The plan for `scripts/witness.py`."""
    handled: list[int] = []
    if fault.name == "handled_sigkill" and ranks:
        handled = [(ranks[0] + 1) % SIZE, (ranks[0] + 2) % SIZE]
    elif fault.name == "healthy":
        handled = list(range(SIZE))
    return {
        "fault": fault.name,
        "ranks": ranks,
        "handled": handled,
        "together": fault.kind == "ranks",
        "format": site.format,
    }


def execute(site: Site, fault: Fault, ranks: list[int] | None, folder: Path, environment: Path) -> Outcome:
    """Runs the job to its end. Raises Unfinished if it goes on for too long. Leaves no process behind."""
    mark = uuid.uuid4().hex
    shutil.copytree(SCRIPTS, folder / "workspace", ignore=shutil.ignore_patterns("__*"))
    for name in ("home", "tmp", "workspace/events"):
        (folder / name).mkdir()
    (folder / "venv").symlink_to(environment)
    text = json.dumps(plan(site, fault, ranks), ensure_ascii=False)
    (folder / "workspace" / "plan.json").write_text(text, encoding="utf-8")
    variables = base_environment(folder, mark)
    job = Job(folder, fault.name, mark, variables)
    begin = time.monotonic()
    try:
        with site.servers(job) as more:
            outcome = Outcome(site.command(job, [*fault.words]))
            try:
                _run(site, fault, ranks, job, {**variables, **more}, outcome)
            except Unfinished as error:
                raise _with_log(error, outcome) from None
    finally:
        gone = processes.kill_all(mark)
    if not gone:
        raise Unfinished("processes are left")
    outcome.seconds = time.monotonic() - begin
    events = [json.loads(path.read_text()) for path in (folder / "workspace" / "events").glob("event.*.json")]
    outcome.events = sorted([*outcome.events, *events], key=lambda event: event["at_true"])
    return outcome


def _with_log(error: Unfinished, outcome: Outcome) -> Unfinished:
    """The error with the end of the log, for the one who mends the case."""
    return Unfinished(f"{error}\n{outcome.text[-3000:]}")


def _run(
    site: Site, fault: Fault, ranks: list[int] | None, job: Job, variables: dict[str, str], outcome: Outcome
) -> None:
    launcher = subprocess.Popen(
        outcome.command,
        cwd=job.workspace,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    reader = threading.Thread(target=read_lines, args=(launcher, outcome.lines, 0), daemon=True)
    reader.start()
    deadline = time.monotonic() + site.limit
    try:
        if fault.deed is not None:
            outcome.events.append(_act(site, fault, fault.deed, ranks, job, launcher, deadline))
        outcome.exit_code = launcher.wait(max(0.1, deadline - time.monotonic()))
        # The ranks may outlive their launcher, and print. A container that was terminated ends with its launcher.
        reader.join(0.2 if fault.name == "launcher_sigterm" else LEFT)
    except subprocess.TimeoutExpired:
        raise Unfinished(f"runs for more than {site.limit:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            launcher.kill()
        processes.kill_all(job.mark)
        launcher.wait()
        reader.join(5)
        assert launcher.stdout is not None
        launcher.stdout.close()


def _act(
    site: Site,
    fault: Fault,
    deed: signal.Signals,
    ranks: list[int] | None,
    job: Job,
    launcher: subprocess.Popen[bytes],
    deadline: float,
) -> dict[str, Any]:
    """Waits until all ranks are at the step, then sends the signal; the event."""
    events = job.workspace / "events"
    while len(reached := list(events.glob("reached.*.json"))) < SIZE:
        if time.monotonic() > deadline or launcher.poll() is not None:
            raise Unfinished("the ranks never came to the step")
        time.sleep(0.02)
    event: dict[str, Any] = {"event": fault.name}
    pid = launcher.pid
    if ranks is not None:
        known = [json.loads(path.read_text()) for path in reached]
        event = next(one for one in known if one["rank"] == ranks[0])
        pid = _outer(job.mark, event["pid"])
    event = {"pid": pid, **event, "event": fault.name, "at_true": time.time()}
    if fault.name == "launcher_sigint":
        for _ in range(site.interrupts):
            os.killpg(launcher.pid, deed)  # as Ctrl-C on a terminal
            time.sleep(0.3)
    else:
        os.kill(pid, deed)
    return event


def _outer(mark: str, pid: int) -> int:
    """The maker's number of a process that may have its number in a namespace."""
    for process in processes.of_run(mark):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/status").read_text().split("\n")
            numbers = next(line for line in lines if line.startswith("NSpid:")).split()
            if numbers[-1] == str(pid):
                return process.pid
    raise Unfinished(f"there is no process {pid}")


def truth_of(site: Site, fault: Fault, ranks: list[int] | None, outcome: Outcome) -> dict[str, Any]:
    """The truth as the score reads it. Raises Unfinished if the fault did not happen as planned."""
    planned = 0 if fault.kind == "none" else len(ranks or [0])
    if len(outcome.events) < planned or (ranks is not None and len(outcome.events) > planned):
        raise Unfinished(f"{len(outcome.events)} events, {planned} were planned")
    graceful = fault.kind == "external" and any(words in outcome.flat for words in site.signals)
    if not graceful and (fault.kind == "none") != (outcome.exit_code == 0):
        raise Unfinished(f"exit code {outcome.exit_code}")
    said = fault.shows and fault.shows in outcome.text
    if not said and fault.kind != "external" and not any(words in outcome.flat for words in site.deaths):
        raise Unfinished("the log has no words of the fault or of the launcher")
    truth: dict[str, Any] = {"kind": fault.kind, "category": fault.category}
    places = [_place(site, event) for event in outcome.events if "rank" in event]
    if fault.kind == "rank":
        truth |= places[0]
    elif fault.kind == "ranks":
        truth["any_of"] = places
    also = also_accepted(site, fault, outcome)
    if also:
        truth |= {"also": [answer for answer, _ in also], "also_why": [why for _, why in also]}
    return truth


def _place(site: Site, event: dict[str, Any]) -> dict[str, Any]:
    place = {"node": site.node(event["rank"])}
    if site.hosts:
        place["log"] = "worker-0"
    return place | {
        "local_rank": event["local_rank"],
        "global_rank": event["rank"],
        "at_true_unix": event["at_true"],
    }


def also_accepted(site: Site, fault: Fault, outcome: Outcome) -> list[tuple[str, str]]:
    """Other answers to accept, each with the reason: facts of the launcher and of this log, never of an answer."""
    text = outcome.text
    match fault.kind:
        case "external":
            if not any(words in text for words in (*site.signals, "KeyboardInterrupt")):
                return [(answer, "no process prints anything of the signal") for answer in ("undecided", "none")]
        case "job":
            if text.count(fault.shows) < 2:
                why = "the launcher passes on the failure of one rank only"
                return [("rank", why), ("undecided", f"{why}, which may have no name")]
        case "none":
            if "x across cluster]" in text:
                return [("undecided", "Ray folds equal lines of ranks: no line shows that this rank went on")]
        case "ranks":
            also = [("one_of", "both failed within one step, so that the earlier one may be called the first")]
            if len({site.node(event["rank"]) for event in outcome.events}) > 1:
                also.append(("undecided", "they ran on different hosts, and the log has no common clock"))
            return also
        case "rank":
            return _also_of_rank(site, fault, outcome)
    return []


def _also_of_rank(site: Site, fault: Fault, outcome: Outcome) -> list[tuple[str, str]]:
    event, text = outcome.events[0], outcome.flat
    if fault.name == "hang":
        return [("undecided", "the sleeping rank prints nothing; only the others' timeouts are in the log")]
    if fault.name == "size_mismatch":
        return [("undecided", "the ranks' errors give two sizes, not which of them is wrong")]
    if fault.raises:
        if fault.shows in text:
            return []
        return [("undecided", "the launcher passes on the failure of another rank only")]
    if any(words.format(**event) in text for words in site.names) or (site.tags and fault.shows):
        return []
    also = [("undecided", "the launcher does not name the rank that ended, and the rank prints nothing with its name")]
    if site.hosts:
        also.append((f"node:{site.node(event['rank'])}", "the launcher names the host only"))
    return also


def write(site: Site, fault: Fault, outcome: Outcome, truth: dict[str, Any], folder: Path, target: Path) -> None:
    """Writes the case: `case.json` and one log with a stamp in front of each line."""
    clean = cleaner(folder)
    lines = [(moment, clean(line)) for moment, line in outcome.lines]
    words = outcome.command[len(ALONE) :] if outcome.command[: len(ALONE)] == [*ALONE] else outcome.command
    command = clean(" ".join(words).encode()).decode()
    document = {
        "name": target.name,
        "launcher": site.name,
        "fault": fault.name,
        "what": fault.what,
        "nodes": list(site.hosts) or ["worker-0"],
        "nproc_per_node": [SIZE // (len(site.hosts) or 1)] * (len(site.hosts) or 1),
        "command": command,
        "exit_code": outcome.exit_code,
        "seconds": round(outcome.seconds, 1),
        "truth": truth,
        "injected_events": outcome.events,
        "truth_source": _SOURCE,
    }
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / "worker-0.ts.log").write_bytes(b"".join(stamp(moment) + line for moment, line in lines))
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (target / "case.json").write_text(text + "\n", encoding="utf-8")


def cleaner(folder: Path) -> Callable[[bytes], bytes]:
    """Replaces this machine's paths, names and addresses."""
    pairs = {
        str(folder / "workspace"): "/workspace",
        str(folder / "workspace" / "horovodrun.py"): "/opt/venv/bin/horovodrun",
        str(folder / "tmp"): "/tmp",
        str(folder / "venv"): "/opt/venv",
        str(Path(folder, "venv").resolve()): "/opt/venv",
        str(folder): "/tmp",
        str(Path(folder, "venv", "bin", "python").resolve().parent.parent): "/usr/local",
    }
    host = socket.gethostname()
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    replaced = replacing(pairs, {host, socket.getfqdn()} - {"localhost"}, "worker-0")

    def clean(line: bytes) -> bytes:
        line = replaced(line).replace(f"prterun-{host}-".encode(), b"prterun-worker-0-")
        line = line.replace(b"host      : localhost", b"host      : worker-0")  # torchrun's, without a name service
        for address in found:
            line = line.replace(address.encode(), _ADDRESS.encode())
        return line

    return clean


def make(site: Site, fault: Fault, shift: int, environment: Path, out: Path) -> float:
    """Runs the job and writes its case to `out`; seconds. Raises Unfinished, then nothing is written."""
    ranks = victims(fault, shift)
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        outcome = execute(site, fault, ranks, folder, environment)
        try:
            truth = truth_of(site, fault, ranks, outcome)
        except Unfinished as error:
            raise _with_log(error, outcome) from None
        write(site, fault, outcome, truth, folder, out / f"{site.name}_{fault.name}")
    return outcome.seconds


def main(words: Sequence[str] | None = None) -> int:
    """The program; 1 if a case did not go as planned."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.launchers.make", description="make cases anew")
    parser.add_argument("names", nargs="*", metavar="NAME", help="launchers, faults or cases; all by default")
    parser.add_argument("--python", type=Path, required=True, help="python of the environment with the launchers")
    parser.add_argument("--shift", type=int, default=0, help="move each fault to a later rank")
    parser.add_argument("--out", type=Path, default=DATA, metavar="DIR", help="folder of the cases")
    options = parser.parse_args(words)
    # A shell starts programs in the background with SIGINT ignored, and all jobs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = options.python.absolute().parent.parent
    failed = 0
    known = set()
    for site in SITES:
        for fault in FAULTS:
            names = {site.name, fault.name, f"{site.name}_{fault.name}"}
            known |= names
            if fault.name in site.skips or (options.names and not names & set(options.names)):
                continue
            try:
                seconds = make(site, fault, options.shift, environment, options.out)
                print(f"{site.name}_{fault.name}: {seconds:.1f} s", flush=True)
            except Unfinished as error:
                failed += 1
                print(f"{site.name}_{fault.name}: not kept: {error}", file=sys.stderr, flush=True)
    if unknown := set(options.names) - known:
        parser.error(f"no such launcher, fault or case: {', '.join(sorted(unknown))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
