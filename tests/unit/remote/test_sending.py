"""Sending programs: modules, Python versions, size; shell scripts and shellcheck."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atlctl.backends.guarded import guard
from atlctl.remote import sending
from tests.support.needs import needs

FOLDER = Path(sending.__file__).parent
TEXTS = sorted(path.relative_to(FOLDER / "sh").with_suffix("").as_posix() for path in FOLDER.glob("sh/**/*.sh"))
#: Every byte of these scripts is sent with a command: numeric variables and /proc names are not quoted, and short shell
#: forms are used.
TERSE = "SC2086,SC2006,SC1007,SC2015,SC2034,SC2125,SC2162,SC2166"
BASE = os.path.realpath(sys.executable)


def test_needed_is_what_a_program_imports() -> None:
    assert {name.rpartition(".")[2] for name in sending.needed("atlctl.remote.stacks.main")} == {
        "atlctl", "remote", "stacks", "main", "dumping", "proc", "cgroups", "ranks", "ras", "sentences", "trust",
    }  # fmt: skip
    assert sending.needed("atlctl.jobs.model", "json") == {"atlctl": ""}


def test_boot_refuses_an_old_python_before_it_reads_anything() -> None:
    old = sending.boot().replace("sys.version_info < (3, 8)", "sys.version_info < (9, 9)")
    run = subprocess.run([BASE, "-c", old, "atlctl.remote.none", "5", "--"], input=b"12345", timeout=20, check=False)
    assert run.returncode == 97
    ast.parse(sending.boot(), feature_version=(3, 4))


def test_boot_runs_what_comes_in_a_word_and_on_standard_input() -> None:
    first = sending.inline({"first": "import sys\ndef main():\n    print('first', sys.argv[1:])\n"})
    second = sending.packed({"second": "def main(*words):\n    print(words, input())\n"})
    words = [BASE, "-I", "-S", "-c", sending.boot(), "first", first, "second", str(len(second)), "--", "a", "b c"]
    run = subprocess.run(words, input=second + b"mine\n", capture_output=True, timeout=20, check=True)
    assert run.stdout.decode().splitlines() == [
        f"first ['second', '{len(second)}', '--', 'a', 'b c']", "('a', 'b c') mine",
    ]  # fmt: skip


@needs("shellcheck")
@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_finds_nothing(name: str) -> None:
    path = FOLDER / "sh" / f"{name}.sh"
    run = subprocess.run(
        ["shellcheck", "-x", "-e", TERSE, path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.stdout == ""


@pytest.mark.parametrize("shell", [["dash"], ["bash"], pytest.param(["busybox", "sh"], marks=needs("busybox"))])
def test_shell_texts_are_understood_by_every_shell(shell: list[str]) -> None:
    for name in TEXTS:
        subprocess.run([*shell, "-n", "-c", sending.shell(name)], check=True, timeout=20)


@pytest.mark.parametrize("name", TEXTS)
def test_a_small_shell_text_means_the_same(name: str) -> None:
    """bash prints a function as it was parsed."""

    def understood(text: str) -> str:
        words = ["bash", "-c", f"f(){{\n{text}\n}}; declare -f f"]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=20).stdout

    path = FOLDER / "sh" / f"{name}.sh"
    text = "".join(
        sending.shell((path.parent / line.strip()[4:-3]).relative_to(FOLDER / "sh").as_posix())
        if line.strip().startswith(". ./")
        else line
        for line in path.read_text().splitlines(keepends=True)
    )
    whole = "\n".join(line.strip() for line in text.splitlines() if not line.strip().startswith("#"))
    assert understood(sending.shell(name)).split() == understood(whole).split()


def test_the_guard_is_small() -> None:
    """It is sent with every command, in the request URL for pods."""
    assert len(guard.GUARD) <= 2227
    assert len(guard.INPUT) <= 740
