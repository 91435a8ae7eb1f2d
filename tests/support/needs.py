"""Skips for programs that `make test-deps` installs: `@needs("zsh")` on a test, or `pytestmark = needs("sshd")`."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

#: The one list, shared with the Makefile: lines of a Debian package and the program it brings.
DEPS = Path(__file__).parent.parent / "deps.txt"


def packages() -> dict[str, str]:
    """Program -> Debian package."""
    lines = [line.split() for line in DEPS.read_text().splitlines() if line and not line.startswith("#")]
    return {program: package for package, program in lines}


def find_program(program: str) -> str | None:
    """The path of a program; the system's own folders count even where PATH leaves them out."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip where one of `programs` is missing. Raises ValueError for a program that deps.txt does not list."""
    if unknown := [program for program in programs if program not in packages()]:
        raise ValueError(f"not in {DEPS.name}: {', '.join(unknown)}")
    return pytest.mark.needs(*programs)


def skip_reason(programs: Iterable[str]) -> str | None:
    """Why a test that needs `programs` cannot run here, None where it can."""
    missing = [program for program in programs if find_program(program) is None]
    return f"needs {missing[0]}: make test-deps" if missing else None


def causes(reasons: Iterable[str]) -> str:
    """One line that counts skips by cause; CI fails on every `needs`, since a package would cure it."""
    counted = Counter(reason.removeprefix("Skipped: ").removesuffix(": make test-deps") for reason in reasons)
    return "skips by cause: " + (
        ", ".join(f"{cause} {n}" for cause, n in sorted(counted.items())) if counted else "none"
    )
