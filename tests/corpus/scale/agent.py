"""The lines of torchrun's agent, in the form of the job's version: notes, summaries, deaths by rendezvous."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from tests.corpus.scale import nccl, texts
from tests.corpus.scale.job import Job, Rank, Worker
from tests.corpus.scale.log import SECOND
from tests.corpus.scale.user import Frame, traceback_text

_MULTI = "distributed/elastic/multiprocessing/api.py"
_SERVER = "distributed/elastic/agent/server/api.py"
_DYNAMIC = "distributed/elastic/rendezvous/dynamic_rendezvous.py"
_BACKEND = "distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
_LEVELS = {"W": "WARNING", "E": "ERROR", "I": "INFO"}
#: The agent is the container's first process.
PID = 1


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed process as its agent lists it. `noticed`: a true time in ns; `error`: what its error file has."""

    rank: Rank
    code: int
    noticed: int
    error: str = ""


def banner(job: Job, worker: Worker, moment: int) -> None:
    """What torchrun prints before its workers start."""
    stars = "*" * 41
    if job.profile.number >= (2, 13):
        worker.log.add(moment, f"\n{stars}\n{texts.THREADS}\n{stars}")
        return
    for line in ("", stars, texts.THREADS, stars):
        say(job, worker, moment, "W", "distributed/run.py", 766, line)


def rendezvous_complete(job: Job, worker: Worker, moment: int, restart_count: int = 0) -> None:
    """The result of a rendezvous, which only LOGLEVEL=INFO shows."""
    if not job.verbose_agent:
        return
    numbers = [rank.number for rank in job.of(worker)]
    lines = [
        "[default] Rendezvous complete for workers. Result:",
        f"  restart_count={restart_count}",
        f"  master_addr={job.store_host.host}",
        "  master_port=29400",
        f"  group_rank={worker.node_rank}",
        f"  group_world_size={len(job.workers)}",
        f"  local_ranks={list(range(job.processes))}",
        f"  role_ranks={numbers}",
        f"  global_ranks={numbers}",
        f"  role_world_sizes={[job.world] * job.processes}",
        f"  global_world_sizes={[job.world] * job.processes}",
        "",
    ]
    for line in lines:
        say(job, worker, moment, "I", _SERVER, 553, line)


def say(job: Job, worker: Worker, moment: int, level: str, file: str, line: int, text: str) -> None:
    """One line through torch's loggers."""
    agent, clock = job.profile.agent, worker.log.clock
    if agent.style == "brackets":
        module = "torch." + file.removesuffix(".py").replace("/", ".")
        worker.log.add(moment, f"[{clock.asctime(moment)}] {module}: [{_LEVELS[level]}] {text}")
        return
    process = 139_870_000_000_000 + worker.index * 4_194_304 if agent.style == "thread" else PID
    path = "torch" if agent.style == "thread" else agent.path
    worker.log.add(moment, f"{level}{clock.torch(moment)} {process} {path}/{file}:{line}] {text}")


def close(job: Job, worker: Worker, moment: int, alive: list[Rank]) -> None:
    """SIGTERM to the processes that are still there."""
    for rank in alive:
        text = f"Sending process {rank.pid} closing signal SIGTERM"
        say(job, worker, moment, "W", _MULTI, job.profile.agent.closing, text)


def force(job: Job, rank: Rank, moment: int) -> None:
    """SIGKILL to a process that has outlived SIGTERM by 30 s."""
    term, kill = ("15", "9") if job.profile.carets else ("Signals.SIGTERM", "Signals.SIGKILL")
    text = f"Unable to shutdown process {rank.pid} via {term}, forcefully exiting via {kill}"
    say(job, rank.worker, moment, "W", _MULTI, job.profile.agent.closing + 18, text)


def failed(job: Job, worker: Worker, moment: int, failures: list[Failed]) -> None:
    """The agent's pick of the first failure."""
    first = first_of(worker, failures)
    text = (
        f"failed (exitcode: {first.code}) local_rank: {first.rank.local} (pid: {first.rank.pid}) of binary: "
        "/opt/venv/bin/python"
    )
    say(job, worker, moment, "E", _MULTI, job.profile.agent.failed, text)


def will_restart(job: Job, worker: Worker, moment: int, left: int) -> None:
    """Only LOGLEVEL=INFO shows that a new attempt begins."""
    if job.verbose_agent:
        text = f"[default] Worker group FAILED. {left}/{job.restarts} attempts left; will restart worker group"
        say(job, worker, moment, "I", _SERVER, 934, text)


def summary(job: Job, worker: Worker, moment: int, failures: list[Failed]) -> None:
    """ChildFailedError with its block."""
    first = first_of(worker, failures)
    blocks = {failure.rank.local: _entry(job, index, failure) for index, failure in enumerate(failures)}
    others = [text for local, text in blocks.items() if local != first.rank.local] or ["  <NO_OTHER_FAILURES>"]
    width = min(60, max(len(line) for text in (*blocks.values(), f"{job.script} FAILED") for line in text.split("\n")))
    thin, thick = "-" * width, "=" * width
    block = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        thick,
        f"{job.script} FAILED",
        thin,
        "Failures:",
        *others,
        thin,
        "Root Cause (first observed failure):",
        blocks[first.rank.local],
        thick,
    ]
    frames = [
        *_outer_frames(job),
        _frame(
            job, "distributed/launcher/api.py", job.profile.agent.launch[2], "launch_agent", "raise ChildFailedError("
        ),
    ]
    worker.log.add(moment, traceback_text(frames, "\n".join(block), job.profile.carets))


def first_of(worker: Worker, failures: list[Failed]) -> Failed:
    """What torchrun calls the root cause: whole seconds of its own clock, the order of the list among equals."""
    return min(failures, key=lambda failure: worker.log.clock.second(failure.noticed))


def _entry(job: Job, index: int, failure: Failed) -> str:
    rank, code, agent = failure.rank, failure.code, job.profile.agent
    name = Signals(-code).name if code < 0 else ""
    tail = (f" ({name})" if name else "") if agent.signal_names else ""
    error_file = "<N/A>"
    text = (
        f"Signal {-code} ({name}) received by PID {rank.pid}"
        if name
        else ("To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")
    )
    if failure.error:
        folder = f"torchelastic_{rank.worker.index:04x}ab_k/none_{rank.worker.index:02x}w4_zy"
        error_file = f"/tmp/{folder}/attempt_0/{rank.local}/error.json"
        text = "\n".join("  " + line if at else line for at, line in enumerate(f"{failure.error}\n".split("\n")))
    clock = rank.worker.log.clock
    return (
        f"[{index}]:\n  time      : {clock.plain(failure.noticed, '%Y-%m-%d_%H:%M:%S')}\n  host      : "
        f"{rank.worker.host}\n"
        f"  rank      : {rank.number} (local_rank: {rank.local})\n"
        f"  exitcode  : {code} (pid: {rank.pid}){' ' if agent.signal_names else ''}{tail}\n"
        f"  error_file: {error_file}\n  traceback : {text}"
    )


def _frame(job: Job, file: str, line: int, function: str, code: str, mark: str = "") -> Frame:
    return Frame(f"/opt/venv/lib/python{job.profile.python}/site-packages/torch/{file}", line, function, code, mark)


def _outer_frames(job: Job) -> list[Frame]:
    """From torchrun's script to launch_agent."""
    agent = job.profile.agent
    errors = "distributed/elastic/multiprocessing/errors/__init__.py"
    call = "f(*args, **kwargs)"
    return [
        Frame("/opt/venv/bin/torchrun", 8, "<module>", "sys.exit(main())", "main()"),
        _frame(job, errors, agent.wrapper, "wrapper", f"return {call}", call),
        _frame(job, "distributed/run.py", agent.run[0], "main", "run(args)"),
        _frame(job, "distributed/run.py", agent.run[1], "run", "elastic_launch("),
        _frame(
            job,
            "distributed/launcher/api.py",
            agent.launch[0],
            "__call__",
            "return launch_agent(self._config, self._entrypoint, list(args))",
            "launch_agent(self._config, self._entrypoint, list(args))",
        ),
    ]


def _running_frames(job: Job) -> list[Frame]:
    """From torchrun's script into the agent's loop."""
    agent, call = job.profile.agent, "f(*args, **kwargs)"
    return [
        *_outer_frames(job),
        _frame(
            job, "distributed/launcher/api.py", agent.launch[1], "launch_agent", "result = agent.run()", "agent.run()"
        ),
        _frame(job, "distributed/elastic/metrics/api.py", 138, "wrapper", f"result = {call}", call),
        _frame(job, _SERVER, agent.agent_run, "run", "result = self._invoke_run(role)", "self._invoke_run(role)"),
    ]


def _joining_frames(job: Job, again: bool) -> list[Frame]:
    """On into the rendezvous, for agents that wait for others; `again`: after a failure."""
    line, call = job.profile.agent.invoke[0], "spec.rdzv_handler.next_rendezvous()"
    restart = [
        _frame(job, _SERVER, line + 33, "_invoke_run", "self._restart_workers(self._worker_group)"),
        _frame(job, _SERVER, line - 178, "_restart_workers", "self._initialize_workers(worker_group)"),
    ]
    first = [_frame(job, _SERVER, line, "_invoke_run", "self._initialize_workers(self._worker_group)")]
    return [
        *_running_frames(job),
        *(restart if again else first),
        _frame(job, _SERVER, line - 203, "_initialize_workers", "self._rendezvous(worker_group)"),
        _frame(job, _SERVER, line - 388, "_rendezvous", f"rdzv_info = {call}", call),
        _frame(job, _DYNAMIC, 1171, "next_rendezvous", "self._op_executor.run(join_op, deadline, self._get_deadline)"),
    ]


def signalled(job: Job, worker: Worker, moment: int, alive: list[Rank], ended: int) -> None:
    """SIGTERM from outside: the agent ends its workers and dies of SignalException at `ended`."""
    number = "15" if job.profile.carets else "Signals.SIGTERM"
    text = f"Received {number} death signal, shutting down workers"
    say(job, worker, moment, "W", _SERVER, job.profile.agent.death, text)
    close(job, worker, moment, alive)
    handler = 'raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)'
    frames = [
        *_running_frames(job),
        _frame(job, _SERVER, job.profile.agent.invoke[1], "_invoke_run", "time.sleep(monitor_interval)"),
        _frame(job, _MULTI, 86, "_terminate_process_handler", handler),
    ]
    last = f"torch.distributed.elastic.multiprocessing.api.SignalException: Process {PID} got signal: {number}"
    worker.log.add(ended, traceback_text(frames, last, job.profile.carets))


def store_lost(
    job: Job, worker: Worker, moment: int, alive: list[Rank], ended: int, joining: bool = False, again: bool = False
) -> None:
    """The store's host has left: the agent ends its workers and dies of RendezvousConnectionError at `ended`.

    `joining`: it was waiting for a rendezvous, `again` for one after a failure.
    """
    close(job, worker, moment, alive)
    shutdown_failed(job, worker, ended - SECOND // 100)
    reset = "Connection reset by peer" if job.profile.number < (2, 7) else texts.NO_BYTES
    frames = [_frame(job, _BACKEND, 114, "_call_store", "return getattr(self._store, store_op)(*args, **kwargs)")]
    cause = traceback_text(frames, f"torch.distributed.DistNetworkError: {reset}", job.profile.carets)
    if joining:
        outer = [
            *_joining_frames(job, again),
            _frame(job, _DYNAMIC, 649, "run", "has_set = self._state_holder.sync()", "self._state_holder.sync()"),
        ]
    else:
        call = "rdzv_handler.num_nodes_waiting()"
        outer = [
            *_running_frames(job),
            _frame(job, _SERVER, job.profile.agent.invoke[2], "_invoke_run", f"num_nodes_waiting = {call}", call),
            _frame(job, _DYNAMIC, 1269, "num_nodes_waiting", "self._state_holder.sync()"),
        ]
    state, call = "self._backend.get_state()", 'self._call_store("get", self._key)'
    outer += [
        _frame(job, _DYNAMIC, 438, "sync", f"get_response = {state}", state),
        _frame(job, _BACKEND, 75, "get_state", f"base64_state: bytes = {call}", call),
        _frame(job, _BACKEND, 116, "_call_store", "raise RendezvousConnectionError("),
    ]
    worker.log.add(ended, cause + texts.CAUSED + traceback_text(outer, texts.CONNECTION_LOST, job.profile.carets))


def shutdown_failed(job: Job, worker: Worker, moment: int) -> None:
    """What an agent says on leaving when the store's host has left before it."""
    if job.profile.number >= (2, 7):
        ends = f"addr=[{worker.host}]:51{worker.index:03d}, remote=[{job.store_host.host}]:29400"
        error = f"sendBytes failed on SocketImpl(fd=3, {ends}): Broken pipe"
        source = "/pytorch/torch/csrc/distributed/c10d/Utils.hpp:653"
        text = (
            f"[W{worker.log.clock.glog(moment)} TCPStore.cpp:106] [c10d] {error}\n"
            f"Exception raised from sendBytes at {source} (most recent call first):\n"
            f"{nccl.stack(job, job.of(worker)[0])}"
        )
        worker.log.add(moment, text)
    name = f"{worker.host}_{PID}_0"
    error = "due to an error of type RendezvousConnectionError."
    text = f"The node '{name}' has failed to shutdown the rendezvous 'none' {error}"
    say(job, worker, moment, "W", _DYNAMIC, job.profile.agent.shutdown, text)


def rendezvous_closed(job: Job, worker: Worker, moment: int) -> None:
    """Another agent has closed the rendezvous while this one wanted to start anew."""
    frames = [*_joining_frames(job, again=True), _frame(job, _DYNAMIC, 678, "run", "raise RendezvousClosedError")]
    last = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    worker.log.add(moment, traceback_text(frames, last, job.profile.carets))


def rendezvous_timeout(job: Job, worker: Worker, moment: int) -> None:
    """Not all nodes came in time."""
    frames = [*_joining_frames(job, again=False), _frame(job, _DYNAMIC, 680, "run", "raise RendezvousTimeoutError")]
    last = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
    worker.log.add(moment, traceback_text(frames, last, job.profile.carets))


def name_not_found(job: Job, worker: Worker, moment: int) -> None:
    """The store's host has no address yet; the container is started again after this."""
    host = job.store_host.host
    unknown = "cannot be retrieved (gai error: -2 - Name or service not known)"
    wait = f"The IPv4 network addresses of ({host}, 29400) {unknown}."
    if job.profile.stamped:
        first = moment - 2 * SECOND
        worker.log.add(first, f"[W{worker.log.clock.glog(first)} socket.cpp:697] [c10d] {wait}")
    frames = [*_outer_frames(job), _frame(job, _BACKEND, 153, "_create_tcp_store", "store = TCPStore(")]
    cause = traceback_text(frames[-1:], f"torch.distributed.DistNetworkError: {wait}", job.profile.carets)
    last = traceback_text(frames, texts.CONNECTION_LOST, job.profile.carets)
    worker.log.add(moment, cause + texts.CAUSED + last)
