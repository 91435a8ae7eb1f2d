"""Measures the longest time that a command prints nothing on its terminal: `python -m tests.integration.silence` runs
every command, on slow backends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.support.cli import ATLCTL, STATUS_LINE

#: Delay in seconds of each answer of the API server.
LATE = 2.0


class Seen(NamedTuple):
    """`silence`: the longest time in seconds between two outputs (after the first, up to the end), and the end of the
    screen `before` it. `first`: seconds to the first output. `left`: the final screen."""

    silence: float
    before: bytes
    first: float
    screen: bytes

    @property
    def left(self) -> bytes:
        return STATUS_LINE.sub(b"", self.screen)


def watched(
    *words: str,
    env: Mapping[str, str | None],
    keys: Sequence[tuple[float, bytes]] = (),
    limit: float = 60,
    columns: int = 100,
) -> Seen:
    """Run `atlctl WORDS` on a terminal. `keys`: input and its times. After `limit` seconds it gets SIGINT."""
    terminal, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    merged = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    begun = last = time.monotonic()
    first, silence, before, screen, typed = None, 0.0, b"", b"", list(keys)
    argv = ["setsid", "--ctty", *ATLCTL, *words]
    with subprocess.Popen(argv, env=merged, stdin=line, stdout=line, stderr=line) as run:
        os.close(line)
        while True:
            now = time.monotonic()
            if typed and now - begun > typed[0][0]:
                os.write(terminal, typed.pop(0)[1])
            if now - begun > limit:
                run.send_signal(signal.SIGINT)
                limit += 5
            ended = run.poll() is not None
            if select.select([terminal], [], [], 0 if ended else 0.02)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    data = b""
                if data:
                    now = time.monotonic()
                    first = now - begun if first is None else first
                    if screen and now - last > silence:
                        silence, before = now - last, screen[-150:]
                    last, screen = now, screen + data
                    continue
            if ended:
                break
    os.close(terminal)
    return Seen(max(silence, time.monotonic() - last), before, first or time.monotonic() - begun, screen)


@contextlib.contextmanager
def slow_cluster(seconds: float = LATE) -> Iterator[Cluster]:
    """`train`, a PyTorchJob of two live workers, on a server that delays every answer."""
    with Server() as server:
        cluster = Cluster(server)
        cluster.pytorchjob("train", run=True)
        for index in range(2):
            server.wait_phase(f"train-worker-{index}", "Running")
        for kind in ("every", "exec", "log"):
            server.fault("delay", kind=kind, seconds=seconds)
        yield cluster


def _commands(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Command lines, each with the options for `watched`."""
    log = folder / "worker-0.log"
    with log.open("w") as file:
        file.writelines(f"step {number} loss 1.0 of an epoch that goes on and on\n" for number in range(12_000_000))
    slow = "sh -c 'sleep 3; echo done'"
    for words in (
        "jobs", "ps train", "events train", f"exec -j train --all {slow}", f"exec -j train -w 0 {slow}",
        "logs train", "errors train", "stacks train", "top train --once", "smoke train --no-gpu",
        f"cp -j train worker-0:/bin/ls {folder}/ls", f"report train --out {folder}/report", "doctor", "doctor -j train",
        "stop train --dry-run", f"errors --from {log}", f"report --from {log} --out {folder}/report-2",
    ):  # fmt: skip
        yield words, {}
    for words in ("logs train -f", "ps train --watch", f"record train --out {folder}/record"):
        yield words, {"limit": 12}
    yield "top train", {"keys": [(15, b"q")]}
    yield "shell -j train worker-0", {"keys": [(15, b"exit\r")]}
    yield f"stop train --yes --out {folder}/saved", {}
    yield "resume train --yes", {}
    yield "local run -w 2 --name here -- sh -c 'sleep 3; echo one; sleep 3'", {}
    yield "local rm here --yes", {}
    yield "demo", {"limit": 300}


def main() -> None:
    """Print a line for each command; those that are silent for more than a second are marked."""
    with tempfile.TemporaryDirectory() as place, slow_cluster() as cluster:
        folder = Path(place)
        env = {"KUBECONFIG": str(cluster.server.kubeconfig), "ATLCTL_STATE_DIR": str(folder / "state")}
        cluster.server.controller(on=True)
        only = sys.argv[1:]
        for words, how in _commands(folder):
            if not only or words.split()[0] in only:
                seen = watched(*shlex.split(words), env=env, **how)
                mark = f"SILENT behind {seen.before!r}" if seen.silence > 1 else ""
                sys.stdout.write(f"{seen.first:5.2f} s to the first byte, then {seen.silence:5.2f} s  {words} {mark}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
