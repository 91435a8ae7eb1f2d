"""The storage part of the smoke test over and over: real mounts that are wrong at random hosts, and healthy runs.

    .venv/bin/python -m tests.soak.smoke.storage --rounds 20 --healthy 60

Root only; the mounts that hang, are slow or lie want /dev/fuse.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atlctl.jobs.model import Worker
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Report, Severity
from atlctl.smoke.session import Session
from atlctl.smoke.storage import check_storage
from tests.faults.smoke.test_storage import Site
from tests.support.plainhosts import PlainHosts, workers

FAULTS: dict[str, Callable[[Site], str]] = {
    "read-only": lambda site: f"mount --bind {site.shared} {site.at} && mount -o remount,ro,bind {site.at}",
    "another volume": lambda site: f"mount -t tmpfs none {site.at}",
    "not there": lambda site: f"mount -t tmpfs none {site.at.parent}",
    "full": lambda site: (
        f"mount -t tmpfs -o size=1m none {site.at}; dd if=/dev/zero of={site.at}/all bs=64k 2>/dev/null; true"
    ),
    "hangs": lambda site: site.fuse("fsync=hang"),
    "slow": lambda site: site.fuse("write=0.04"),
    "reads otherwise": lambda site: site.fuse("read=flip"),
}


@dataclass
class Row:
    """Runs of one thing."""

    name: str
    exact: int = 0
    others: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def line(self) -> str:
        times = f"{statistics.median(self.seconds):.1f} | {max(self.seconds):.1f}"
        return f"| {self.name} | {len(self.seconds)} | {self.exact} | {self.others} | {times} |"


async def _check(site: Site, wrong: dict[int, str], hosts: Sequence[Worker]) -> Report:
    def words(worker: Worker) -> Sequence[str]:
        mount = wrong.get(worker.index, f"mount --bind {site.shared} {site.at}")
        return ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")

    report = Report("quick")
    config = {"seconds": 90, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
    async with Session(PlainHosts(words), hosts, config) as session:
        await session.roll_call(20)
        await check_storage(Run(session, tuple(hosts), Options(mounts=(str(site.at),)), report))
    return report


def once(row: Row, faults: Sequence[str], chance: random.Random) -> None:
    """One run with these faults, each on a host of its own."""
    hosts = workers(chance.choice((4, 8)))
    bad = chance.sample(range(len(hosts)), len(faults))
    with tempfile.TemporaryDirectory(prefix="atl-") as folder:
        site = Site(Path(folder))
        wrong = {index: FAULTS[fault](site) for index, fault in zip(bad, faults, strict=True)}
        begun = time.monotonic()
        report = asyncio.run(_check(site, wrong, hosts))
        row.seconds.append(time.monotonic() - begun)
        told = [f for f in report.findings if f.severity in (Severity.FAIL, Severity.WARN)]
        named = {f.culprit.worker for f in told if f.culprit is not None and f.culprit.path == str(site.at)}
        wanted = {f"worker-{index}" for index in bad}
        row.exact += wanted <= named
        row.others += bool(named - wanted) or len(told) > len(named)
        if named != wanted or any(site.shared.iterdir()):
            left = sorted(path.name for path in site.shared.iterdir())
            print(f"--- {row.name}: wanted {sorted(wanted)}, files left {left}\n{report.findings}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.smoke.storage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    rows = []
    for fault in FAULTS:
        rows.append(Row(fault))
        for _ in range(options.rounds):
            once(rows[-1], [fault], chance)
    rows.append(Row("two faults at once"))
    for _ in range(options.rounds):
        once(rows[-1], chance.sample(list(FAULTS), 2), chance)
    rows.append(Row("healthy"))
    for _ in range(options.healthy):
        once(rows[-1], [], chance)
    print("| what | runs | named exactly | others accused | median s | longest s |\n|---|---|---|---|---|---|")
    print("\n".join(row.line for row in rows if row.seconds))
    return int(any(row.exact < len(row.seconds) or row.others for row in rows))


if __name__ == "__main__":
    sys.exit(main())
