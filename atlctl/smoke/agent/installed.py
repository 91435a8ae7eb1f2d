"""Which torch, CUDA and NCCL are installed, by the files beside them: importing torch costs seconds and memory."""

from __future__ import annotations

import re

from . import files, streams

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_TORCH = re.compile(r"^__version__[^=\n]*=\s*['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda[^=\n]*=\s*['\"]([^'\"\n]{1,40})['\"]", re.MULTILINE)
_INSTALLED = re.compile(
    r"(torch|nvidia[_-]nccl|nvidia[_-]cudnn)(?:[_-]cu[0-9]+)?-(.{1,80}?)(?:-py3.*)?\.(?:dist|egg)-info"
)


def main(argument: dict[str, Any]) -> None:
    streams.tell(1, look(argument["path"]))


def look(path: Sequence[str]) -> dict[str, Any]:
    """`torch`, `cuda`, `nccl`, `cudnn` of the Python whose `sys.path` this is; None: not there, or not told."""
    found: dict[str, Any] = dict.fromkeys(("torch", "cuda", "nccl", "cudnn"))
    for entry in path:
        written = files.text(entry + "/torch/version.py", 4096) if entry and not found["torch"] else ""
        for name, pattern in (("torch", _TORCH), ("cuda", _CUDA)):
            match = pattern.search(written)
            found[name] = match.group(1) if match else found[name]
        for name in files.names(entry) if entry else []:
            match = _INSTALLED.fullmatch(name)
            if match:
                what = re.sub(r"nvidia[_-]", "", match.group(1))
                found[what] = found[what] or match.group(2)
    return found
