"""Copies `atlctl` into a worker's container: its source, and missing dependencies."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.cluster import REPOSITORY, Cluster
from tests.e2e.kinds import Job
from tests.support.cli import Result

#: The folder in the container, relative to the working folder of commands.
SITE = "site"
#: Dependencies of atlctl for jobs in a cluster.
NEEDED = ("typer", "rich", "kubernetes", "aiohttp", "PyYAML", "yarl", "pydantic-core")
_LOOK = f"""
import importlib.util, json, platform, sys
names = {("typer", "rich", "kubernetes", "aiohttp", "yaml", "yarl", "pydantic_core")!r}
missing = [name for name in names if importlib.util.find_spec(name) is None]
print(json.dumps([*sys.version_info[:2], platform.machine(), platform.libc_ver()[0], missing]))
"""


def bring(cluster: Cluster, job: Job, worker: str) -> None:
    """Copy atlctl into a worker. Skips, with the reason, if the image cannot run it."""
    run = cluster.cli("exec", *job.words, "-w", worker, "--", "python3", "-c", _LOOK)
    assert run.code == 0, run
    major, minor, machine, libc, missing = json.loads(run.stdout)
    if (major, minor) < (3, 11):
        pytest.skip(f"the image's Python {major}.{minor} is too old for atlctl")
    here = [*sys.version_info[:2], platform.machine(), platform.libc_ver()[0]]
    if missing and [major, minor, machine, libc] != here:
        theirs, ours = f"{major}.{minor} {machine} {libc}", " ".join([f"{here[0]}.{here[1]}", *map(str, here[2:])])
        pytest.skip(f"the image lacks {', '.join(missing)}, and its Python ({theirs}) cannot use those here ({ours})")
    Path("luggage.tar.gz").write_bytes(packed(with_packages=bool(missing)))
    sent = cluster.cli("cp", *job.words, "luggage.tar.gz", f"{worker}:luggage.tar.gz")
    assert sent.code == 0, sent
    unpack = ("python3", "-m", "tarfile", "-e", "luggage.tar.gz", SITE)
    run = cluster.cli("exec", *job.words, "-w", worker, "--", *unpack)
    assert run.code == 0, run


def inside(cluster: Cluster, job: Job, worker: str, *words: str) -> Result:
    """Run `atlctl` in a worker, like a user on its terminal."""
    script = 'PYTHONPATH="$PWD/site" HOME="$PWD" exec python3 -m atlctl "$@"'
    return cluster.cli("exec", *job.words, "-w", worker, "--", "sh", "-c", script, "sh", *words)


def packed(*, with_packages: bool) -> bytes:
    """A compressed archive: the package, and the distributions needed for a cluster, as installed here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(REPOSITORY / "atlctl", "atlctl", filter=_no_caches)
        if with_packages:
            for name in (*NEEDED, *closure(NEEDED)):
                _add(archive, distribution(name))
    return buffer.getvalue()


def closure(names: Sequence[str]) -> Iterator[str]:
    """Names of all dependencies of these distributions, without themselves."""
    seen, open_ = set(names), list(names)
    while open_:
        for text in distribution(open_.pop()).requires or ():
            wanted = Requirement(text)
            if wanted.name not in seen and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
                seen.add(wanted.name)
                open_.append(wanted.name)
                yield wanted.name


def _add(archive: tarfile.TarFile, found: Distribution) -> None:
    for file in found.files or ():
        path = Path(os.fspath(file.locate()))
        if ".." not in file.parts and file.suffix != ".pyc" and path.is_file():
            archive.add(path, str(file), filter=_no_caches)


def _no_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in member.name:
        return None
    member.uid = member.gid = 0
    return member
