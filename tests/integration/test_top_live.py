"""`atlctl top` on a terminal: display, changes of workers meanwhile, and no leftovers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from atlctl.render.screen import ENTER as ENTER_TEXT
from atlctl.render.screen import LEAVE as LEAVE_TEXT
from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.integration.terminal import Terminal
from tests.integration.test_ssh_commands import Cluster
from tests.support import proc
from tests.support.needs import needs

#: Eight GPUs on each worker, in the format of a 2023 driver. A file HOME/odd-RANK is sourced first.
_NVIDIA_SMI = """#!/bin/sh
idle= slow= ecc=
[ ! -e HOME/odd-$RANK ] || . HOME/odd-$RANK
for n in 0 1 2 3 4 5 6 7; do
  u=99 m=70123 p=68$n.62 t=6$n e=0 r=0x0000000000000004
  [ "$n" != "$idle" ] || { u=0 p=118.20 r=0x0000000000000001; }
  [ "$n" != "$slow" ] || p=231.40
  [ "$n" != "$ecc" ] || e=2 r=0x0000000000000048
  echo "$n, GPU-$RANK-$n, NVIDIA H100 80GB HBM3, $u, $m, 81559, $p, $t, $e, $r"
done
"""
#: The last bytes of a table.
DRAWN = b"\x1b[J"
ENTER, LEAVE = ENTER_TEXT.encode(), LEAVE_TEXT.encode()


class Gpus(Registry):
    """Jobs with GPUs on their workers."""

    def begin(self) -> None:
        tools = self.home / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text(_NVIDIA_SMI.replace("HOME", str(self.home)))
        (tools / "nvidia-smi").chmod(0o755)

    def odd(self, rank: int, text: str) -> None:
        """Set the shell code that this worker's `nvidia-smi` runs before it prints its rows."""
        new = self.home / "new"
        new.write_text(text)
        new.rename(self.home / f"odd-{rank}")

    def job(self, name: str, workers: int, *command: str) -> str:
        return self.start(name, workers, *command, options=("--env", f"PATH={self.home}/tools:{os.environ['PATH']}"))

    def samplers(self) -> list[proc.Process]:
        return self.running("memory.current")

    def top(
        self,
        *words: str,
        columns: int = 130,
        rows: int = 40,
        term: str = "xterm",
        env: Mapping[str, str] | None = None,
        job: bool = False,
    ) -> Terminal:
        given = {**self.env, "TERM": term, **(env or {})}
        return Terminal("top", *words, "--interval", "1", env=given, columns=columns, rows=rows, job=job)


@pytest.fixture
def jobs() -> Iterator[Gpus]:
    with registry() as own:
        made = Gpus(own.home)
        made.begin()
        try:
            yield made
        finally:
            made.end()


def until(screen: Terminal, *texts: bytes, timeout: float = 100) -> str:
    """The first table with all these texts, as lines without escapes."""
    shown = b""

    def drawn() -> bool:
        nonlocal shown
        shown = screen.wait_for(DRAWN, timeout)
        return all(text in shown for text in texts)

    assert proc.wait_until(drawn, timeout, 0), shown
    last = shown.decode().rpartition("\x1b[H")[2]
    return re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", last), flags=re.MULTILINE)


def drawn_until(screen: Terminal, holds: Callable[[str], bool], timeout: float = 100) -> str:
    """The first table that `holds` accepts."""
    table = ""

    def drawn() -> bool:
        nonlocal table
        table = until(screen)
        return holds(table)

    assert proc.wait_until(drawn, timeout, 0), table
    return table


def row(table: str, start: str) -> str:
    return next(line for line in table.splitlines() if " ".join(line.split()).startswith(start))


def test_marks_order_and_keys(jobs: Gpus) -> None:
    jobs.odd(1, "idle=3 slow=5")
    jobs.odd(2, "ecc=6")
    jobs.job("train", 3)
    with jobs.top("train", columns=150) as screen:
        table = until(screen, b"0/2", b"ECC, slowed")
        lines = table.splitlines()
        assert lines[0].startswith("train  ")
        assert lines[0].endswith("3 workers, 24 GPUs (NVIDIA H100 80GB HBM3), 3 GPUs with marks")
        assert lines[1].startswith("23 of 24 GPUs busy, median use 99 %, power ")
        odd = [" ".join(line.split()[:2]) for line in lines[3:7]]
        assert odd == ["worker-2 6", "worker-1 5", "worker-1 3", "worker-0 0"]
        assert row(table, "worker-2 6").endswith("  2 uncorrected ECC, slowed: heat")
        assert row(table, "worker-1 3").endswith("  idle, holds memory")
        assert row(table, "worker-1 5").endswith("  low power? 34% of median")
        assert lines[-1].startswith("q quit  ? help  s sort: marks  / filter  w only marks  enter details")
        screen.type(b"x")
        screen.type(b"w")
        table = drawn_until(screen, lambda table: "w all" in table)
        assert [line.split()[0] for line in table.splitlines()[3:7] if line.strip()] == [
            "worker-2",
            "worker-1",
            "worker-1",
        ]
        screen.type(b"w/worker-1\r")
        table = drawn_until(screen, lambda table: "/ filter: worker-1" in table)
        assert "worker-0" not in table
        screen.type(b"\x1b")
        drawn_until(screen, lambda table: "worker-0" in table and "/ filter  " in table)
        screen.type(b"ssss")
        table = drawn_until(screen, lambda table: "s sort: worker" in table)
        assert [" ".join(line.split()[:2]) for line in table.splitlines()[3:5]] == ["worker-0 0", "worker-0 1"]
        screen.type(b"\x1b[Bj\x1b[6~\r")
        table = drawn_until(screen, lambda table: "esc back" in table)
        assert "worker-2  Running, on" in table
        assert "GPU 6  NVIDIA H100 80GB HBM3  GPU-2-6" in table
        screen.type(b"?")
        drawn_until(screen, lambda table: "this page" in table)
        screen.type(b"\x1b")
        drawn_until(screen, lambda table: "s sort: worker" in table)
        screen.type(b"q")
        assert screen.code() == 0
        assert screen.mode() == screen.before
    assert b"\nx" not in screen.screen
    assert (screen.screen.count(ENTER), screen.screen.count(LEAVE)) == (1, 1)
    assert screen.screen.endswith(LEAVE)
    assert proc.wait_until(lambda: not jobs.samplers())


def test_a_stop_gives_the_terminal_back_until_it_goes_on(jobs: Gpus) -> None:
    jobs.job("train", 1)
    with jobs.top("train", job=True) as screen:
        until(screen, b"8 GPUs")
        atlctl = screen.pid
        screen.type(b"\x1a")
        screen.wait_for(LEAVE)
        assert proc.wait_until(lambda: _state(atlctl) == "T")
        assert screen.mode() == screen.before
        os.kill(atlctl, signal.SIGCONT)
        screen.wait_for(ENTER)
        until(screen, b"8 GPUs")
        assert screen.mode() != screen.before
        screen.type(b"q")
        assert screen.code() == 0
        assert screen.mode() == screen.before
        assert screen.screen.endswith(LEAVE)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_locale_of_ascii_and_no_colours(jobs: Gpus) -> None:
    jobs.odd(0, "ecc=6")
    jobs.job("train", 1)
    with jobs.top("train", columns=150, env={"LC_ALL": "C", "NO_COLOR": "1"}) as screen:
        table = until(screen, b"2 uncorrected ECC")
        assert "#####  99" in table
        screen.type(b"q")
        assert screen.code() == 0
    assert screen.screen.isascii()
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9;]*m", screen.screen)


def test_it_goes_on_and_follows_what_changes(jobs: Gpus) -> None:
    jobs.job("train", 1)
    with jobs.top("train") as screen:
        until(screen, b"worker-0")
        jobs.odd(0, "ecc=2")
        until(screen, b"2 uncorrected ECC")
        jobs.odd(0, "echo 'driver mismatch'; exit 18")
        assert "nvidia-smi ended with 18: driver mismatch" in until(screen, b"mismatch")
        jobs.odd(0, "printf 'evil \\033]0;x\\007\\233 text\\n'; exit 1")
        table = until(screen, b"evil")
        assert "evil ^[]0;x^G" in table
        jobs.odd(0, "head -c 3000000 /dev/zero; exit 0")
        until(screen, b"printed no GPU")
        jobs.odd(0, "")
        until(screen, b"1 worker, 8 GPUs")


def test_a_driver_that_hangs_stops_neither_the_rest_nor_the_view(jobs: Gpus) -> None:
    jobs.odd(1, "exec sleep 305")
    jobs.job("train", 2)
    with jobs.top("train") as screen:
        table = until(screen, b"nvidia-smi silent")
        assert "nvidia-smi silent 1" in row(table, "worker-1 -")
        assert "silent" not in row(table, "worker-0 0")
        screen.type(b"q")
        assert screen.code() == 0
    assert proc.wait_until(lambda: not jobs.commands("sleep 305"))


def test_workers_that_end(jobs: Gpus) -> None:
    jobs.job("train", 2)
    with jobs.top("train") as screen:
        until(screen, b"2 workers, 16 GPUs")
        first, second = (worker["pid"] for worker in jobs.data("ps", "train")["workers"])
        os.kill(first, signal.SIGKILL)
        table = until(screen, b"1 ended")
        assert row(table, "worker-0 -").endswith("not running (Failed)")
        assert "worker-1    0" in table
        os.kill(second, signal.SIGKILL)
        assert screen.code() == 0
    # The last table is on the original screen.
    assert screen.screen.rpartition(LEAVE)[2].count(b"not running (Failed)") == 2


def test_a_sampler_that_is_killed_is_started_again(jobs: Gpus) -> None:
    jobs.job("train", 2)
    with jobs.top("train") as screen:
        until(screen, b"2 workers, 16 GPUs")
        proc.kill(jobs.samplers()[0])
        assert "the sampler ended with signal 9" in until(screen, b"1 lost")
        table = until(screen, b"2 workers, 16 GPUs")
        assert "lost" not in table


@pytest.mark.parametrize(("how", "code"), [(b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_it_ends_nothing_is_left(jobs: Gpus, how: bytes | signal.Signals, code: int) -> None:
    jobs.job("train", 3)
    with jobs.top("train") as screen:
        until(screen, b"3 workers, 24 GPUs")
        assert jobs.samplers()
        if isinstance(how, bytes):
            screen.type(how)
        else:
            os.kill(screen.pid, how)
        assert screen.code() == code
        if code > 0:
            assert screen.screen.endswith(LEAVE)
            assert screen.mode() == screen.before
    assert proc.wait_until(lambda: not jobs.samplers()), jobs.samplers()


def test_another_size(jobs: Gpus) -> None:
    jobs.job("train", 2)
    with jobs.top("train") as screen:
        assert len(until(screen, b"16 GPUs").splitlines()) >= 3 + 16
        screen.resize(60, 8)
        os.kill(screen.pid, signal.SIGWINCH)
        table = until(screen, b"\x1b[2J")
        assert "… 16 GPUs unremarkable" in table or "too narrow for" in table
        assert len(table.splitlines()) == 8
        assert max(map(len, table.splitlines())) <= 60


def test_a_job_that_is_replaced(jobs: Gpus) -> None:
    jobs.job("again", 2)
    with jobs.top("again") as screen:
        until(screen, b"2 workers, 16 GPUs")
        # Another job of the same name, found by a refresh after a worker is lost.
        record = jobs.folder("again") / "job.json"
        record.write_text(record.read_text().replace(jobs.data("ps", "again")["job"]["uid"], "another"))
        proc.kill(jobs.samplers()[0])
        assert screen.code() == 1
        assert b"job again was replaced by another of the same name" in screen.screen


def test_a_terminal_without_escapes(jobs: Gpus) -> None:
    jobs.job("train", 1)
    with jobs.top("train", term="dumb") as screen:
        screen.wait_for(b"8 GPUs")
        screen.wait_for(b"8 GPUs")
        screen.type(b"q")
        assert screen.code() == 0
        assert b"\x1b" not in screen.screen


def test_a_job_that_has_ended_is_shown_once(jobs: Gpus) -> None:
    jobs.job("done", 1, "true")
    jobs.until("done", "Succeeded")
    with jobs.top("done") as screen:
        assert screen.code() == 1
        assert b"worker-0: not running (Succeeded)" in screen.screen


def test_in_pods(tmp_path: Path) -> None:
    """One sampler is killed, as at a container's end, and restarted; nothing is left at the end."""
    script = tmp_path / "nvidia-smi"
    script.write_text(_NVIDIA_SMI.replace("HOME", str(tmp_path)))
    script.chmod(0o755)
    with Server() as server:
        for number in range(2):
            variables = [{"name": "RANK", "value": str(number)}, {"name": "PATH", "value": f"{tmp_path}:/usr/bin:/bin"}]
            container = {"name": "main", "command": ["sleep", "1000"], "env": variables}
            meta = {"name": f"w-{number}", "namespace": "default", "labels": {"app": "train"}}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
            server.put(pod, run=True)
        env = {"KUBECONFIG": str(server.kubeconfig), "TERM": "xterm"}
        words = ("top", "-l", "app=train", "--interval", "1")
        with Terminal(*words, env=env, columns=130, rows=40) as screen:
            until(screen, b"2 workers, 16 GPUs")
            for sampler in proc.named("/bin/sh -c i="):
                if "RANK=1" in Path(f"/proc/{sampler.pid}/environ").read_text().split("\0"):
                    proc.kill(sampler)
            until(screen, b"1 lost")
            until(screen, b"2 workers, 16 GPUs")
            screen.type(b"q")
            assert screen.code() == 0
        assert proc.wait_until(lambda: not proc.named("memory.current"))


@needs("sshd")
def test_on_hosts() -> None:
    """Hosts from a list: CPU and memory are those of the machine. One host disappears and returns."""
    with registry() as own:
        cluster = Cluster(own.home)
        cluster.begin()
        try:
            words = ("--hostfile", str(own.home / "hosts"), "top", "--interval", "1")
            with Terminal(*words, env={**cluster.env, "TERM": "xterm"}, columns=130, rows=40) as screen:
                until(screen, b"nvidia-smi not found", b"gpu1", b"gpu2")
                cluster.hosts[0].kill_all()
                until(screen, b"1 lost")
                cluster.hosts[0].start()
                assert "lost" not in until(screen, b"gpu1", b"2 workers, 0 GPUs")
                screen.type(b"q")
                assert screen.code() == 0
            assert proc.wait_until(lambda: not cluster.running("memory.current"))
        finally:
            cluster.close()
            cluster.end()
