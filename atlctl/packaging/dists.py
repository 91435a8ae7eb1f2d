"""Build the sdist, and the wheel from it. Calls setuptools directly: no index, no isolation."""

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
    """The build failed; the text gives the cause and the remedy."""


ROOT = Path(__file__).parents[2]
#: Sources of the sdist. A list, so that other files of the checkout and old build output are not included.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "atlctl", "completions", "docs")
#: Times in the archives if SOURCE_DATE_EPOCH is not set: the same sources give the same bytes.
_EPOCH = "315532800"


def build(folder: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build sdist and wheel of the checkout `root` into `folder`, which is created; returns their paths.

    The wheel is built only from the sdist, so that the sdist is complete. Raises BuildError if setuptools fails, which
    has written the cause to stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="atlctl-dist-") as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        for name in _SOURCES:
            _copy(root / name, source / name)
        sdist = _ask("build_sdist", source, folder)
        with tarfile.open(sdist) as archive:
            # Python 3.11.3 and older have no filter; this archive was made one line above.
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
    """Call a hook of the build backend in a separate process in the folder `source`, as front ends do."""
    words = [sys.executable, "-c", _HOOK, hook, str(folder.resolve())]
    environment = {"SOURCE_DATE_EPOCH": _EPOCH, **os.environ}
    asked = subprocess.run(words, cwd=source, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if asked.returncode:
        raise BuildError(f"setuptools failed ({hook}); its words stand above")
    return folder / asked.stdout.splitlines()[-1]


#: setuptools prints pages of file names: shown only if it fails.
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
