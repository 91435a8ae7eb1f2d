"""The executable file as its users have it: in a root without Python, without a C library, as another user."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl import __version__
from atlctl.packaging import executable as packing
from tests.packaging.bare import ROOT, Bare
from tests.support.cli import Result
from tests.support.needs import needs

pytestmark = needs("cc", "busybox")
#: The cache of all tests but those that are about the first start.
CACHE = {"XDG_CACHE_HOME": "/home/u/cache"}
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def inside(bare: Bare, executable: Path) -> Bare:
    """The bare root with the file in it, and nothing else that was not there."""
    shutil.copy(executable, bare.root / "bin/atlctl")
    found = {path.name for path in bare.root.rglob("*") if path.is_file() and not path.is_symlink()}
    assert {name for name in found if not str(name).isdigit()} >= {"atlctl", "busybox"}
    assert {path.name for path in (bare.root / "bin").iterdir() if not path.is_symlink()} == {"atlctl", "busybox"}
    assert not (bare.root / "lib").exists()
    return bare


@pytest.fixture(scope="module")
def tree(inside: Bare) -> Path:
    """Where it has unpacked itself."""
    assert inside.run("atlctl", "--version", env=CACHE).code == 0
    (found,) = (inside.root / "home/u/cache/atlctl").glob(f"{__version__}-*")
    return found


def atlctl(inside: Bare, *words: str) -> Result:
    return inside.run("atlctl", *words, env=CACHE)


def test_version_and_help(inside: Bare, tree: Path) -> None:
    assert atlctl(inside, "--version") == (f"atlctl {__version__}\n".encode(), b"", 0)
    result = atlctl(inside, "--help")
    assert result.stdout.startswith(b"Usage: atlctl [OPTIONS] COMMAND ...\n")
    assert (result.stderr, result.code) == (b"", 0)
    assert atlctl(inside, "nonsense").code == 2


def test_a_job_from_start_to_end(inside: Bare, tree: Path) -> None:
    script = 'echo "worker $RANK of $WORLD_SIZE"; echo "ValueError: bad magic" >&2; while :; do sleep 1; done'
    started = atlctl(inside, "local", "run", "--name", "j", "--workers", "2", "--detach", "--", "sh", "-c", script)
    assert started == (b"j\n", b"", 0)
    workers = json.loads(atlctl(inside, "ps", "j", "-o", "json").stdout)["data"]
    assert [(worker["name"], worker["state"]) for worker in workers["workers"]] == [
        ("worker-0", "Running"),
        ("worker-1", "Running"),
    ]
    ran = atlctl(inside, "exec", "-j", "j", "--all", "--gather", "--", "sh", "-c", "echo here; test $RANK = 0")
    assert b"worker-0 (1) ok\nhere\n" in ran.stdout
    assert ran.code == 1
    logs = atlctl(inside, "logs", "j", "-w", "1")
    assert logs.stdout == b"worker 1 of 2\nValueError: bad magic\n"
    assert b"ValueError: bad magic" in atlctl(inside, "errors", "j").stdout
    stopped = atlctl(inside, "stop", "j", "--yes", "--grace", "5")
    assert b"ended after SIGTERM: worker-[0-1]" in stopped.stdout + stopped.stderr
    assert atlctl(inside, "local", "rm", "j", "--yes").code == 0


def test_what_it_starts_gets_the_environment_as_it_was(inside: Bare, tree: Path) -> None:
    env = {**CACHE, "LD_LIBRARY_PATH": "/some/where", "PYTHONPATH": "/else/where"}
    result = inside.run("atlctl", "local", "run", "--name", "e", "--workers", "1", "--", "env", env=env)
    told = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert {name: value for name, value in told.items() if name.startswith(("LD_", "PYTHON", "SSL_", "LC_"))} == {
        "LD_LIBRARY_PATH": "/some/where",
        "PYTHONPATH": "/else/where",
    }
    assert atlctl(inside, "local", "rm", "e", "--yes").code == 0


def test_completion(inside: Bare, tree: Path) -> None:
    assert atlctl(inside, "--complete", "bash", "1", "atlctl", "stac").stdout == b":words\nstacks\n"
    assert atlctl(inside, "completion", "fish").stdout == (CHECKOUT / "completions/atlctl.fish").read_bytes()


def test_errors_of_a_saved_log(inside: Bare, tree: Path) -> None:
    shutil.copytree(CHECKOUT / "tests/corpus/data/exception_plain_first_rank", inside.root / "tmp/saved")
    result = inside.run("atlctl", "errors", "--from", "/tmp/saved", env=CACHE)
    here = subprocess.run(
        [sys.executable, "-m", "atlctl", "errors", "--from", "tests/corpus/data/exception_plain_first_rank"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    assert b"root cause: rank 0" in result.stdout
    assert result.stdout.replace(b"/tmp/saved", b"") == here.stdout.replace(
        b"tests/corpus/data/exception_plain_first_rank", b""
    )


def test_the_demo_says_what_it_lacks(inside: Bare, tree: Path) -> None:
    error, hint = atlctl(inside, "demo").stderr.decode().splitlines()
    assert error == "error: the demo trains with PyTorch, which is not installed beside atlctl"
    assert hint.endswith("python3 -m venv ENV && ENV/bin/pip install . torch")


def test_its_processes_bear_its_name(inside: Bare, tree: Path) -> None:
    atlctl(inside, "local", "run", "--name", "n", "--workers", "1", "--detach", "--", "sleep", "600")
    names = inside.run("ps", "-o", "comm").stdout.decode().split()
    atlctl(inside, "stop", "n", "--yes", "--grace", "5")
    atlctl(inside, "local", "rm", "n", "--yes")
    assert "sleep" in names
    assert names.count("atlctl") >= 1
    assert "ld.so" not in names


def unpack(file: Path) -> Iterator[tuple[str, bytes]]:
    """The files of an executable file: path and content. The launcher's algorithm, implemented again."""
    data = file.read_bytes()
    assert data[-8:] == packing.MARK
    (length,) = struct.unpack("<Q", data[-16:-8])
    at, parts = len(data) - 16 - length, []
    while at < len(data) - 16:
        packed, size, _ = struct.unpack_from("<III", data, at)
        parts.append(zlib.decompress(data[at + 12 : at + 12 + packed], -15))
        assert len(parts[-1]) == size
        at += 12 + packed
    table, whole = parts[0], b"".join(parts[1:])
    at = begun = 0
    while at < len(table):
        (size,) = struct.unpack_from("<I", table, at + 1)
        end = table.index(b"\0", at + 5)
        if table[at : at + 1] != b"d":
            yield os.fsdecode(table[at + 5 : end]), whole[begun : begun + size]
        begun, at = begun + size, end + 1


def test_the_tree_is_what_was_packed(inside: Bare, tree: Path, executable: Path) -> None:
    packed = dict(unpack(executable))
    assert packed["lib/python"][:4] == b"\x7fELF"
    assert {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()} == packed


def test_no_module_names_this_machine(executable: Path) -> None:
    for name, data in unpack(executable):
        if data[:4] != b"\x7fELF":
            assert not [
                place for place in (str(CHECKOUT), sys.base_prefix) if len(place) > 4 and place.encode() in data
            ], name


#: Run by the carried Python: its names for itself, and whatever of it and of a child of it comes from elsewhere.
LOOK = """
import json, os, ssl, asyncssh, cryptography.hazmat.bindings._rust, pydantic_core, subprocess, sys
own = sys.prefix + "/"
def foreign():
    mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if len(line.split(None, 5)) > 5}
    data = ("/usr/lib/locale/", "/usr/share/locale/")
    found = [path for path in mapped if path[0] == "/" and not path.startswith((own, *data))]
    return sorted(path for path in found if not path.endswith("gconv-modules.cache"))
child = subprocess.check_output([sys.executable, "-c", "import sys; print(sys.executable)"], text=True)
paths = [path for path in sys.path if not path.startswith(own)]
print(json.dumps([sys.executable, child.strip(), paths, foreign(), os.environ.get("LD_LIBRARY_PATH")]))
"""


def test_everything_comes_from_the_tree_on_a_machine_that_has_it_all(executable: Path, isolated: Path) -> None:
    env = {
        "XDG_CACHE_HOME": str(isolated),
        "LD_LIBRARY_PATH": "/usr/lib",
        "PYTHONPATH": "/usr/lib/python3",
        "PYTHONHOME": "/usr",
    }
    subprocess.run([executable, "--version"], env=env, check=True, capture_output=True)
    (unpacked,) = (isolated / "atlctl").glob(f"{__version__}-*")
    python = str(unpacked / "bin/python3")
    said = subprocess.run([python, "-c", LOOK], env=env, check=True, capture_output=True).stdout
    assert json.loads(said) == [python, python, [], [], "/usr/lib"]


@pytest.mark.skipif(not ROOT, reason="only root can act as two users")
def test_a_user_without_a_name_and_with_a_home_of_others(inside: Bare) -> None:
    result = inside.run("atlctl", "jobs", uid=1000, env={"HOME": "/home"})
    assert result.code == 0
    assert b"atlctl local run" in result.stderr
    assert (inside.root / "tmp/atlctl-1000").stat().st_uid == 1000


def test_two_first_starts_at_once(inside: Bare) -> None:
    words = inside.words("atlctl", "--version", env={"XDG_CACHE_HOME": "/home/u/other"})
    runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [(*run.communicate(timeout=120), run.returncode) for run in runs]
    assert said == [(f"atlctl {__version__}\n".encode(), b"", 0)] * 2
    assert len(os.listdir(inside.root / "home/u/other/atlctl")) == 2  # the tree and the lock
