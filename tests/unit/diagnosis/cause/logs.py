"""Workers' logs, built line by line in the format of torch 2.13, and the engine's results for them.

Times are seconds after START. Addresses, ranks and pids follow from the worker's index: worker 1 with two processes has
the ranks 2 and 3, and its processes have the pids 6 and 7, like on all other workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.logfacts import LogFacts, LogReader
from atlctl.diagnosis.result import Cause, Diagnosis, Proof
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.torchelastic import ErrorRecord

#: 2026-11-20T17:45:00Z.
START = 1795196700.0
API = "torch/distributed/elastic/multiprocessing/api.py"
SITE = "/opt/venv/lib/python3.11/site-packages/torch/distributed"

OWN = "ValueError: bad magic in shard 3"
CLOSED = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [{address}]:29826."
RESET = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [{address}]:30924: Connection reset by peer."
WAITED = (
    "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"
)
MESH = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused"
STORE = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: "
    "The connection to the C10d store has failed. See inner exception for details."
)
NOBODY_CAME = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
NCCL_REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:3356, remote process exited or there "
    "was a network error, NCCL version 2.27.5"
)


@cache
def matcher() -> Matcher:
    """The built-in signatures."""
    return Matcher(builtin().signatures)


def address(index: int) -> str:
    """The address of worker `index`."""
    return f"10.42.{index}.17"


def closed_by(index: int) -> str:
    """gloo's error after a process of worker `index` has ended."""
    return CLOSED.format(address=address(index))


class Log:
    """One worker's log. `stamped`: as with `kubectl logs --timestamps`. `ahead`: seconds by which its clock is fast."""

    def __init__(
        self, index: int = 0, *, processes: int = 2, world: int = 4, stamped: bool = True, ahead: float = 0.0
    ) -> None:
        self.index = index
        self.name = f"worker-{index}"
        self.processes = processes
        self.world = world
        self.stamped = stamped
        self.ahead = ahead
        self.pid = 6
        self.lines: list[str] = []
        self.entries: list[tuple[int, int, str, float]] = []

    @property
    def ranks(self) -> range:
        return range(self.index * self.processes, (self.index + 1) * self.processes)

    def say(self, at: float, *lines: str) -> Log:
        """Add lines unchanged."""
        for line in lines:
            self.lines.append(f"{self._stamp(at)}{line}" if self.stamped else line)
        return self

    def start(self, at: float = 0.0, steps: int = 3, named: Sequence[int] | None = None) -> Log:
        """The processes log their ranks and train. `named`: local ranks that log their rank; None: all."""
        for local, rank in enumerate(self.ranks):
            if named is None or local in named:
                self._info(at, f"rank {rank} of {self.world}: local rank {local} on {self.name}")
        for step in range(steps):
            for _ in self.ranks:
                self._info(at + 0.1 * (step + 1), f"step {step}/300 loss 1.5")
        return self

    def trace(self, at: float, local: int, *errors: str, prefix: bool = True, place: int = 20) -> Log:
        """An uncaught traceback of one process. Several errors are a chain, first raised first."""
        before = f"[rank{self.ranks[local]}]: " if prefix else ""
        for number, error in enumerate(errors):
            if number:
                told = "During handling of the above exception, another exception occurred:"
                self.say(at, before.rstrip(), f"{before}{told}", before.rstrip())
            self.say(at, f"{before}Traceback (most recent call last):")
            self.say(at, f'{before}  File "/job/train.py", line {place}, in main', f"{before}    step()")
            if "gloo" in error or "NCCL" in error:
                inner = f'  File "{SITE}/distributed_c10d.py", line 3252, in all_reduce'
                self.say(at, f"{before}{inner}", f"{before}    work.wait()")
            self.say(at, *(f"{before}{line}" for line in error.split("\n")))
        return self

    def watchdog(
        self,
        at: float,
        local: int,
        *,
        seq: int = 81,
        enqueued: int = 82,
        operation: str = "ALLREDUCE",
        elements: int = 8,
    ) -> Log:
        """NCCL's watchdog times out on a collective in which this rank waits."""
        rank = self.ranks[local]
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        work = (
            f"WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000)"
        )
        return self.say(
            at,
            self._cpp(at, rank, f"[Rank {rank}] Watchdog caught collective operation timeout: {work} "
                                "ran for 600045 milliseconds before timing out."),
            self._cpp(at, rank, f"{group} failure detected by watchdog at work sequence id: {seq} PG status: last "
                                f"enqueued work: {enqueued}, last completed work: {seq - 1}"),
            self._cpp(at, rank, f"{group} To avoid data inconsistency, we are taking the entire process down."),
        )  # fmt: skip

    def counters(self, at: float, local: int, *, enqueued: int) -> Log:
        """A rank's answer to a peer's signal to dump: its own counters."""
        rank = self.ranks[local]
        text = (
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from rank "
            "0 and we will try our best to dump the debug info. "
            f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}."
        )
        return self.say(at, self._cpp(at, rank, text))

    def agent(self, at: float) -> Log:
        """torchrun's first lines."""
        text = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
        self._agent(at, text, "W", "torch/distributed/run.py", 766)
        return self

    def closing(self, at: float, *locals_: int) -> Log:
        """The agent sends SIGTERM to processes that are still running."""
        for local in locals_:
            self._agent(at, f"Sending process {self.pid + local} closing signal SIGTERM", "W", API, 1028)
        return self

    def forced(self, at: float, local: int) -> Log:
        """A process did not end on SIGTERM."""
        text = f"Unable to shutdown process {self.pid + local} via 15, forcefully exiting via 9"
        self._agent(at, text, "W", API, 1047)
        return self

    def failed(self, at: float, local: int, code: int = 1) -> Log:
        """The agent's report of the first ended process."""
        text = (
            f"failed (exitcode: {code}) local_rank: {local} (pid: {self.pid + local}) of binary: /opt/venv/bin/python"
        )
        self._agent(at, text, "E", API, 1002)
        return self

    def summary(self, at: float, *entries: tuple[int, int, str]) -> Log:
        """torchrun's summary: entries are (local rank, exit code, text); the first is its root cause."""
        self._agent_trace(at, "launcher/api.py", "launch_agent")
        self.say(at, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED")
        self.say(at, "-" * 60, "Failures:")
        for number, entry in enumerate(entries[1:], 1):
            self._entry(at, number, *entry)
        if len(entries) == 1:
            self.say(at, "  <NO_OTHER_FAILURES>")
        self.say(at, "-" * 60, "Root Cause (first observed failure):")
        self._entry(at, 0, *entries[0])
        return self.say(at, "=" * 60)

    def ended(self, at: float, local: int = 0, code: int = 1, text: str = "", closed: Sequence[int] = ()) -> Log:
        """All output of an agent after `local` has failed: signals to `closed`, its report and the summary."""
        self.closing(at, *closed)
        self.failed(at + 0.05, local, code)
        others = [(other, -15, "") for other in closed]
        return self.summary(at + 0.1, (local, code, text), *others)

    def signalled(self, at: float, number: int = 15) -> Log:
        """The agent gets an external signal."""
        self._agent(at, f"Received {number} death signal, shutting down workers", "W", "agent/server/api.py", 753)
        self.closing(at, *range(self.processes))
        self._agent_trace(at + 0.05, "agent/server/api.py", "_invoke_run")
        name = "torch.distributed.elastic.multiprocessing.api.SignalException"
        return self.say(at + 0.05, f"{name}: Process 1 got signal: {number}")

    def agent_died(self, at: float, *errors: str) -> Log:
        """The agent's own traceback. Several errors are a chain."""
        for number, error in enumerate(errors):
            if number:
                self.say(at, "", "The above exception was the direct cause of the following exception:", "")
            self._agent_trace(at, "agent/server/api.py", "_rendezvous")
            self.say(at, error)
        return self

    def restarted(self, by: int = 20) -> Log:
        """The next processes get other pids."""
        self.pid += by
        return self

    def facts(self) -> LogFacts:
        """The facts that the engine reads from the log."""
        reader = LogReader(matcher())
        for number, line in enumerate(self.lines, 1):
            reader.feed(number, line.encode())
        return reader.facts()

    def evidence(self, **values: Any) -> WorkerEvidence:
        return WorkerEvidence(self.name, self.index, self.facts(), **values)

    def _entry(self, at: float, number: int, local: int, code: int, text: str) -> None:
        signals = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -15: "SIGTERM", -7: "SIGBUS"}
        name = signals.get(code, "")
        wordless = (
            f"Signal {-code} ({name}) received by PID {self.pid + local}"
            if code < 0
            else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        )
        time = datetime.fromtimestamp(int(START + at + self.ahead), UTC).strftime("%Y-%m-%d_%H:%M:%S")
        shown = "\n  ".join((text or wordless).split("\n"))
        self.say(
            at,
            f"[{number}]:",
            f"  time      : {time}",
            f"  host      : {self.name}",
            f"  rank      : {self.ranks[local]} (local_rank: {local})",
            f"  exitcode  : {code} (pid: {self.pid + local}) {f' ({name})' if name else ''}",
            "  error_file: <N/A>",
            *f"  traceback : {shown}".split("\n"),
        )

    def _agent_trace(self, at: float, file: str, function: str) -> None:
        self.say(
            at, "Traceback (most recent call last):", f'  File "{SITE}/run.py", line 1032, in <module>', "    main()"
        )
        self.say(
            at, f'  File "{SITE}/{"" if file.startswith("launcher") else "elastic/"}{file}", line 194, in {function}'
        )
        self.say(at, "    return what()")

    def _agent(self, at: float, text: str, level: str, file: str, line: int) -> None:
        moment = datetime.fromtimestamp(START + at + self.ahead, UTC)
        self.say(at, f"{level}{moment:%m%d %H:%M:%S}.{moment.microsecond // 1000:03d}000 1 {file}:{line}] {text}")

    def _cpp(self, at: float, rank: int, text: str) -> str:
        moment = datetime.fromtimestamp(START + at + self.ahead, UTC)
        return f"[rank{rank}]:[E{moment:%m%d %H:%M:%S}.123456789 ProcessGroupNCCL.cpp:683] {text}"

    def _info(self, at: float, text: str) -> None:
        moment = datetime.fromtimestamp(START + at + self.ahead, UTC)
        self.say(at, f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d} INFO train: {text}")

    def _stamp(self, at: float) -> str:
        moment = datetime.fromtimestamp(START + at + self.ahead, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}000Z "


def victim(index: int, at: float = 1.1, *, of: int = 0, **options: Any) -> Log:
    """A worker with two processes that lost their connection to worker `of`."""
    log = Log(index, **options).start()
    log.trace(at, 0, closed_by(of)).trace(at + 0.01, 1, closed_by(of))
    return log.ended(at + 0.5, 0, closed=(1,))


def diagnosed(*workers: Log | WorkerEvidence, **job: Any) -> Diagnosis:
    """The diagnosis of a job with these workers."""
    evidence = tuple(item.evidence() if isinstance(item, Log) else item for item in workers)
    return diagnose(JobEvidence(evidence, **job), matcher())


def culprit(found: Diagnosis) -> tuple[str, str | None, int | None, str]:
    """Verdict, worker, local rank and confidence of the one root cause."""
    (cause,) = found.root_causes
    return str(found.verdict), cause.worker, cause.local_rank, str(cause.confidence)


def candidates(found: Diagnosis) -> list[tuple[str | None, int | None]]:
    """Worker and local rank of each candidate."""
    return [(cause.worker, cause.local_rank) for cause in found.candidates]


def proofs(found: Diagnosis) -> list[Proof]:
    """All proofs in a diagnosis."""
    causes: tuple[Cause, ...] = (*found.root_causes, *found.candidates, *found.earlier)
    shown = [proof for cause in causes for proof in cause.proofs]
    others = [*(group.proof for group in found.cascade), *(worker.proof for worker in found.workers)]
    return shown + [proof for proof in others if proof is not None]


def unread(index: int, **values: Any) -> WorkerEvidence:
    """A worker with an unreadable log."""
    return WorkerEvidence(f"worker-{index}", index, None, **values)


def error_files(index: int, records: Mapping[tuple[int, int], ErrorRecord]) -> dict[str, ErrorRecord]:
    """Error files by (attempt, local rank) at their usual paths."""
    folder = f"/tmp/torchelastic_a{index}/run_b"
    return {f"{folder}/attempt_{attempt}/{local}/error.json": item for (attempt, local), item in records.items()}
