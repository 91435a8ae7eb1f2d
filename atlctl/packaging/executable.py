"""The executable file: a statically linked launcher, followed by the packed tree."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from atlctl import __version__
from atlctl.packaging import dists, tree
from atlctl.packaging.dists import BuildError

_SOURCES = Path(__file__).parent / "launcher"
#: As in launcher/atlctl.c.
MARK = b"atlctl/1"
BLOCK = 1 << 20
#: Arguments of the bundled Python before the user's. `site` is not needed and costs time.
START = ("-S", "-c", "from atlctl.__main__ import main; main()")
#: Imports every module that atlctl imports, at the top of a file or later, except torch, which is not bundled.
_CHECK = """
import ast, importlib, sys, pathlib
root = pathlib.Path(sys.argv[1])
for path in sorted(root.rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] not in ("torch", "zstandard", "apprise", "supervisor"):
                importlib.import_module(name)
import ssl, bcrypt, zoneinfo
ssl.create_default_context()
"""


def build(folder: Path, places: Sequence[str] = ()) -> tuple[Path, Path, Path]:
    """Build into `folder` the executable file for this machine's architecture, its SBOM and its list of licences.

    The packages are those of the lock file: fetched by pip, or taken from the module folders `places`. Returns the
    three paths. Raises BuildError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="atlctl-executable-") as scratch:
        if not places:
            places = [f"{scratch}/site"]
            tree.fetch(Path(places[0]))
        packages = tree.locked(places)
        _, wheel = dists.build(Path(scratch, "dist"))
        root = Path(scratch, "tree")
        tree.assemble(root, wheel, _compile("python.c", Path(scratch, "python3"), {}), packages)
        _check(root)
        file = seal(root, folder / f"atlctl-{__version__}-linux-{platform.machine()}")
        return file, *_describe(file, list(tree.components(root, packages)))


def _describe(file: Path, components: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Write the SBOM (CycloneDX, JSON) of `file` and a list of names, versions and licences beside it."""
    sbom, licences = file.with_name(f"{file.name}.cdx.json"), file.with_name(f"{file.name}.licenses.txt")
    digest = {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}
    whole = {
        "type": "application",
        "name": "atlctl",
        "version": __version__,
        "hashes": [digest],
        "licenses": [{"expression": "Apache-2.0"}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": whole},
        "components": components,
    }
    sbom.write_text(json.dumps(document, indent=1) + "\n")
    with licences.open("w") as lines:
        for one in (whole, *components):
            (told,) = one["licenses"]
            licence = told.get("expression") or told["license"]["name"]
            lines.write(f"{one['name']} {one.get('version', '-')}: {licence}\n")
    return sbom, licences


def seal(root: Path, target: Path) -> Path:
    """Write the executable file `target`, which holds the folder `root` and starts its bin/python3."""
    payload = pack(root)
    name = f"{__version__}-{platform.machine()}-{hashlib.sha256(payload).hexdigest()[:16]}"
    defined = {"NAME": _quoted(name), "START": ", ".join(map(_quoted, START))}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".atlctl-") as scratch:
        # Processes that run or read the old file keep it.
        fresh = _compile("atlctl.c", Path(scratch, "atlctl"), defined)
        with fresh.open("ab") as file:
            file.write(payload + struct.pack("<Q", len(payload)) + MARK)
        fresh.replace(target)
    return target


def _compile(source: str, target: Path, defined: dict[str, str]) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise BuildError("no C compiler (cc); on Debian: apt-get install build-essential")
    words = [f"-D{name}={value}" for name, value in defined.items()]
    words += ["-O2", "-s", "-static", "-o", str(target), str(_SOURCES / source)]
    if subprocess.run([compiler, *words], check=False).returncode:
        raise BuildError("the launcher could not be compiled; it needs the static C library (Debian: libc6-dev)")
    return target


def _quoted(text: str) -> str:
    """Quote a C string. The texts used here hold neither quotes nor backslashes."""
    return f'"{text}"'


def _check(root: Path) -> None:
    """Check that the tree runs in place and holds every module that atlctl imports."""
    package = next(root.glob("*/python3.*/atlctl"))
    run = subprocess.run([root / "bin/python3", "-S", "-W", "ignore", "-c", _CHECK, package], check=False)
    if run.returncode:
        raise BuildError("the tree lacks something; its error stands above")


def pack(root: Path) -> bytes:
    """Pack a folder in the launcher's format: table and contents."""
    paths = list(tree.files(root))
    table = b"".join(_entry(path, path.relative_to(root)) for path in paths)
    if len(table) > BLOCK:
        raise BuildError("the tree has too many files for one table; raise BLOCK here and in launcher/atlctl.c")
    whole = b"".join(path.read_bytes() for path in paths if path.is_file())
    blocks = (whole[at : at + BLOCK] for at in range(0, len(whole), BLOCK))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return b"".join(pool.map(_block, itertools.chain([table], blocks)))


def _entry(path: Path, name: Path) -> bytes:
    if path.is_dir():
        kind, size = b"d", 0
    else:
        kind, size = b"x" if path.parent.name == "bin" or name.parts == ("lib", "atlctl") else b"f", path.stat().st_size
    return kind + struct.pack("<I", size) + os.fsencode(name) + b"\0"


def _block(data: bytes) -> bytes:
    packer = zlib.compressobj(8, zlib.DEFLATED, -15, 9)  # 9 takes 1.8 times as long for 0.1 %
    packed = packer.compress(data) + packer.flush()
    return struct.pack("<III", len(packed), len(data), zlib.adler32(data)) + packed
