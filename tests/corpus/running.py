"""Runs one case: starts its workers, does to them what is planned, keeps what they print with its time of arrival."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus import network, processes
from tests.corpus.case import ON_PROCESSES, Case, Outside
from tests.corpus.network import Place

#: Seconds that a case may take, from the first start to the last end.
LIMIT = 60.0
#: The step at which all processes must be before something is done from outside.
MARK_STEP = 3

_SCRIPTS = tuple(Path(__file__).with_name(name) for name in ("train.py", "reading.py", "runtime.py"))
_STYLES = Path(__file__).with_name("styles")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "ATLCTL_TEST_ID")
_SIGNALS = {
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
    "interrupt_process": signal.SIGINT,
    "hangup": signal.SIGHUP,
    "quit": signal.SIGQUIT,
    "kill_agent": signal.SIGKILL,
    "kill_process": signal.SIGKILL,
    "terminate_process": signal.SIGTERM,
    "freeze": signal.SIGSTOP,
}


class Unfinished(RuntimeError):
    """The case did not go as planned; nothing of it may be kept."""


@dataclass(slots=True)
class Run:
    """One run of a case. The folders of the workers lie in `folder`."""

    case: Case
    folder: Path
    places: Sequence[Place]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    commands: dict[str, list[str]] = field(default_factory=dict)
    lines: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def workspace(self, worker: str) -> Path:
        """The worker's working folder: no worker sees another's files."""
        return self.folder / "workspace" / worker

    def temporary(self, worker: str) -> Path:
        """The worker's TMPDIR."""
        return self.folder / "tmp" / worker

    def elastic(self, worker: str) -> Path:
        """The worker's `--log-dir`, where the case has one."""
        return self.folder / "elastic" / worker

    @property
    def started(self) -> list[str]:
        return [name for index, name in enumerate(self.case.workers()) if index not in self.case.absent]


def execute(case: Case, folder: Path, places: Sequence[Place]) -> Run:
    """Runs the case to its end. Raises Unfinished where it goes on for too long. Leaves no process behind."""
    run = Run(case, folder, places)
    if case.own_network and not places[0].prefix:
        raise Unfinished(f"{case.name}: only with --namespaces")
    (folder / "events").mkdir()
    for index in range(len(case.processes)):
        _furnish(run, index)
    begin = time.monotonic()
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    readers = []
    try:
        for index, name in sorted(enumerate(case.workers()), key=lambda pair: case.late.get(pair[0], 0)):
            if index in case.absent:
                continue
            time.sleep(max(0, begin + case.late.get(index, 0) - time.monotonic()))
            run.temporary(name).mkdir(parents=True)
            run.commands[name] = _command(run, index)
            job = subprocess.Popen(
                [*places[index].prefix, *run.commands[name]],
                cwd=run.workspace(name),
                env=_environment(run, index),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            jobs[name] = job
            lines = run.lines.setdefault(name, [])
            ahead = int(case.skew.get(index, 0) * 1e9)
            reader = threading.Thread(target=read_lines, args=(job, lines, ahead), daemon=True)
            reader.start()
            readers.append(reader)
        if case.outside:
            _act(run, case.outside, begin + LIMIT)
        cut_off = _cut_off(case)
        for name in sorted(jobs, key=lambda name: name in cut_off):
            if name in cut_off:
                processes.kill_worker(run.mark, name)
            try:
                run.exit_codes[name] = jobs[name].wait(max(0.1, begin + LIMIT - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Unfinished(f"{case.name}: {name} still runs after {LIMIT:.0f} s\n{_tails(run)}") from None
    finally:
        gone = processes.kill_all(run.mark)
        for job in jobs.values():
            job.wait()
        for reader in readers:
            reader.join(5)
        for job in jobs.values():
            assert job.stdout is not None
            job.stdout.close()
    if not gone:
        raise Unfinished(f"{case.name}: processes are left")
    run.seconds = time.monotonic() - begin
    run.exit_codes = {name: run.exit_codes[name] for name in run.started}
    events = [_event(case, path) for path in (folder / "events").glob("event.*.json")]
    run.events = sorted(events, key=lambda event: event["at_true"])
    return run


def _furnish(run: Run, index: int) -> None:
    """The worker's working folder, with the scripts and what is special about it in this case."""
    folder = run.workspace(run.case.workers()[index])
    shutil.copytree(_STYLES, folder, ignore=shutil.ignore_patterns("__*"))
    for script in _SCRIPTS:
        shutil.copy(script, folder)
    if special := run.case.prepare.get(index):
        subprocess.run(["bash", "-ec", special.replace("{python}", sys.executable)], cwd=folder, check=True)


def _command(run: Run, index: int) -> list[str]:
    case, place = run.case, run.places[index]
    name = case.workers()[index]
    words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={case.nodes or len(case.processes)}"]
    words.append(f"--nproc-per-node={case.processes[index]}")
    if case.static:
        words += [f"--node-rank={index}", f"--master-addr={place.rendezvous}", f"--master-port={place.port}"]
    else:
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={place.rendezvous}:{place.port}", "--rdzv-id=corpus"]
        words += place.options
        if place.options:  # all on one machine: each would take itself for the host
            words.append(f"--rdzv-conf=is_host={int(index == 0)}")
    if case.restarts:
        words.append(f"--max-restarts={case.restarts}")
    if case.log_folder:
        words.append(f"--log-dir={run.elastic(name)}")
    words += _merged(words, case.torchrun)
    words += case.options.get(index, ())
    words.append("pretrain.py" if case.script_missing_on == index else case.program)
    words += ["--steps", str(case.steps)]
    if case.timeout != 40:
        words += ["--timeout", str(case.timeout)]
    if case.init_timeout != 40:
        words += ["--init-timeout", str(case.init_timeout)]
    words += case.script
    wrapper = case.wrappers.get(index)
    if wrapper is None:
        return words
    text = wrapper.replace("{command}", shlex.join(words)).replace("{python}", sys.executable)
    return ["bash", "-c", text.replace("{port}", str(place.port))]


def _merged(words: list[str], more: Sequence[str]) -> list[str]:
    """`more`; torchrun takes only the last `--rdzv-conf`, so two of them become one."""
    own = next((word for word in words if word.startswith("--rdzv-conf=")), None)
    if own is None or "--rdzv-conf" not in more:
        return list(more)
    words.remove(own)
    at = list(more).index("--rdzv-conf") + 1
    return [*more[:at], f"{own.partition('=')[2]},{more[at]}", *more[at + 1 :]]


def _environment(run: Run, index: int) -> dict[str, str]:
    case, name = run.case, run.case.workers()[index]
    faults = [{**asdict(fault), "worker": _name(case, fault.worker)} for fault in case.faults]
    environment = {key: os.environ[key] for key in _KEPT if key in os.environ}
    environment |= {
        "TZ": "UTC",
        "TMPDIR": str(run.temporary(name)),
        "CORPUS_EVENTS": str(run.folder / "events"),
        "CORPUS_FAULTS": json.dumps(faults),
        processes.RUN: run.mark,
        processes.WORKER: name,
    }
    if run.places[index].options:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    if case.record:
        environment["CORPUS_RECORD"] = "1"
    if case.outside:
        environment["CORPUS_MARK_STEP"] = str(MARK_STEP)
    if case.agent_file:
        environment["TORCHELASTIC_ERROR_FILE"] = str(run.temporary(name) / "agent_error.json")
    if index in case.skew:
        environment |= {"LD_PRELOAD": str(_clock(run.folder)), "CLOCK_AHEAD": f"{case.skew[index]:.0f}"}
    return {**environment, **case.environment, **case.environments.get(index, {})}


def _clock(folder: Path) -> Path:
    """The library that gives a process another time of day."""
    library = folder / "clock.so"
    if not library.exists():
        source = Path(__file__).with_name("clock.c")
        done = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=False)
        if done.returncode:
            raise Unfinished("a clock that is off needs a C compiler")
    return library


def _name(case: Case, worker: int | None) -> str | None:
    return None if worker is None else case.workers()[worker]


def read_lines(job: subprocess.Popen[bytes], lines: list[tuple[int, bytes]], ahead: int) -> None:
    """Keeps the lines with their time of arrival, as a clock shows it that is `ahead` ns off."""
    assert job.stdout is not None
    lines.extend((time.time_ns() + ahead, line) for line in job.stdout)


def _event(case: Case, path: Path) -> dict[str, Any]:
    """What a failing process wrote, its time by the true clock."""
    event: dict[str, Any] = json.loads(path.read_text())
    event["at_true"] -= case.skew.get(case.workers().index(event["node"]), 0)
    return event


def _act(run: Run, outside: Outside, deadline: float) -> None:
    """Waits for the moment, then does the deed."""
    while not _is_time(run, outside):
        if time.monotonic() > deadline:
            raise Unfinished(f"{run.case.name}: the processes never came to step {MARK_STEP}\n{_tails(run)}")
        time.sleep(0.05)
    for index in outside.workers:
        name = run.case.workers()[index]
        places: Sequence[int | None] = [outside.local_rank]
        if outside.do in ON_PROCESSES and outside.local_rank is None:
            places = range(run.case.processes[index])
        for local_rank in places:
            run.actions.append(_do(run, outside, index, name, local_rank))


def _cut_off(case: Case) -> set[str]:
    """Workers that lost their network. They hang; when the others have ended, they are killed, as a platform does."""
    if case.outside is None or case.outside.do != "disconnect":
        return set()
    return {case.workers()[index] for index in case.outside.workers}


def _is_time(run: Run, outside: Outside) -> bool:
    folder = run.folder / "events"
    if outside.restarting:
        return any(path.stat().st_size > 1 for path in folder.glob("starts.*"))
    started = [run.case.processes[run.case.workers().index(name)] for name in run.started]
    return len(list(folder.glob("reached.*"))) >= sum(started)


def _do(run: Run, outside: Outside, index: int, name: str, local_rank: int | None) -> dict[str, Any]:
    action: dict[str, Any] = {"do": outside.do, "node": name, "time": time.time()}
    if outside.do == "kill":
        processes.kill_worker(run.mark, name)
    elif outside.do == "disconnect":
        if not run.places[index].prefix:
            raise Unfinished(f"{run.case.name}: only with --namespaces")
        network.disconnect(index)
    elif local_rank is None:
        os.kill(processes.agent(run.mark, name).pid, _SIGNALS[outside.do])
    else:
        victim = processes.trainer(run.mark, name, local_rank)
        action |= {"local_rank": local_rank, "rank": int(victim.environment["RANK"])}
        os.kill(victim.pid, _SIGNALS[outside.do])
    return action


def _tails(run: Run) -> str:
    """The ends of the logs, for the one who writes a case."""
    return "\n".join(
        f"--- {name}\n" + b"".join(line for _, line in lines[-15:]).decode(errors="replace")
        for name, lines in run.lines.items()
    )
