"""Cases with one culprit: what it does, what the others do then, and the truth that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.corpus.scale import nccl, texts, user
from tests.corpus.scale.job import Job, Rank
from tests.corpus.scale.log import SECOND
from tests.corpus.scale.nccl import Group, Work
from tests.corpus.scale.opening import Opening, Size, anyone, begin, behind, default_work
from tests.corpus.scale.simulation import Simulation


@dataclass(slots=True)
class Outcome:
    """A finished case. `keep`: workers whose log must not be lost. `unseen`: those whose log is lost in any case.

    `absent`: workers that were never started. `actions`: what was done from outside, as the corpus writes it.
    """

    job: Job
    truth: dict[str, Any]
    exit_codes: dict[str, int]
    keep: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    actions: list[dict[str, Any]] = field(default_factory=list)


Scenario = Callable[[Random, Size], Outcome]


def place(rank: Rank, moment: int, attempt: int = 0) -> dict[str, Any]:
    """A process, as truths name it."""
    return {
        "node": rank.worker.name,
        "local_rank": rank.local,
        "global_rank": rank.number,
        "attempt": attempt,
        "at_true_unix": moment / SECOND,
    }


def finish(opening: Opening, simulation: Simulation, culprit: Rank, category: str, attempt: int = 0) -> Outcome:
    """Lets the rest happen; the truth is this process."""
    simulation.run()
    truth = {"kind": "rank", "category": category, **place(culprit, opening.moment, attempt)}
    return Outcome(opening.job, truth, simulation.exit_codes, {culprit.worker.name})


def stall(opening: Opening, simulation: Simulation, besides: set[int], spread: float = 0.08) -> None:
    """All ranks but these wait in the next collective; how far each has run ahead differs a little."""
    job = opening.job
    ahead = job.rng.choice((0, 0, 2, 4))
    for rank in job.ranks:
        if rank.number not in besides:
            more = ahead + (job.rng.random() < 0.2)
            simulation.wait(rank, default_work(opening, rank, opening.moment + job.seconds(0, spread), more))


def hang(rng: Random, size: Size) -> Outcome:
    """One rank never comes back from user code; every other rank's watchdog times out."""
    opening = begin(rng, size)
    simulation, culprit = Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    simulation.counters(culprit, behind(opening, culprit))
    if rng.random() < 0.3:
        simulation.ignore_signals(culprit)
    return finish(opening, simulation, culprit, "hang")


def hang_in_gpu_call(rng: Random, size: Size) -> Outcome:
    """One rank is stuck in a CUDA call together with its watchdog, which its heartbeat monitor reports."""
    opening = begin(rng, size, least=(2, 5))
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    simulation.counters(culprit, behind(opening, culprit))
    head = nccl.group_prefix(job, Group(culprit.number))
    seconds = 480
    stuck = f"{head} {texts.STUCK.format(seconds=seconds)}"
    last = f"{head} {head} {texts.TERMINATING}"

    def report(moment: int) -> None:
        if simulation.is_alive(culprit):
            culprit.add(moment, nccl.cpp(job, culprit, moment, 1484, stuck))

    def terminate(moment: int) -> None:
        if simulation.is_alive(culprit):
            culprit.add(moment, nccl.cpp(job, culprit, moment, 1557, last, level="F"))
            simulation.abort(culprit, moment)

    simulation.at(opening.moment + job.seconds(seconds, seconds + 2), report)
    simulation.at(opening.moment + job.seconds(2 * seconds + 3, 2 * seconds + 4), terminate)
    return finish(opening, simulation, culprit, "hang")


def hang_in_subgroup(rng: Random, size: Size) -> Outcome:
    """With two kinds of groups: the culprit's tensor-parallel peers wait in theirs, all others one collective later."""
    opening = begin(rng, size, least=(2, 3))
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    tensor = 48_000 + opening.step * 6
    later = opening.moment + job.seconds(2, 8)
    for rank in job.ranks:
        if rank is culprit:
            continue
        if rank.worker is culprit.worker:
            group = Group(rank.local, 5, 9 + rank.worker.node_rank, "TENSOR_MODEL_PARALLEL_GROUP")
            since = opening.moment + job.seconds(0, 0.05)
            work = Work(
                group, tensor, "_ALLGATHER_BASE", (442_368, 442_368 * size.processes), tensor, tensor - 1, since
            )
        else:
            group = Group(rank.worker.node_rank, 3, 1 + rank.local, "DATA_PARALLEL_GROUP")
            since, number = later + job.seconds(0, 0.1), opening.step + 11
            work = Work(group, number, "ALLREDUCE", (52_428_800, 52_428_800), number, number - 1, since)
        simulation.wait(rank, work)
    return finish(opening, simulation, culprit, "hang")


def collective_mismatch(rng: Random, size: Size) -> Outcome:
    """One rank leaves out a collective: its next one is of another type, and nobody's ever ends."""
    opening = begin(rng, size)
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    for rank in job.ranks:
        skipped = 1 if rank is culprit else 0
        since = opening.moment + job.seconds(0, 0.08)
        simulation.wait(rank, default_work(opening, rank, since, skipped=skipped))
    return finish(opening, simulation, culprit, "collective_mismatch")


def other_collective(rng: Random, size: Size) -> Outcome:
    """One rank sits in a gloo collective that the others never call; the counters in the dump lines tell it."""
    opening = begin(rng, size, least=(2, 7))
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    simulation.counters(culprit, behind(opening, culprit))
    peer = job.neighbours(culprit)[0]
    frames = user.script_frames(
        job, ("engine.py", 277, "gather_reports", "dist.all_gather(reports, mine, group=self.cpu_group)")
    )
    last = (
        f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        f"[{peer.worker.address}]:{peer.port}"
    )

    def raise_it(moment: int) -> None:
        if simulation.is_alive(culprit):
            simulation.fail(culprit, moment, user.raise_exception(job, culprit, moment, frames, last))

    limit = job.timeout + job.profile.dump_wait
    simulation.at(opening.moment + job.seconds(limit + 1.2, limit + 1.6), raise_it)
    return finish(opening, simulation, culprit, "collective_mismatch")


#: Exceptions of user code: innermost frame (file, line, function, code) and last line.
_ERRORS: tuple[tuple[tuple[str, int, str, str], str], ...] = (
    (
        ("data/reader.py", 88, "decode", "tokens = self.decode(raw)"),
        "ValueError: sample 81231 of shard 00412 has no tokens",
    ),
    (
        ("data/reader.py", 61, "open_shard", 'with open(path, "rb") as file:'),
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/pile/00412.bin'",
    ),
    (("checkpoint.py", 134, "save", "torch.save(state, path)"), "OSError: [Errno 28] No space left on device"),
    (
        ("engine.py", 310, "check", "assert torch.isfinite(loss), loss"),
        "AssertionError: tensor(nan, device='cuda:0')",
    ),
    (("data/mixture.py", 45, "pick", "source = self.sources[name]"), "KeyError: 'code-v3'"),
)


def throw(opening: Opening, simulation: Simulation, culprit: Rank, moment: int) -> None:
    """An exception of user code on this rank."""
    frame, last = opening.job.rng.choice(_ERRORS)
    leave(opening, simulation, culprit, moment, user.script_frames(opening.job, frame), last)


def leave(
    opening: Opening, simulation: Simulation, culprit: Rank, moment: int, frames: list[user.Frame], last: str
) -> None:
    """An uncaught exception and what follows on this rank until it is gone."""
    simulation.fail(culprit, moment, user.raise_exception(opening.job, culprit, moment, frames, last))
    not_destroyed(opening.job, culprit, moment + 40_000_000)


def not_destroyed(job: Job, rank: Rank, moment: int) -> None:
    """The warning of a process that leaves without destroying its group."""
    line = job.profile.watchdog.not_destroyed
    if not line:
        return
    text = texts.NOT_DESTROYED_FIRST if job.profile.number < (2, 6) else texts.NOT_DESTROYED
    rank.add(moment, nccl.cpp(job, rank, moment, line, text, level="W"))


def exception(rng: Random, size: Size) -> Outcome:
    """An exception of user code on one rank."""
    opening = begin(rng, size)
    simulation, culprit = Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    throw(opening, simulation, culprit, opening.moment)
    return finish(opening, simulation, culprit, "python_exception")


def cuda_out_of_memory(rng: Random, size: Size) -> Outcome:
    """One rank cannot allocate GPU memory."""
    opening = begin(rng, size)
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    frames = user.script_frames(job, ("model/attention.py", 156, "forward", "scores = torch.matmul(query, key)"))
    name = "torch.OutOfMemoryError" if job.profile.number >= (2, 5) else "torch.cuda.OutOfMemoryError"
    capacity = "capacty" if job.profile.number < (2, 2) else "capacity"
    last = f"{name}: {texts.OUT_OF_MEMORY.format(local=culprit.local, capacity=capacity)}"
    leave(opening, simulation, culprit, opening.moment, frames, last)
    return finish(opening, simulation, culprit, "cuda_oom")


def kernel_line(rank: Rank, moment: int, text: str) -> None:
    """A line of the kernel, where the launch script follows dmesg. It names processes as the host numbers them."""
    line = text.format(address=f"PCI:0000:{0x1B + 0x11 * rank.local:02x}:00", pid=2_814_000 + rank.local)
    rank.add(moment, f"[{rank.worker.log.clock.plain(moment, '%a %b %e %H:%M:%S %Y')}] {line}")


def ecc_error(rng: Random, size: Size) -> Outcome:
    """An uncorrectable memory error on one GPU: a Python exception, or the watchdog is first."""
    opening = begin(rng, size)
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    moment = opening.moment
    what, symbol = "uncorrectable ECC error encountered", "cudaErrorECCUncorrectable"
    if job.kernel_log:
        kernel_line(culprit, moment - SECOND // 2, texts.XID_48)
        kernel_line(culprit, moment - SECOND // 3, texts.XID_94)
    frames = user.script_frames(job, ("engine.py", 214, "step", "loss.backward()"))
    error = "torch.AcceleratorError" if job.profile.number >= (2, 8) else "RuntimeError"
    last = f"{error}: {nccl.cuda_message(job, what, symbol)}"
    if rng.random() < 0.5:
        leave(opening, simulation, culprit, moment, frames, last)
    else:
        user.raise_exception(job, culprit, moment, frames, last)
        text = nccl.cuda_error(job, culprit, what, symbol)
        nccl.watchdog_ended(job, culprit, Group(culprit.number), moment + 80_000_000, text)
        simulation.abort(culprit, moment + 90_000_000)
    return finish(opening, simulation, culprit, "gpu_ecc_uncorrectable")


def illegal_access(rng: Random, size: Size) -> Outcome:
    """A kernel of one rank touched invalid memory; its watchdog is the first to say so."""
    opening = begin(rng, size)
    simulation, culprit = Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    crash(opening, simulation, culprit)
    return finish(opening, simulation, culprit, "cuda_illegal_memory_access")


def crash(opening: Opening, simulation: Simulation, culprit: Rank) -> None:
    """The watchdog of this rank meets an illegal memory access."""
    job, moment = opening.job, opening.moment
    if job.kernel_log:
        kernel_line(culprit, moment, texts.XID_31)
    text = nccl.cuda_error(job, culprit, "an illegal memory access was encountered", "cudaErrorIllegalAddress")
    nccl.watchdog_ended(job, culprit, Group(culprit.number), moment + 50_000_000, text)
    simulation.abort(culprit, moment + 60_000_000)


def killed(rng: Random, size: Size) -> Outcome:
    """The kernel ends one process by SIGKILL."""
    opening = begin(rng, size)
    simulation, culprit = Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    kill(opening, simulation, culprit)
    return finish(opening, simulation, culprit, "killed")


def kill(opening: Opening, simulation: Simulation, culprit: Rank) -> None:
    """SIGKILL, with the kernel's line where it is seen."""
    if opening.job.kernel_log:
        kernel_line(culprit, opening.moment, texts.MEMORY_KILLER)
    simulation.end(culprit, -9, opening.moment)


def segfault(rng: Random, size: Size) -> Outcome:
    """A segmentation fault; with @record its fault handler prints the stack."""
    opening = begin(rng, size)
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    if job.record:
        main = f"/workspace/{job.script}"
        text = (
            "Fatal Python error: Segmentation fault\n\n"
            f"Thread 0x{culprit.base & 0xFFFFFFFFFFFF:016x} (most recent call first):\n"
            '  File "/workspace/data/reader.py", line 93 in decode\n  File "/workspace/engine.py", line 188 in '
            "batches\n"
            f'  File "{main}", line 198 in main\n  File "{main}", line 211 in <module>'
        )
        culprit.add(opening.moment, text)
    simulation.end(culprit, -11, opening.moment + job.seconds(0.05, 0.3))
    return finish(opening, simulation, culprit, "native_crash")


def exit_zero(rng: Random, size: Size) -> Outcome:
    """One rank leaves in mid-run with exit code 0, often without a word."""
    opening = begin(rng, size, least=(2, 4))
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    if rng.random() < 0.5:
        clock = culprit.worker.log.clock
        culprit.add(
            opening.moment, f"[{clock.asctime(opening.moment)}] INFO epoch 2: no batches left, leaving the loop"
        )
    not_destroyed(job, culprit, opening.moment + 60_000_000)
    simulation.end(culprit, 0, opening.moment + job.seconds(0.3, 0.9))
    return finish(opening, simulation, culprit, "early_exit_zero")
