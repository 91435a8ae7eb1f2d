"""The lines of NCCL and of PyTorch's ProcessGroupNCCL, in the form of the job's version."""

from __future__ import annotations

from dataclasses import dataclass

from tests.corpus.scale import texts
from tests.corpus.scale.job import Job, Rank
from tests.corpus.scale.log import SECOND


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one of its ranks sees it. `rank` is the rank *in* the group."""

    rank: int
    number: int = 0
    unique: int = 0
    name: str = "default_pg"


@dataclass(frozen=True, slots=True)
class Work:
    """A collective that one rank waits in, with the group's counters there. `since`: when it was enqueued (ns)."""

    group: Group
    sequence: int
    operation: str
    sizes: tuple[int, int]
    enqueued: int
    completed: int
    since: int

    def __str__(self) -> str:
        sizes = f"NumelIn={self.sizes[0]}, NumelOut={self.sizes[1]}"
        return f"WorkNCCL(SeqNum={self.sequence}, OpType={self.operation}, {sizes}"


def cpp(job: Job, rank: Rank, moment: int, line: int, text: str, level: str = "E") -> str:
    """A line of ProcessGroupNCCL.cpp, of a rank that has joined its group."""
    prefix = f"[rank{rank.number}]:" if job.profile.rank_prefix else ""
    stamp = rank.worker.log.clock.glog(moment) if job.profile.stamped else ""
    return f"{prefix}[{level}{stamp} ProcessGroupNCCL.cpp:{line}] {text}"


def group_prefix(job: Job, group: Group) -> str:
    """`[PG ID 0 PG GUID 0(default_pg) Rank 3]`, or what stood there in older versions."""
    head = job.profile.group.format(id=group.number, guid=group.unique, desc=group.name)
    return f"[{head}Rank {group.rank}]"


def caught(job: Job, work: Work, ran: int) -> str:
    """The watchdog's verdict on a collective that took too long; `ran` in ms."""
    limit = job.timeout * 1000
    return (
        f"[Rank {work.group.rank}] Watchdog caught collective operation timeout: {work}, Timeout(ms)={limit}) "
        f"ran for {ran} milliseconds before timing out."
    )


def remote_error(job: Job, rank: Rank, peer: Rank, generic: bool) -> str:
    """What NCCL says of a peer that went away; the first line is put behind `NCCL error: ` by PyTorch."""
    return (
        "NCCL error: remote process exited or there was a network error, NCCL version "
        f"{job.profile.nccl.partition('+')[0]}\n"
        f"{texts.REMOTE}\nLast error:\n{_last_error(job, rank, peer, generic)}"
    )


def _last_error(job: Job, rank: Rank, peer: Rank, generic: bool) -> str:
    if job.network == "ib":
        who = f"Got completion from peer {peer.worker.address}<{peer.port}> with"
        if job.profile.number < (2, 5):
            return f"NET/IB : {who} error 12, opcode 0, len 0, vendor err 129 (Send)"
        gids = f"localGid ::ffff:{rank.worker.address} remoteGids::ffff:{peer.worker.address} hca mlx5_{rank.local}"
        return f"NET/IB: {who} status=12 opcode=0 len=0 vendor err 129 (Send) {gids}"
    if generic:
        return "NET/Socket : socket progress error"
    return f"socketProgress: Connection closed by remote peer {_peer(job, peer)}"


def _peer(job: Job, peer: Rank) -> str:
    host = peer.worker.address if job.numeric_peers else peer.worker.host
    return f"{host}<{peer.port}>"


def warn_closed(job: Job, rank: Rank, peer: Rank, moment: int, generic: bool) -> None:
    """NCCL's own warning, where NCCL_DEBUG asks for it."""
    if not job.nccl_debug:
        return
    wall = rank.worker.log.clock.plain(moment)
    stamp = f"[{wall}] " if job.profile.number >= (2, 7) else ""
    head = f"\n{stamp}{rank.worker.name}:{rank.pid}:{rank.pid + 900} [{rank.local}] "
    if job.network == "ib":
        rank.add(moment, f"{head}transport/net_ib.cc:2244 NCCL WARN {_last_error(job, rank, peer, generic=False)}")
        return
    text = f"{head}misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {_peer(job, peer)}"
    for again in range(job.rng.randrange(1, 4)):
        rank.add(moment + again * 200_000, text)
    if generic:
        rank.add(moment + 700_000, f"{head}transport/net_socket.cc:217 NCCL WARN NET/Socket : socket progress error")


def warn_service(job: Job, rank: Rank, moment: int) -> None:
    """What NCCL's service thread says while its process is taken down."""
    if job.nccl_debug:
        stamp = f"[{rank.worker.log.clock.plain(moment)}] " if job.profile.number >= (2, 7) else ""
        head = f"\n{stamp}{rank.worker.name}:{rank.pid}:{rank.pid + 880} [{rank.local}] proxy.cc"
        rank.add(moment, f"{head}:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable")
        text = f"Could not receive type from localRank {rank.local}, res=3, closed=0"
        rank.add(moment + 50_000, f"{head}:1497 NCCL WARN [Service thread] {text}")


def info(rank: Rank, moment: int, text: str, thread: int = 0) -> None:
    """A line of NCCL at INFO."""
    rank.add(moment, f"{rank.worker.name}:{rank.pid}:{rank.pid + thread} [{rank.local}] NCCL INFO {text}")


def start(job: Job, moment: int, took: int) -> None:
    """The first communicator comes up. `took` in ns."""
    zero = job.ranks[0]
    if not job.nccl_debug:
        return
    if job.nccl_debug == "WARN":
        zero.add(moment, f"NCCL version {job.profile.nccl}")
        return
    colon = ":" if job.profile.number >= (2, 7) else " :"
    commid = f"{job.rng.randrange(1 << 64):#x}"
    network = "IB" if job.network == "ib" else "Socket"
    for rank in job.ranks:
        at = moment + job.rng.randrange(SECOND // 5)
        address = rank.worker.address
        info(rank, at, f"Bootstrap{colon} Using eth0:{address}<0>")
        info(rank, at + 400_000, "cudaDriverVersion 12060")
        if rank is zero:
            info(rank, at + 800_000, f"NCCL version {job.profile.nccl}")
        if job.network == "ib":
            cards = " ".join(f"[{at}]mlx5_{at}:1/RoCE" for at in range(job.processes))
            info(rank, at + 900_000, f"NET/IB : Using {cards} ; OOB eth0:{address}<0>", 512)
        else:
            info(rank, at + 900_000, "NET/IB : No device found.", 512)
            info(rank, at + 950_000, f"NET/Socket : Using [0]eth0:{address}<0>", 512)
        info(rank, at + 990_000, f"Using network {network}", 512)
        gpu = f"cudaDev {rank.local} nvmlDev {rank.local} busId {0x1B000 + 0x11000 * rank.local:x}"
        shared = f"comm {rank.base + 0x5F0:#x} rank {rank.number} nranks {job.world} {gpu} commId {commid}"
        info(rank, at + 1_200_000, f"ncclCommInitRank {shared} - Init START", 512)
        info(rank, at + took, f"ncclCommInitRank {shared} - Init COMPLETE", 512)


def stack(job: Job, rank: Rank, *functions: str) -> str:
    """Frames of a C++ exception, as many as `functions` and the thread's start."""
    string = (
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
        if job.profile.new_frames
        else "std::string"
    )
    packages = f"/opt/venv/lib/python{job.profile.python}/site-packages/torch/lib"
    frames = [(f"c10::Error::Error(c10::SourceLocation, {string})", f"{packages}/libc10.so")]
    frames += [(name, f"{packages}/libtorch_cuda.so") for name in functions]
    frames += [
        ("<unknown function>", f"/lib/x86_64-linux-gnu/{name}") for name in ("libstdc++.so.6", "libc.so.6", "libc.so.6")
    ]
    lines = []
    for index, (name, library) in enumerate(frames):
        offset = 0x57 + 0x1A3 * index
        lines.append(f"frame #{index}: {name} + {offset:#x} ({rank.base + 0x1000000 * index + offset:#x} in {library})")
    return "\n".join(lines) + "\n"


def loop_frames(job: Job) -> tuple[str, str]:
    """The watchdog's own two functions."""
    if job.profile.dump_wait:
        return "c10d::ProcessGroupNCCL::Watchdog::runLoop()", "c10d::ProcessGroupNCCL::Watchdog::run()"
    inner = "workCleanupLoop" if job.profile.number < (2, 4) else "watchdogHandler"
    return f"c10d::ProcessGroupNCCL::{inner}()", "c10d::ProcessGroupNCCL::ncclCommWatchdog()"


def source(job: Job, file: str) -> str:
    """The path that the wheel was built at."""
    return f"{'/pytorch' if job.profile.number >= (2, 7) else '..'}/{file}"


def raised_from(job: Job, rank: Rank, function: str, line: int, *functions: str) -> str:
    """`Exception raised from ... (most recent call first):` with its frames, behind the exception's text."""
    file = source(job, "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp")
    where = f"{function} at {file}:{line} (most recent call first):"
    return f"\nException raised from {where}\n{stack(job, rank, *functions, *loop_frames(job))}"


def cuda_error(job: Job, rank: Rank, what: str, symbol: str) -> str:
    """A CUDA error as the watchdog meets it when it asks an event, with frames."""
    return cuda_message(job, what, symbol) + (
        f"\nException raised from c10_cuda_check_implementation at {source(job, 'c10/cuda/CUDAException.cpp')}:43 "
        "(most recent call first):\n"
        + stack(
            job,
            rank,
            "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)",
            "c10d::ProcessGroupNCCL::WorkNCCL::finishedGPUExecutionInternal() const",
            "c10d::ProcessGroupNCCL::WorkNCCL::isCompleted()",
            *loop_frames(job),
        )
    )


def cuda_message(job: Job, what: str, symbol: str) -> str:
    """A CUDA error's text, which a Python exception carries too."""
    search = f"{texts.CUDA_SEARCH.format(symbol=symbol)}\n" if job.profile.number >= (2, 9) else ""
    return (
        f"CUDA error: {what}\n{search}{texts.CUDA_ASYNC}\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


def detected(job: Job, rank: Rank, work: Work, moment: int, timed_out: bool) -> None:
    """The counters that the watchdog prints when it has found a failure, timeout or not."""
    lines, head = job.profile.watchdog, group_prefix(job, work.group)
    counters = f"last enqueued NCCL work: {work.enqueued}, last completed NCCL work: {work.completed}."
    if lines.detected:
        found = f"Exception (either an error or timeout) detected by watchdog at work: {work.sequence}, {counters}"
        rank.add(moment, cpp(job, rank, moment, lines.detected, f"{head} {found}"))
    if lines.timeout_at and timed_out:
        found = f"Timeout at NCCL work: {work.sequence}, {counters}"
        rank.add(moment, cpp(job, rank, moment, lines.timeout_at, f"{head} {found}"))
    if not lines.failure:
        return
    found = (
        f" failure detected by watchdog at work sequence id: {work.sequence} PG status: last enqueued work: "
        f"{work.enqueued}, last completed work: {work.completed}"
    )
    rank.add(moment, cpp(job, rank, moment, lines.failure, f"{head} {found}"))
    text = texts.NO_STACK if not lines.stack_found else f"Stack trace of the failed collective: \n{_calls(job, work)}"
    rank.add(moment, cpp(job, rank, moment, lines.stack, text))
    if lines.first:
        rank.add(moment, cpp(job, rank, moment, lines.first, f"{head} First PG on this rank to signal dumping."))


def _calls(job: Job, work: Work) -> str:
    """Where the collective was called, as the flight recorder keeps it."""
    packages = f"/opt/venv/lib/python{job.profile.python}/site-packages/torch/distributed"
    name = {"_ALLGATHER_BASE": "all_gather_into_tensor", "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor"}.get(
        work.operation, "all_reduce"
    )
    return (
        f"#0 {name} from {packages}/distributed_c10d.py:3174\n#1 wrapper from {packages}/c10d_logger.py:83\n"
        f"#2 reduce_gradients from /workspace/engine.py:402\n#3 main from /workspace/{job.script}:198\n"
        f"#4 <module> from /workspace/{job.script}:211\n"
    )


def dump_signal(job: Job, rank: Rank, default: Work | None, moment: int, origin: int | None) -> None:
    """The monitor thread's lines on the signal to dump. `origin`: the rank that signalled, None for this one itself.

    `default` has the counters of the default group, which are the ones that are printed.
    """
    lines = job.profile.watchdog
    if not lines.received:
        return
    enqueued, completed = (default.enqueued, default.completed) if default else (-1, -1)
    head = group_prefix(job, Group(rank.number))
    if origin is not None:
        text = f"{head} Observed flight recorder dump signal from another rank via TCPStore."
        rank.add(moment, cpp(job, rank, moment, lines.observed, text))
    who = "this local rank" if origin is None else f" rank {origin}"
    text = f"{head} {texts.DUMP.format(origin=who, enqueued=enqueued, completed=completed)}"
    rank.add(moment, cpp(job, rank, moment, lines.received, text))
    active = ", only active collectives: 0" if lines.stack_found else ""
    text = f"{head} ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1{active}"
    rank.add(moment + 90_000, cpp(job, rank, moment + 90_000, lines.preparing, text))


def take_down(job: Job, rank: Rank, group: Group, moment: int, exception: str) -> None:
    """The watchdog ends its process: from `Some NCCL operations` to what the C++ runtime prints."""
    lines = job.profile.watchdog
    own = f"[Rank {group.rank}] " if job.profile.number >= (2, 3) else ""
    rank.add(moment, cpp(job, rank, moment, lines.some, own + texts.SOME))
    rank.add(moment + 30_000, cpp(job, rank, moment + 30_000, lines.away, own + texts.AWAY))
    watchdog_ended(job, rank, group, moment + 1_500_000, exception)


def store_gone(job: Job, rank: Rank, moment: int) -> None:
    """The monitor thread asks the store, whose host has left."""
    line = job.profile.watchdog.store_gone
    if line:
        text = f"{group_prefix(job, Group(rank.number))} {texts.STORE_GONE}"
        rank.add(moment, cpp(job, rank, moment, line, text, level="W"))


def watchdog_ended(job: Job, rank: Rank, group: Group, moment: int, exception: str) -> None:
    """The watchdog thread's last words, and abort()."""
    lines = job.profile.watchdog
    subject = "NCCL watchdog" if job.profile.number < (2, 3) else "Process group watchdog"
    text = f"{group_prefix(job, group)} {subject} thread terminated with exception: {exception}"
    rank.add(moment, cpp(job, rank, moment, lines.ended, text))
    error = "c10::DistBackendError" if lines.rethrown else "std::runtime_error"
    rank.add(moment + 40_000, f"terminate called after throwing an instance of '{error}'")
    last = f"  what():  {text}"
    if lines.rethrown:
        file = source(job, "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp")
        function = "run" if job.profile.dump_wait else "ncclCommWatchdog"
        where = f"{function} at {file}:{lines.rethrown} (most recent call first):"
        last += f"\nException raised from {where}\n{stack(job, rank)}"
    rank.add(moment + 90_000, last)
