"""A root folder with a static busybox, /proc, /dev/null: no Python, no C library, no loader. In its own namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest

from atlctl.packaging.dists import BuildError
from atlctl.packaging.tree import loader_of
from tests.support import proc
from tests.support.cli import Result
from tests.support.needs import find_program

#: Runs with the machine's own programs; the holder is a busybox that waits for the end of its input.
_SETUP = """
set -e
mount -t proc proc "$1/proc"
mount --bind /dev/null "$1/dev/null"
mkdir "$1/noexec"
mount -t tmpfs -o noexec,mode=1777 tmpfs "$1/noexec"
mount -t tmpfs -o size=4m,mode=1777 tmpfs "$1/small"
echo ready
exec "$1/bin/busybox" cat
"""
ROOT = os.geteuid() == 0


class Bare:
    """What runs in it ends with it. Open it with `with`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        folder.chmod(0o755)
        program = find_program("busybox")
        assert program is not None
        try:
            loader_of(Path(program))
        except BuildError:
            pass
        else:
            pytest.skip("busybox is not the static one of busybox-static")
        for name in ("bin", "dev", "etc", "home/u", "proc", "small", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        (folder / "dev/null").touch()
        shutil.copy(program, folder / "bin/busybox")
        applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
        for name in applets:
            if name != "busybox":
                (folder / "bin" / name).symlink_to("busybox")

    def __enter__(self) -> Self:
        user = [] if ROOT else ["--user", "--map-root-user"]
        words = ["unshare", *user, "--mount", "--pid", "--fork", "--kill-child"]
        words += ["sh", "-c", _SETUP, "sh", str(self.root)]
        self._holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            _, said = self._holder.communicate(timeout=100)
            pytest.skip(f"no namespaces of one's own here: {said.decode(errors='replace').strip()[:200]}")
        self._inside = next(process.pid for process in proc.processes() if process.parent == self._holder.pid)
        return self

    def __exit__(self, *error: object) -> None:
        self._holder.communicate(timeout=100)
        # The first process of a pid namespace takes all others along.
        deadline = time.monotonic() + 100
        while proc.alive(self._inside):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shutil.rmtree(self.root)  # a hundred megabytes for each tree that was unpacked

    def words(self, *words: str, uid: int = 0, env: dict[str, str] | None = None) -> list[str]:
        """The command line that runs `words` in it, with nothing in the environment but a home, PATH and `env`."""
        variables = {"PATH": "/bin", "HOME": "/home/u", proc.MARK: os.environ.get(proc.MARK, ""), **(env or {})}
        user = [] if ROOT else ["--user", "--preserve-credentials"]
        enter = ["nsenter", "--target", str(self._inside), *user, "--mount", "--pid"]
        change = [
            find_program("chroot") or "chroot",
            *([f"--userspec={uid}:{uid}", "--groups="] if ROOT else []),
            str(self.root),
        ]
        return [*enter, *change, "/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()), *words]

    def run(self, *words: str, uid: int = 0, env: dict[str, str] | None = None, stdin: bytes = b"") -> Result:
        run = subprocess.run(self.words(*words, uid=uid, env=env), input=stdin, capture_output=True, timeout=60)
        return Result(run.stdout, run.stderr, run.returncode)
