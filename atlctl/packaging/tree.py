"""The tree that the executable file carries: a Python with its loader and libraries, atlctl and what it imports."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from atlctl.packaging import libraries
from atlctl.packaging.dists import ROOT, BuildError

#: Parts of the standard library that nothing here imports, by name below its folder.
_NOT_STANDARD = (
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "config-*", "_sysconfigdata_*", "lib-dynload"),
    *("curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3", "tkinter"),
    *("turtle.py", "turtledemo", "venv", "EXTERNALLY-MANAGED", "sitecustomize.py"),
)
_NOT_EXTENSIONS = (
    *("_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "_test*", "_tkinter*", "_xx*", "*_test.*"),
    *("nis.*", "ossaudiodev.*", "readline.*", "xx*"),
)
#: Of the packages: what only compilers and type checkers read.
_NOT_PACKAGED = ("*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.hash")
#: Of dist-info: what is true of the environment that was copied from alone.
_NOT_TOLD = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
#: Half of the whole tree. One class for each object of the API: the backend asks by plain JSON, and takes from this
#: package what reads a kubeconfig. The grammars of all languages: nothing here colours source.
_UNUSED = ("kubernetes/aio/*", "kubernetes/client/api/*", "kubernetes/client/models/*", "pygments/lexers/*")
_KEPT = ("kubernetes/client/models/__init__.py", "pygments/lexers/__init__.py", "pygments/lexers/_mapping.py")
#: Put at the end of ctypes/util.py. asyncssh asks it for optional libraries; one of the machine's would be loaded
#: beside a C library that it was not built for.
_NO_LOOK_UP = """

def find_library(name):
    \"\"\"Nothing: whatever is used lies in this tree.\"\"\"
    return None
"""


def assemble(tree: Path, wheel: Path, python_shim: Path) -> None:
    """Fill the empty folder `tree`: bin/python3, and below lib/ the loader, Python, libraries and all modules.

    Everything comes from the Python that runs this and from its environment. Raises BuildError.
    """
    base = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    loader = libraries.loader_of(base)
    if "--argv0" not in subprocess.run([loader, "--help"], capture_output=True, text=True, check=False).stdout:
        raise BuildError(f"{loader} knows no --argv0: build where glibc is 2.33 or newer")
    modules = tree / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tree / "bin").mkdir(parents=True)
    (tree / "lib").mkdir()
    shutil.copy(python_shim, tree / "bin/python3")
    # Its name is what `ps` and `top` show for atlctl's processes.
    shutil.copy(loader, tree / "lib/atlctl")
    shutil.copy(base, tree / "lib/python")
    copy_standard_library(modules)
    # Beside the standard library and not in a folder of its own: found with every option of Python, and whatever a
    # distribution made of `site`.
    for name in sorted(closure(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])):
        copy_distribution(name, modules)
    _unzip(wheel, modules)
    own = [tree / "lib/python", *sorted((modules / "lib-dynload").iterdir())]
    foreign = sorted(path for path in modules.rglob("*.so*") if path.parent.name != "lib-dynload")
    copied = libraries.collect([*own, *foreign], loader, tree / "lib")
    for file in [*own, *copied]:
        libraries.forget_places(file)
    program = shutil.which("strip")
    if program is not None:
        # Those that a wheel's libraries belong to were rewritten, which not every `strip` survives.
        plain = [file for file in foreign if not libraries.search_paths(file)]
        subprocess.run([program, "--strip-unneeded", *own, *copied, *plain], check=True)
    _compile(modules, tree)


def copy_standard_library(target: Path) -> None:
    """Modules and extension modules of this Python."""
    source = Path(os.__file__).parent
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_STANDARD))
    dynload = next((Path(path) for path in sys.path if path.endswith("lib-dynload")), source / "lib-dynload")
    shutil.copytree(dynload, target / "lib-dynload", ignore=shutil.ignore_patterns(*_NOT_EXTENSIONS, "__pycache__"))
    with (target / "ctypes/util.py").open("a", encoding="utf-8") as file:
        file.write(_NO_LOOK_UP)
    # Read by `sysconfig`. The real ones are how Python was built, with paths of that machine.
    for path in source.glob("_sysconfigdata_*.py"):
        (target / path.name).write_text("build_time_vars = {}\n")


def closure(requirements: list[str]) -> set[str]:
    """The distributions that `requirements` ask for, and those that they ask for, as far as they are installed.

    Conditions are not read: what they exclude on this machine is not installed. Raises BuildError where one of
    `requirements` itself is missing.
    """
    found: set[str] = set()
    open_ones = [(line, True) for line in requirements]
    while open_ones:
        line, needed = open_ones.pop()
        name, extras = _requirement(line)
        if name in found and not extras:
            continue
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            if needed:
                raise BuildError(f"{name} is not installed beside {sys.executable}") from None
            continue
        found.add(name)
        for other in wanted:
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", other)
            if extra is None or extra[1] in extras:
                open_ones.append((other, False))
    return found


def _requirement(line: str) -> tuple[str, set[str]]:
    """Name and extras: `asyncssh[bcrypt]>=2.18` is asyncssh and bcrypt."""
    match = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?", line)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[1]).lower(), {extra.strip() for extra in (match[2] or "").split(",") if extra}


def copy_distribution(name: str, target: Path) -> None:
    """The files of an installed distribution that lie among the modules, without those that nothing here reads."""
    for path in importlib.metadata.files(name) or []:
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


def _unzip(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name and not name.endswith("/RECORD"):
                archive.extract(name, target)


def _compile(modules: Path, tree: Path) -> None:
    """Byte code beside every module, never compared with it: the tree is dated anew wherever it is unpacked."""
    words = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run([sys.executable, "-I", "-m", "compileall", *words, modules], env=environment, check=False)
    if run.returncode:
        raise BuildError("a module could not be compiled; its error stands above")


def files(tree: Path) -> Iterator[Path]:
    """Folders before what is in them, in one order everywhere."""
    for path in sorted(tree.iterdir()):
        yield path
        if path.is_dir():
            yield from files(path)
