"""Shared libraries of a Python on Linux: which there are, from where, and no search in places of this machine."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from atlctl.packaging.dists import BuildError

#: Loaded by name while Python runs, so that no file says it needs them: name look-ups of older C libraries, and what
#: ends threads. Copied where this machine has them.
_BY_NAME = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1")
_FOUND = re.compile(r"\s*+(\S+) => (/\S+) \(0x")
_MISSING = re.compile(r"\s*+(\S+) => not found")

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 5, 15, 29


def loader_of(program: Path) -> Path:
    """The dynamic loader that a program asks for. Raises BuildError for one that asks for none."""
    data = program.read_bytes()
    for kind, offset, _, size in _segments(data):
        if kind == _PT_INTERP:
            return Path(os.fsdecode(data[offset : offset + size].rstrip(b"\0")))
    raise BuildError(f"{program} is linked statically; build with a Python that has a loader")


def collect(files: Iterable[Path], loader: Path, target: Path) -> list[Path]:
    """Copy to `target` every library that `files` need and that does not lie below `target`; the copies.

    Raises BuildError for a library that this machine lacks.
    """
    copied: dict[str, Path] = {}

    def take(name: str, source: Path) -> None:
        if name not in copied and not source.is_relative_to(target) and source.name != loader.name:
            copied[name] = target / name
            shutil.copy(source, copied[name])

    for file in files:
        for name, source in _needed(loader, file):
            if source is not None:
                take(name, source)
            elif name not in copied:
                raise BuildError(f"{file} needs {name}, which is not on this machine")
    beside = next((folder for folder in _library_folders(loader) if (folder / "libc.so.6").exists()), None)
    for name in _BY_NAME:
        if beside is not None and (beside / name).exists():
            take(name, beside / name)
    return list(copied.values())


def _library_folders(loader: Path) -> Iterator[Path]:
    """Where the loader finds the C library."""
    for name, source in _needed(loader, Path(shutil.which("sh") or "/bin/sh")):
        if name == "libc.so.6" and source is not None:
            yield source.parent


def _needed(loader: Path, file: Path) -> Iterator[tuple[str, Path | None]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    told = subprocess.run([loader, "--list", file], env=environment, capture_output=True, text=True, check=False)
    if told.returncode not in (0, 127):  # 127: something is missing, and named
        raise BuildError(f"{loader} cannot list what {file} needs: {told.stderr.strip()}")
    for line in told.stdout.splitlines():
        if match := _FOUND.match(line):
            yield match[1], Path(match[2])
        elif match := _MISSING.match(line):
            yield match[1], None


def forget_places(file: Path) -> None:
    """Empty an RPATH or RUNPATH that names folders of this machine: elsewhere they may be anybody's."""
    data = bytearray(file.read_bytes())
    for place in _search_paths(data):
        if data[place : place + 1] == b"/":
            data[place] = 0
    file.write_bytes(data)


def search_paths(file: Path) -> list[str]:
    """The RPATHs and RUNPATHs of an ELF file."""
    data = file.read_bytes()
    return [os.fsdecode(data[place : data.index(b"\0", place)]) for place in _search_paths(data)]


def _search_paths(data: bytes | bytearray) -> list[int]:
    """Offsets in the file."""
    segments = list(_segments(data))
    loads = [(address, offset, size) for kind, offset, address, size in segments if kind == _PT_LOAD]

    def in_file(wanted: int) -> int:
        return next(offset + wanted - address for address, offset, size in loads if 0 <= wanted - address < size)

    for kind, offset, _, size in segments:
        if kind == _PT_DYNAMIC:
            tags: dict[int, int] = {}
            for tag, value in struct.iter_unpack("<qQ", data[offset : offset + size]):
                if tag == _DT_NULL:
                    break
                tags[tag] = value
            return [in_file(tags[_DT_STRTAB]) + tags[tag] for tag in (_DT_RPATH, _DT_RUNPATH) if tag in tags]
    return []


def _segments(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset in the file, address and size in the file of each segment. Raises BuildError for other machines."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise BuildError("only 64-bit machines of low byte order are known here")
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", data, start + index * size)
        yield kind, offset, address, length
