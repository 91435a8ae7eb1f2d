"""The file tree in the executable file: Python with its loader and libraries, atlctl and its dependencies.

Its programs and libraries search no folders of the build machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import pyexpat
import re
import shutil
import ssl
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from atlctl.packaging.dists import BuildError

#: The bundled packages with the hashes of their wheels; written by `make lock`.
LOCK = Path(__file__).with_name("lock.txt")
#: Unused parts of the standard library, by name below its folder.
_NOT_STANDARD = (
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "config-*", "_sysconfigdata_*", "lib-dynload"),
    *("curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3", "tkinter"),
    *("turtle.py", "turtledemo", "venv", "EXTERNALLY-MANAGED", "sitecustomize.py"),
)
_NOT_EXTENSIONS = (
    *("_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "_test*", "_tkinter*", "_xx*", "*_test.*"),
    *("nis.*", "ossaudiodev.*", "readline.*", "xx*"),
)
#: Files of packages that only compilers and type checkers read.
_NOT_PACKAGED = ("*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.hash")
#: Files of dist-info that describe only the environment of the build.
_NOT_TOLD = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
#: Half of the tree. The classes of API objects: the backend requests plain JSON, and uses this package only to read a
#: kubeconfig. The grammars of all languages: atlctl does not highlight source code.
_UNUSED = ("kubernetes/aio/*", "kubernetes/client/api/*", "kubernetes/client/models/*", "pygments/lexers/*")
_KEPT = ("kubernetes/client/models/__init__.py", "pygments/lexers/__init__.py", "pygments/lexers/_mapping.py")
#: Licence (SPDX) of the shared libraries beside Python, and their version if Python knows it; by prefix of the name.
_LIBRARIES = {
    **dict.fromkeys(
        (
            "ld.so",
            "libc.so",
            "libm.so",
            "libdl.so",
            "libnss_",
            "libpthread.so",
            "libresolv.so",
            "librt.so",
            "libutil.so",
        ),
        ("LGPL-2.1-or-later", platform.libc_ver()[1]),
    ),
    **dict.fromkeys(("libcrypto.so", "libssl.so"), ("Apache-2.0", ssl.OPENSSL_VERSION.split()[1])),
    "libbz2.so": ("bzip2-1.0.6", ""),
    "libcrypt.so": ("LGPL-2.1-or-later", ""),
    "libexpat.so": ("MIT", pyexpat.EXPAT_VERSION.removeprefix("expat_")),
    "libffi.so": ("MIT", ""),
    **dict.fromkeys(("libgcc_s.so", "libstdc++.so"), ("GPL-3.0-or-later WITH GCC-exception-3.1", "")),
    "liblzma.so": ("0BSD", ""),
    "libmpdec.so": ("BSD-2-Clause", ""),
    "libpython": ("Python-2.0", platform.python_version()),
    "libuuid.so": ("BSD-3-Clause", ""),
    "libz.so": ("Zlib", zlib.ZLIB_RUNTIME_VERSION),
}
#: Appended to ctypes/util.py. asyncssh looks up optional libraries with it; a library of the host would be loaded
#: although it needs another C library.
_NO_LOOK_UP = """

def find_library(name):
    \"\"\"Nothing: whatever is used lies in this tree.\"\"\"
    return None
"""
#: Loaded by name at run time, so no file lists them as needed: name lookups of older C libraries, and thread exit.
#: Copied if this machine has them.
_BY_NAME = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1")
_FOUND = re.compile(r"\s*+(\S+) => (/\S+) \(0x")
_MISSING = re.compile(r"\s*+(\S+) => not found")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 5, 15, 29


def assemble(tree: Path, wheel: Path, python_shim: Path, packages: Sequence[Distribution]) -> None:
    """Fill the empty folder `tree`: bin/python3, and below lib/ the loader, Python, libraries and all modules.

    Python and its libraries are those of this process. Raises BuildError.
    """
    base = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    loader = loader_of(base)
    if "--argv0" not in subprocess.run([loader, "--help"], capture_output=True, text=True, check=False).stdout:
        raise BuildError(f"{loader} knows no --argv0: build where glibc is 2.33 or newer")
    modules = tree / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tree / "bin").mkdir(parents=True)
    (tree / "lib").mkdir()
    shutil.copy(python_shim, tree / "bin/python3")
    # `ps` and `top` show this name for atlctl's processes.
    shutil.copy(loader, tree / "lib/atlctl")
    shutil.copy(base, tree / "lib/python")
    copy_standard_library(modules)
    # In the folder of the standard library: found with every option of Python and without `site`.
    for package in packages:
        copy_distribution(package, modules)
        copy_programs(package, tree / "bin")
    _unzip(wheel, modules)
    own = [tree / "lib/python", *sorted((modules / "lib-dynload").iterdir())]
    foreign = sorted(path for path in modules.rglob("*.so*") if path.parent.name != "lib-dynload")
    copied = collect([*own, *foreign], loader, tree / "lib")
    for file in [*own, *copied]:
        forget_places(file)
    program = shutil.which("strip")
    if program is not None:
        # Files with an RPATH were patched by auditwheel, and not every `strip` handles that.
        plain = [file for file in foreign if not search_paths(file)]
        subprocess.run([program, "--strip-unneeded", *own, *copied, *plain], check=True)
    _compile(modules, tree)


def copy_standard_library(target: Path) -> None:
    """Copy the modules and extension modules of this Python."""
    source = Path(os.__file__).parent
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_STANDARD))
    dynload = next((Path(path) for path in sys.path if path.endswith("lib-dynload")), source / "lib-dynload")
    shutil.copytree(dynload, target / "lib-dynload", ignore=shutil.ignore_patterns(*_NOT_EXTENSIONS, "__pycache__"))
    with (target / "ctypes/util.py").open("a", encoding="utf-8") as file:
        file.write(_NO_LOOK_UP)
    # For `sysconfig`. The original holds paths of the machine that built Python.
    for path in source.glob("_sysconfigdata_*.py"):
        (target / path.name).write_text("build_time_vars = {}\n")


def fetch(target: Path) -> None:
    """Install the locked packages into the folder `target`, verifying each file's hash. Raises BuildError."""
    words = ["install", "-qq", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile"]
    run = subprocess.run([sys.executable, "-m", "pip", *words, "--target", target, "--requirement", LOCK], check=False)
    if run.returncode:
        raise BuildError(f"pip could not install {LOCK}; its error stands above")


def locked(places: Sequence[str]) -> list[Distribution]:
    """The packages of the lock file, as installed in the module folders `places`.

    Raises BuildError if one is missing or has another version.
    """
    installed: dict[str, Distribution] = {}
    for found in importlib.metadata.distributions(path=list(places)):
        installed.setdefault(canonical(found.name), found)
    chosen = []
    for name, version, conditional in lock_entries():
        distribution = installed.get(name)
        if distribution is not None and distribution.version == version:
            chosen.append(distribution)
        elif distribution is not None or not conditional:
            there = "is missing" if distribution is None else f"{distribution.version} is installed"
            raise BuildError(f"{name}: {there}, and {LOCK.name} has {version}")
    return chosen


def lock_entries() -> Iterator[tuple[str, str, bool]]:
    """Name and version of each locked package, and whether it is only for some platforms."""
    for match in re.finditer(r"^([\w.-]+)==([^\s;]+)(?:( ;)|\s)", LOCK.read_text(), re.MULTILINE):
        yield canonical(match[1]), match[2], match[3] is not None


def canonical(name: str) -> str:
    """The normalized name of a distribution, for comparison."""
    return re.sub(r"[-_.]+", "-", name).lower()


def copy_distribution(distribution: Distribution, target: Path) -> None:
    """Copy the modules of an installed distribution, without files that are not needed here."""
    for path in distribution.files or []:
        text = path.as_posix()
        if text.startswith(("../", "/")) or "__pycache__" in path.parts or "tests" in path.parts[:-1]:
            continue
        if any(fnmatch(path.name, pattern) for pattern in _NOT_PACKAGED):
            continue
        if any(fnmatch(text, pattern) for pattern in _UNUSED) and text not in _KEPT:
            continue
        if path.parent.suffix == ".dist-info" and path.name in _NOT_TOLD:
            continue
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(path.locate()), place)


def copy_programs(distribution: Distribution, target: Path) -> None:
    """Copy the binary programs of an installed distribution: py-spy."""
    for path in distribution.files or []:
        # `pip install --target` puts them elsewhere than it says.
        places = (Path(str(path.locate())), Path(str(distribution.locate_file("bin"))) / path.name)
        source = next((place for place in places if place.is_file()), None)
        if path.parts[-2:-1] == ("bin",) and source is not None and source.read_bytes()[:4] == b"\x7fELF":
            shutil.copy(source, target / path.name)


def _unzip(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name and not name.endswith("/RECORD"):
                archive.extract(name, target)


def _compile(modules: Path, tree: Path) -> None:
    """Compile every module to byte code that is never checked against its source, because unpacking sets new times."""
    words = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run([sys.executable, "-I", "-m", "compileall", *words, modules], env=environment, check=False)
    if run.returncode:
        raise BuildError("a module could not be compiled; its error stands above")


def components(tree: Path, packages: Sequence[Distribution]) -> Iterator[dict[str, Any]]:
    """The bundled components besides atlctl, for CycloneDX: packages, Python, shared libraries."""
    for package in packages:
        name, version = canonical(package.name), package.version
        yield {**_component(name, version, _licence(package)), "purl": f"pkg:pypi/{name}@{version}"}
    python = platform.python_version()
    yield {**_component("python", python, {"expression": "Python-2.0"}), "purl": f"pkg:generic/python@{python}"}
    for library in sorted((tree / "lib").iterdir()):
        if library.is_file() and library.name != "python":
            name = "ld.so" if library.name == "atlctl" else library.name
            known = next((found for start, found in _LIBRARIES.items() if name.startswith(start)), None)
            licence = {"expression": known[0]} if known else {"license": {"name": "unknown"}}
            digest = {"alg": "SHA-256", "content": hashlib.sha256(library.read_bytes()).hexdigest()}
            yield {**_component(name, known[1] if known else "", licence), "hashes": [digest]}


def _component(name: str, version: str, licence: dict[str, Any]) -> dict[str, Any]:
    return {"type": "library", "name": name, **({"version": version} if version else {}), "licenses": [licence]}


def _licence(package: Distribution) -> dict[str, Any]:
    """The SPDX expression of a package, else the licence name in its metadata."""
    told = package.metadata
    if "License-Expression" in told:
        return {"expression": told["License-Expression"]}
    name = told["License"].strip() if "License" in told else ""
    if not name or "\n" in name:
        classifiers = [line for line in told.get_all("Classifier", []) if line.startswith("License ::")]
        name = " AND ".join(line.split(" :: ")[-1] for line in classifiers) or "unknown"
    return {"license": {"name": name}}


def files(tree: Path) -> Iterator[Path]:
    """All files and folders in a fixed order, folders before their contents."""
    for path in sorted(tree.iterdir()):
        yield path
        if path.is_dir():
            yield from files(path)


def loader_of(program: Path) -> Path:
    """The dynamic loader of a program. Raises BuildError if it has none."""
    data = program.read_bytes()
    for kind, offset, _, size in _segments(data):
        if kind == _PT_INTERP:
            return Path(os.fsdecode(data[offset : offset + size].rstrip(b"\0")))
    raise BuildError(f"{program} is linked statically; build with a Python that has a loader")


def collect(files: Iterable[Path], loader: Path, target: Path) -> list[Path]:
    """Copy to `target` every library that `files` need and that is not below `target`; returns the copies.

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
    """The folders in which the loader finds the C library."""
    for name, source in _needed(loader, Path(shutil.which("sh") or "/bin/sh")):
        if name == "libc.so.6" and source is not None:
            yield source.parent


def _needed(loader: Path, file: Path) -> Iterator[tuple[str, Path | None]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    told = subprocess.run([loader, "--list", file], env=environment, capture_output=True, text=True, check=False)
    if told.returncode not in (0, 127):  # 127: a library is missing; its name is in the output
        raise BuildError(f"{loader} cannot list what {file} needs: {told.stderr.strip()}")
    for line in told.stdout.splitlines():
        if match := _FOUND.match(line):
            yield match[1], Path(match[2])
        elif match := _MISSING.match(line):
            yield match[1], None


def forget_places(file: Path) -> None:
    """Clear an RPATH or RUNPATH with folders of this machine: on another machine they may belong to any user."""
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
    """Their offsets in the file."""
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
    """Type, file offset, address and size of each segment. Raises BuildError for other architectures."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise BuildError("only 64-bit machines of low byte order are known here")
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", data, start + index * size)
        yield kind, offset, address, length
