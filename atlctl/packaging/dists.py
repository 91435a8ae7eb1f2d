"""The sdist, and the wheel that is built from it. setuptools is asked as it stands: no index, no isolation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any


class BuildError(Exception):
    """Something that the build needs is not as it must be; the text says what, and what to do."""


ROOT = Path(__file__).parents[2]
#: What an sdist is made of. Left beside it is what belongs to no distribution, and what a former build left behind.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "atlctl", "completions", "docs")
#: Times in the archives where nobody names one (SOURCE_DATE_EPOCH): the same sources give the same bytes.
_EPOCH = "315532800"


def build(folder: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Write sdist and wheel of the checkout `root` to `folder`, which is made; their paths.

    The wheel is built from the sdist alone, so that nothing can be in one and missing in the other.
    Raises BuildError where setuptools fails, which has said why on stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="atlctl-dist-") as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        for name in _SOURCES:
            _copy(root / name, source / name)
        sdist = _ask("build_sdist", source, folder)
        with tarfile.open(sdist) as archive:
            # Python 3.11.3 and older know no filter; this archive was made a line above.
            filtered: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(scratch, **filtered)  # noqa: S202
        wheel = _ask("build_wheel", Path(scratch, sdist.name.removesuffix(".tar.gz")), folder)
    return sdist, wheel


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _ask(hook: str, source: Path, folder: Path) -> Path:
    """One hook of the build backend, in a process of its own and in the folder `source`, as front ends do."""
    words = [sys.executable, "-c", _HOOK, hook, str(folder.resolve())]
    environment = {"SOURCE_DATE_EPOCH": _EPOCH, **os.environ}
    asked = subprocess.run(words, cwd=source, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if asked.returncode:
        raise BuildError(f"setuptools failed ({hook}); its words stand above")
    return folder / asked.stdout.splitlines()[-1]


#: What setuptools says is pages of file names: shown only where it fails.
_HOOK = """
import contextlib, io, sys
from setuptools import build_meta

said = io.StringIO()
try:
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        name = getattr(build_meta, sys.argv[1])(sys.argv[2])
except BaseException:
    sys.stderr.write(said.getvalue())
    raise
print(name)
"""
