"""Made-up logs of training: what Megatron, the Hugging Face trainer, Lightning, NCCL and scripts print, mixed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

#: Written again and again to fill a long log: far more than any cache of a core.
_BLOCK = 32 << 20

#: What a failed rank and its agent print last.
FAILURE = b"""[rank5]: Traceback (most recent call last):
[rank5]:   File "/app/train.py", line 164, in main
[rank5]:     loss = step(batch)
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
W1120 17:45:05.757000 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 11 closing signal SIGTERM
E1120 17:45:05.857000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 5 \
(pid: 12) of binary: /opt/venv/bin/python
"""

#: What one rank of a failed attempt prints, and its agent; `%(n)d` is a number that differs each time.
_ATTEMPT = b"""\
[rank%(rank)d]: Traceback (most recent call last):
[rank%(rank)d]:   File "/app/train.py", line %(n)d, in main
[rank%(rank)d]:     loss = step(batch)
[rank%(rank)d]:            ^^^^^^^^^^^
[rank%(rank)d]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
[rank%(rank)d]:     return forward_call(*args, **kwargs)
[rank%(rank)d]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %(n)d.00 MiB. GPU %(rank)d has 79.10 GiB
[rank%(rank)d]:[E1120 17:44:40.665371319 ProcessGroupNCCL.cpp:632] [Rank %(rank)d] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=%(n)d, OpType=ALLREDUCE, NumelIn=%(n)d, Timeout(ms)=600000) ran for %(n)d ms
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f14b in /opt/venv/lib/libc10.so)
frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >) + 0x282 (0x7f1)
frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f14b in /opt/venv/lib/libtorch_cuda.so)
frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f14b in /opt/venv/lib/libtorch_cuda.so)
frame #4: <unknown function> + 0xdc253 (0x7f14 in /lib/x86_64-linux-gnu/libstdc++.so.6)
[rank%(rank)d]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:%(n)d, \
remote process exited or there was a network error, NCCL version 2.21.5
W1120 17:45:05.757000 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process %(n)d closing signal \
SIGTERM
E1120 17:45:05.857000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: \
%(rank)d (pid: %(n)d) of binary: /opt/venv/bin/python
2026-11-20 17:45:06,123 ERROR train: step %(n)d failed: ValueError: bad batch %(n)d
"""

WAITING = b"the container is kept for a look at it; it ends after 10000 s\n"

_TEXTS = """\
Traceback (most recent call last)|Error|Exception:|[rank|NCCL WARN|Watchdog caught|exitcode|death signal
closing signal|CUDA error|CUDA out of memory|Cuda failure|Fatal Python error|Timed out waiting
Connection closed by|OOMKilled|NVRM: Xid|uncorrectable ECC|busy or unavailable|no CUDA-capable device
CUBLAS_STATUS_|CUDNN_STATUS_|no kernel image|driver version is insufficient|fallen off the bus
forcefully exiting via|received by PID|terminate called after|oom-kill|Out of memory: Killed
Memory cgroup out of|in DataLoader worker|Too many open files|received 0 items of ancdata|Last enqueued
Received a dump signal|To avoid data inconsistency|Some NCCL operations|Heartbeat monitor timed out
watchdog got stuck|ncclRemoteError|remote process exited|ncclSystemError|unhandled system error
unhandled cuda error|shared memory segment|Got completion from peer|ibv_reg_mr|gloo/transport|connectFullMesh
enforce fail at|monitoredBarrier|Detected mismatch between|wait timeout after|waiting for clients
Connection reset by peer|Broken pipe|failed to recv|EADDRINUSE|ddress already in use|Name or service not known
Temporary failure in name|gai error|could not be resolved|client socket has|closed the rendezvous
shutdown the rendezvous|keep-alive heartbeat|exit barrier|got signal|slurmstepd|D-state|after SIGKILL within
can't open file|unrecognized arguments|arguments are required|bad magic number|undefined symbol
cannot open shared object|oss is nan|oss is inf|nan or inf|NaN detected|cannot be multiplied|size mismatch
Missing key(s)|PytorchStream|invalid load key|No space left on device|Disk quota exceeded|unexpected pos
Permission denied|Read-only file system|Stale file handle|endpoint is not connected|couldn't connect to
Max retries exceeded|Can't load tokenizer|KeyboardInterrupt|Root Cause (first|To enable traceback see
torchelastic.worker.status|exits with return code|attempts left|Rendezvous complete|<NO_OTHER_FAILURES>
"""
#: Stand for the signatures' literals: as many, as long, and some of them in lines that are no failure.
LITERALS = tuple(text.encode() for text in _TEXTS.rstrip().replace("\n", "|").split("|"))

Rng = random.Random


def _clock(step: int) -> str:
    return f"{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"


def _megatron(step: int, rng: Rng) -> str:
    return (
        f" [2026-11-20 {_clock(step)}] iteration {step:8d}/  500000 | consumed samples: {step * 2048:12d} "
        f"| elapsed time per iteration (ms): {rng.uniform(900, 1100):.1f} | lm loss: {rng.uniform(1.5, 3):.6E} "
        f"| grad norm: {rng.random():.3f} |"
    )


def _trainer(step: int, rng: Rng) -> str:
    loss, norm, rate = rng.uniform(1, 3), rng.random(), rng.random() * 1e-4
    return f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.14f}, 'learning_rate': {rate:.12e}, 'epoch': {step / 1e4:.2f}}}"


def _bar(step: int, rng: Rng) -> str:
    done = rng.randrange(990)
    return "".join(
        f"\rEpoch {step // 1000}: {at // 10:3d}%|{'█' * (at // 100):10}| {at}/1000 [{_clock(at)}<{_clock(1000 - at)}, "
        f"{rng.uniform(3, 4):.2f}it/s, v_num=3, train_loss={rng.uniform(1, 3):.3f}]"
        for at in (done, done + 1)
    )


def _deepspeed(step: int, rng: Rng) -> str:
    return (
        f"[2026-11-20 {_clock(step)},{rng.randrange(1000):03d}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, "
        f"skipped=0, lr=[{rng.random() * 1e-4:.6e}], mom=[(0.9, 0.95), (0.9, 0.95)]"
    )


def _json(step: int, rng: Rng) -> str:
    return (
        f'{{"ts": "2026-11-20T{_clock(step)}.{rng.randrange(10**6):06d}Z", "level": "info", '
        f'"step": {step}, "loss": {rng.uniform(1, 3):.5f}, "tokens_per_second": {rng.uniform(9e3, 11e3):.1f}, '
        f'"mfu": {rng.random():.3f}}}'
    )


def _nccl(_step: int, rng: Rng) -> str:
    here, there = rng.randrange(8), rng.randrange(8)
    return (
        f"train-worker-3:{rng.randrange(100, 999)}:{rng.randrange(1000, 9999)} [{here}] NCCL INFO "
        f"Channel {rng.randrange(16):02d}/0 : {here}[{here}] -> {there}[{there}] via P2P/CUMEM/read"
    )


def _table(_step: int, rng: Rng) -> str:
    index, slot, heat, power = rng.randrange(8), rng.randrange(16), rng.randrange(30, 80), rng.randrange(100, 700)
    return (
        f"|   {index}  NVIDIA H100 80GB HBM3       On  | 00000000:{slot:02X}:00.0 Off |            0 |\n"
        f"| N/A   {heat}C    P0    {power}W / 700W | {rng.randrange(10_000, 80_000)}MiB / 81559MiB |   98%    Default |"
    )


def _shard(_step: int, rng: Rng) -> str:
    return (
        f"INFO:root:loaded shard {rng.randrange(10_000)} of s3://data/train/part-{rng.randrange(10**6):06d}.parquet "
        f"in {rng.random():.3f} s ({rng.randrange(1_000, 90_000)} rows, {rng.randrange(50)} dropped)"
    )


def _warning(_step: int, rng: Rng) -> str:
    return (
        f"/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:{rng.randrange(100, 999)}: UserWarning: "
        "the use_reentrant parameter should be passed explicitly.\n  warnings.warn("
    )


def _checkpoint(step: int, rng: Rng) -> str:
    return f"Saving model checkpoint to /mnt/ckpt/run-17/checkpoint-{step} (perplexity {rng.uniform(5, 12):.3f})"


def _decoy(_step: int, rng: Rng) -> str:
    return rng.choice(
        [
            "wandb: Network error (ConnectionError), entering retry loop.",
            "[rank0]:[W1120 17:44:40.665371319 ProcessGroupNCCL.cpp:4115] using GPU 0 to perform barrier.",
            "OSError: retrying read of part-00017 (attempt 2)",
        ]
    )


_KINDS: dict[Callable[[int, Rng], str], int] = {
    _megatron: 6000,
    _trainer: 4000,
    _bar: 2000,
    _deepspeed: 2000,
    _json: 2000,
    _nccl: 1600,
    _table: 1000,
    _shard: 700,
    _warning: 300,
    _checkpoint: 390,
    _decoy: 10,
}


def mixed(size: int, seed: int = 1) -> bytes:
    """Lines without a failure, `size` bytes or a little more; one line in two thousand looks like one."""
    rng = random.Random(seed)
    kinds, weights = list(_KINDS), list(_KINDS.values())
    lines: list[bytes] = []
    written = step = 0
    while written < size:
        for kind in rng.choices(kinds, weights, k=1000):
            step += 1
            lines.append(kind(step, rng).encode() + b"\n")
            written += len(lines[-1])
    return b"".join(lines)


def write_failed(path: Path, size: int) -> int:
    """A log of `size` bytes or a little more that fails 256 KiB before its end. Returns its true size."""
    block = mixed(min(size, _BLOCK))
    with path.open("wb") as file:
        while file.tell() < size - (1 << 18):
            file.write(block[: size - (1 << 18) - file.tell()])
        # The launch script lives on, as platforms' do: nothing behind the failure shows the training going on.
        file.write(b"\n" + FAILURE + WAITING * ((1 << 18) // len(WAITING)))
        return file.tell()


def write_dense(path: Path, size: int) -> int:
    """A log of `size` bytes or a little more, full of failed attempts. Returns its true size."""
    block = b"".join(_ATTEMPT % {b"rank": number % 8, b"n": number} for number in range(100, 20_000))
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(block)
        return file.tell()
