"""What the training script prints: its start, its steps in one of four styles, its exceptions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.corpus.scale.job import Job, Rank
from tests.corpus.scale.log import SECOND

_PACKAGES = "/opt/venv/lib/python{}/site-packages"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback; `mark` is the part of the line that Python 3.11 underlines."""

    path: str
    line: int
    function: str
    code: str
    mark: str = ""


def traceback_text(frames: list[Frame], last: str, carets: bool) -> str:
    """As Python prints it, without prefix."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "{frame.path}", line {frame.line}, in {frame.function}', f"    {frame.code}"]
        if carets and frame.mark:
            lines.append(" " * (4 + frame.code.index(frame.mark)) + "^" * len(frame.mark))
    return "\n".join([*lines, last])


def script_frames(job: Job, *inner: tuple[str, int, str, str]) -> list[Frame]:
    """The script's own frames from the outside in; `inner` are (file below /workspace, line, function, code)."""
    main = f"/workspace/{job.script}"
    frames = [Frame(main, 211, "<module>", "main()")]
    if job.record:
        errors = f"{_PACKAGES.format(job.profile.python)}/torch/distributed/elastic/multiprocessing/errors/__init__.py"
        call = "f(*args, **kwargs)"
        frames.append(Frame(errors, job.profile.agent.wrapper, "wrapper", f"return {call}", call))
    frames.append(Frame(main, 198, "main", "trainer.fit(model, loader)"))
    return frames + [Frame(f"/workspace/{path}", line, function, code) for path, line, function, code in inner]


def raise_exception(job: Job, rank: Rank, moment: int, frames: list[Frame], last: str) -> str:
    """Prints an uncaught exception of a rank that has joined its group; the traceback without prefix."""
    text = traceback_text(frames, last, job.profile.carets)
    prefix = f"[rank{rank.number}]: " if job.profile.rank_prefix else ""
    rank.add(moment, "\n".join(prefix + line if line else line for line in text.split("\n")))
    return text


def start_lines(job: Job, rank: Rank, moment: int) -> None:
    """What a process says before the first step."""
    clock = rank.worker.log.clock
    if job.style == "logging":
        text = f"global rank {rank.number} of {job.world}, local rank {rank.local} on {rank.worker.name}"
        rank.add(moment, _logging(job, rank, moment, text))
    if rank.number == 0:
        text = f"world size {job.world}, bf16, global batch {job.world * 4}"
        rank.add(moment + SECOND // 9, f"[{clock.plain(moment)}] {text}")
        rank.add(moment + SECOND // 3, json.dumps({"model": {"layers": 48, "hidden": 6144}, "optimizer": "adamw"}))
    if rank.local == 0 and job.style == "first":
        rank.add(moment + SECOND // 5, f"loading shards {rank.number * 7}..{rank.number * 7 + 6} from /data/pile")


def training(job: Job, begin: int, steps: int, first: int, pace: float, restarted: bool = False) -> int:
    """Prints `steps` steps of `pace` seconds each, from number `first` on; the time after the last one (ns)."""
    span = int(pace * SECOND)
    for rank in _speakers(job):
        if restarted:
            rank.add(begin - span // 2, f"resuming from /checkpoints/iter_{first:07d}")
        for step in range(steps):
            moment = begin + (step + 1) * span + job.rng.randrange(0, span // 50 + 1)
            _step(job, rank, moment, first + step, pace, step)
    zero = job.ranks[0]
    for step in range(50 - first % 50, steps, 50):
        moment = begin + (step + 1) * span + span // 3
        zero.add(moment, f"saved checkpoint at iteration {first + step} to /checkpoints/iter_{first + step:07d}")
    return begin + steps * span


def _speakers(job: Job) -> list[Rank]:
    """The ranks that print steps: all, the last one, or each worker's first."""
    match job.style:
        case "logging":
            return job.ranks
        case "megatron":
            return job.ranks[-1:]
    return [rank for rank in job.ranks if rank.local == 0]


def _step(job: Job, rank: Rank, moment: int, number: int, pace: float, step: int) -> None:
    loss = 1.7 + 6.0 / (1 + number / 90) + job.rng.uniform(-0.02, 0.02)
    clock = rank.worker.log.clock
    match job.style:
        case "logging":
            text = f"step {number} loss {loss:.4f} grad {job.rng.uniform(0.2, 0.9):.3f}"
            rank.add(moment, _logging(job, rank, moment, text))
        case "megatron":
            fields = (
                f"iteration {number:8d}/  500000",
                f"consumed samples: {number * job.world * 4:12d}",
                f"elapsed time per iteration (ms): {pace * 1000 + job.rng.uniform(-9, 9):.1f}",
                "learning rate: 1.200E-04",
                f"global batch size: {job.world * 4:5d}",
                f"lm loss: {loss:.6E}",
                "loss scale: 1.0",
                f"grad norm: {job.rng.uniform(0.2, 0.9):.3f}",
                "number of skipped iterations:   0",
                "number of nan iterations:   0 |",
            )
            rank.add(moment, f" [{clock.plain(moment)}] {' | '.join(fields)}")
        case "first":
            rank.add(moment, f"step {number} loss {loss:.4f} lr 1.2e-04 tok/s {job.rng.uniform(8000, 9000):.0f}")
        case "bars":
            done, total = step % 50 + 1, 50
            bar = "█" * (done * 10 // total) + " " * (10 - done * 10 // total)
            spent = int(done * pace)
            text = f"\r{100 * done // total:3d}%|{bar}| {done}/{total} [{spent // 60:02d}:{spent % 60:02d}"
            rank.add(moment, f"{text}, {pace:5.2f}s/it, loss={loss:.3f}]", end="\n" if done == total else "")


def _logging(job: Job, rank: Rank, moment: int, text: str) -> str:
    clock = rank.worker.log.clock
    return f"[{clock.asctime(moment)}][{rank.worker.name}][rank {rank.number}/{job.world}] INFO {text}"


_NOISE = (
    "{now} WARNING loader: retry 1/5 after ConnectionError: HTTPSConnectionPool(host='minio'): Read timed out.",
    "OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "{now} ERROR tracker: upload failed (OSError: [Errno 110] Connection timed out), will try again",
    "/workspace/engine.py:88: FutureWarning: `torch.cpu.amp.autocast(args...)` is deprecated.",
    "{now} WARNING data: sample 88123 skipped: UnicodeDecodeError('utf-8', b'\\xff', 0, 1, 'invalid start byte')",
)


def noise(job: Job, begin: int, end: int) -> None:
    """Warnings that look bad and mean nothing, spread over a run that goes well."""
    rng = job.rng
    for worker in job.workers:
        rank = rng.choice(job.of(worker))
        for _ in range(rng.randrange(3)):
            moment = rng.randrange(begin, end)
            text = rng.choice(_NOISE).format(now=worker.log.clock.asctime(moment), rank=rank.number)
            rank.add(moment, text)
