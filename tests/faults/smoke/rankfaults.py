"""Rank faults: code appended to the probe, active on the workers whose environment selects it; and test runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from atlctl.jobs.model import Worker
from atlctl.smoke import session
from atlctl.smoke.context import Options, Run, Tier
from atlctl.smoke.findings import Culprit, Report
from atlctl.smoke.ranks import stages
from atlctl.smoke.ranks.allreduce import check_allreduce
from atlctl.smoke.ranks.collectives import check_collectives, check_ddp
from atlctl.smoke.ranks.device import check_device
from atlctl.smoke.ranks.members import chosen
from atlctl.smoke.ranks.stragglers import check_stragglers
from atlctl.smoke.session import Session
from tests.support.plainhosts import PlainHosts, workers

#: The variable with the faults of a worker, and the variable in all processes of a run.
FAULTS, MARK = "SMOKE_TEST_FAULTS", "SMOKE_TEST_MARK"
_HEAD = """

_faults = os.environ.get("SMOKE_TEST_FAULTS", "").split()


def _flip(values, at=5, bit=20):
    flat = values.detach().view(-1)
    flat[at : at + 1] = (flat[at : at + 1].clone().view(torch.int32) ^ (1 << bit)).view(torch.float32)


def _before(owner, name, act):
    real = getattr(owner, name)

    def instead(*args, **more):
        act(*args, **more)
        return real(*args, **more)

    setattr(owner, name, instead)


def _after(owner, name, act):
    real = getattr(owner, name)

    def instead(*args, **more):
        found = real(*args, **more)
        act(found, *args, **more)
        return found

    setattr(owner, name, instead)


def _wrong_gradients(module, *_):
    def flipped(grad):
        own = grad.clone()
        if own.dtype == torch.float32:
            _flip(own)
        return own

    next(module.parameters()).register_hook(flipped)


def _wrong_after(module):
    _flip(next(module.parameters()).grad)


def _no_fork():
    raise OSError(11, "Resource temporarily unavailable")


def _burn(*_):
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        pass


"""
#: The code of each fault, in the probe's names.
TEXTS: Mapping[str, str] = {
    "exits": '_before(Collectives, "all_gather", lambda *_: os._exit(17))',
    "segfaults": '_before(Collectives, "broadcast", lambda *_: os.kill(os.getpid(), 11))',
    "raises": '_before(Collectives, "all_to_all", lambda own: own.no_such_thing)',
    "hangs": '_before(Collectives, "all_gather", lambda *_: time.sleep(3600))',
    "hangs inside": '_before(dist, "broadcast", lambda *_, **__: time.sleep(3600))',
    "stops": '_before(Collectives, "all_to_all", lambda *_: os.kill(os.getpid(), 19))',
    "never forks": "os.fork = _no_fork",
    "never comes up": '_before(torch, "set_num_threads", lambda *_: time.sleep(3600))',
    "computes wrong": '_after(torch.Tensor, "__matmul__", lambda got, *_: got.dtype == torch.float32 and _flip(got))',
    "wrong gradients": '_after(sys.modules[__name__], "model", _wrong_gradients)',
    "sends wrong": '_after(Collectives, "sent", lambda got, *_: _flip(got))',
    "sums wrong": '_before(dist, "all_reduce", lambda values, *_, **__: _flip(values))',
    "scatters wrong": """for _name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, _name):
            _before(dist, _name, lambda _, values: _flip(values))""",
    "comes late": '_before(Collectives, "all_gather", lambda *_: time.sleep(0.6))',
    "diverges": '_before(sys.modules[__name__], "synced", _wrong_after)',
    "sleeps": '_before(sys.modules[__name__], "work", lambda *_: time.sleep(0.05))',
    "burns": '_before(sys.modules[__name__], "work", _burn)',
    "no torch": "",
    "starved": "",
}
_DEVICE, _COLLECTIVES = ("device",), ("collectives",)
#: The checks to run for a fault. The last one must find it.
CHECKS: Mapping[str, tuple[str, ...]] = {
    "never forks": _DEVICE,
    "never comes up": _DEVICE,
    "computes wrong": _DEVICE,
    "wrong gradients": ("ddp",),
    "diverges": ("ddp",),
    "sleeps": ("stragglers",),
    "burns": ("stragglers",),
    "starved": ("stragglers",),
}
_ALL: Mapping[str, Callable[[Run], object]] = {
    "device": check_device,
    "collectives": check_collectives,
    "ddp": check_ddp,
    "allreduce": check_allreduce,
    "stragglers": check_stragglers,
}


def program(extra: str = "") -> bytes:
    """The agent's program with the faults appended to the probe."""
    texts = json.loads(zlib.decompress(_REAL()))
    wanted = "\n".join(f"if {name.replace(' ', '-')!r} in _faults:\n    {text}" for name, text in TEXTS.items() if text)
    texts["atlctl.remote.smoke.probe"] += _HEAD + wanted + "\n" + extra
    return zlib.compress(json.dumps(texts).encode(), 1)


_REAL = session.program


@dataclass
class Told:
    """The results of one run."""

    report: Report
    seconds: float = 0.0
    mark: str = ""
    culprits: dict[str, float] = field(default_factory=dict)

    @property
    def accused(self) -> set[str]:
        """Workers, or pairs of workers, with findings, including those that were only not judged."""
        return {_name(f.culprit) for f in self.report.findings if f.culprit is not None}

    def lines(self) -> str:
        found = [f"{f.check} {f.severity} {_name(f.culprit)} {f.confirmed}: {f.evidence}" for f in self.report.findings]
        return "\n".join([*found, *(f"{c.name} {c.verdict} {c.seconds} {c.note}" for c in self.report.checks)])

    @property
    def left_behind(self) -> list[int]:
        return marked(self.mark)


def _name(culprit: Culprit | None) -> str:
    return "-".join(filter(None, (culprit.worker, culprit.peer))) if culprit is not None else "nobody"


def marked(mark: str) -> list[int]:
    """Live processes of a run."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def hosts(faults: Mapping[int, Sequence[str]], mark: str) -> PlainHosts:
    """Plain hosts, with the given `faults` by index."""

    def env(worker: Worker) -> dict[str, str]:
        mine = faults.get(worker.index, ())
        broken = {"PYTHONPATH": str(_BROKEN)} if "no torch" in mine else {}
        # Otherwise the torch of any process on this machine would be used, which may be half installed.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        return {MARK: mark, "PATH": path, FAULTS: " ".join(f.replace(" ", "-") for f in mine), **broken}

    def prefix(worker: Worker) -> Sequence[str]:
        if any("starved" in names for names in faults.values()):
            return ("taskset", "-c", "0" if "starved" in faults.get(worker.index, ()) else "1")
        return ()

    return PlainHosts(prefix, env)


#: Number of processes that compete for the CPU of a starved worker.
_NEIGHBOURS = 6
#: A folder with a torch that cannot be imported.
_BROKEN = Path(__file__).parent / "broken"


@contextmanager
def hungry_neighbours(count: int) -> Iterator[None]:
    """Processes that keep the first CPU busy."""
    burning = [
        subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


async def drive(
    count: int,
    faults: Mapping[int, Sequence[str]],
    checks: Sequence[str] | None = None,
    *,
    tier: Tier = "quick",
    mark: str = "",
    extra: str = "",
    idle: float = stages.IDLE,
) -> Told:
    """Run the roll call and the checks for these faults on `count` plain hosts. `idle`: seconds without progress after
    which a rank counts as hung."""
    mark = mark or os.urandom(8).hex()
    wanted = checks or dict.fromkeys(c for names in faults.values() for n in names for c in CHECKS.get(n, _COLLECTIVES))
    known = workers(count)
    text = program(extra)
    # Import only what a stage needs; a single worker runs no group stage.
    config = {"seconds": 100, "torch": True, "nice": 0, "stages": list(wanted) if count > 1 else []}
    neighbours = _NEIGHBOURS if any("starved" in names for names in faults.values()) else 0
    with mock.patch.object(session, "program", return_value=text), mock.patch.object(stages, "IDLE", idle):
        begun = time.monotonic()
        told = Told(Report(tier), mark=mark)
        async with Session(hosts(faults, mark), known, config) as asked:
            missing = await asked.roll_call(30)
            assert not missing, missing
            run = Run(asked, tuple(known), Options(tier), told.report)
            await chosen(run)  # import torch before other processes compete for the CPU
            with hungry_neighbours(neighbours):
                for check in wanted:
                    await _ALL[check](run)  # type: ignore[misc]
                    told.culprits[check] = time.monotonic() - begun
        told.seconds = time.monotonic() - begun
    return told


def driven(
    count: int, faults: Mapping[int, Sequence[str]], checks: Sequence[str] | None = None, **more: object
) -> Told:
    """Like `drive`; also checks that nothing is left behind."""
    told = asyncio.run(drive(count, faults, checks, **more))  # type: ignore[arg-type]
    end = time.monotonic() + 3
    while told.left_behind and time.monotonic() < end:
        time.sleep(0.02)
    assert not told.left_behind
    return told
