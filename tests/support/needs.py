"""Skips tests whose programs are missing: `@needs("zsh")` on a test, or `pytestmark = needs("sshd")`."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

#: The list of Debian packages and their programs, shared with the Makefile.
DEPS = Path(__file__).parent.parent / "deps.txt"


def packages() -> dict[str, str]:
    """Program -> Debian package."""
    lines = [line.split() for line in DEPS.read_text().splitlines() if line and not line.startswith("#")]
    return {program: package for package, program in lines}


def find_program(program: str) -> str | None:
    """The path of a program; searches the system's folders even if PATH lacks them."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip if one of `programs` is missing. Raises ValueError for a program that deps.txt does not list."""
    if unknown := [program for program in programs if program not in packages()]:
        raise ValueError(f"not in {DEPS.name}: {', '.join(unknown)}")
    return pytest.mark.needs(*programs)


def skip_reason(programs: Iterable[str]) -> str | None:
    """The reason why a test that needs `programs` cannot run here; None if it can."""
    missing = [program for program in programs if find_program(program) is None]
    return f"needs {missing[0]}: make test-deps" if missing else None


def causes(reasons: Iterable[str]) -> str:
    """A line with the number of skips by cause. CI fails on each `needs`, because a package would fix it."""
    counted = Counter(reason.removeprefix("Skipped: ").removesuffix(": make test-deps") for reason in reasons)
    return "skips by cause: " + (
        ", ".join(f"{cause} {n}" for cause, n in sorted(counted.items())) if counted else "none"
    )
