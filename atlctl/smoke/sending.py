"""The agent as a command: the program's text, the Python that is looked for on a worker, and how it boots."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path

from atlctl.backends.base import ExecRequest
from atlctl.fanout.pythons import command

# The first word is the shell's: a worker that has too much to do takes long to start a Python, and is not a silent one.
_ALIVE = """\
count() { cpus=$#; }
count /sys/devices/system/cpu/cpu[0-9]*
load=1 running=1/
read -r load _ _ running _ 2>/dev/null </proc/loadavg
printf '\\036{"ev":"alive","load":%s,"running":%s,"cpus":%s}\\n' "$load" "${running%%/*}" "$cpus"
"""
# The folder that the worker happens to stand in is no place to import from: a `json.py` there would be run. One in
# PYTHONPATH would, too: the standard library goes first.
_START = """\
import sys
sys.version_info < (3, 8) and sys.exit(97)
import os
std = os.path.dirname(os.__file__)
sys.path[:] = sorted((p for p in sys.path if p), key=lambda p: p not in (std, std + "/lib-dynload"))
import binascii, zlib
exec(zlib.decompress(binascii.a2b_base64(sys.argv[2])))
"""
# If this Python has no torch, that of another process of this user may (a trainer in its venv): it takes over, with the
# same standard input. Which one is trusted is the probe's to say, which is no module of this layer: it is read as text.
_TRUST = Path(__file__).parents[1] / "stacks" / "probe" / "trust.py"
_BOOT = """\
import importlib.abc, importlib.machinery, importlib.util, json
if sys.argv[3] == "torch" and importlib.util.find_spec("torch") is None:
    import subprocess
    ask = (
        "import sys; sys.version_info < (3, 8) and sys.exit(1); sys.path[:] = [p for p in sys.path if p]; "
        "from importlib.util import find_spec; sys.exit(find_spec('torch') is None)"
    )
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for path in others():
        try:
            if path != sys.executable and subprocess.call([path, "-c", ask], timeout=5, **quiet) == 0:
                words = sys.argv[1:3] + ["any", sys.argv[4]]
                os.execv(path, [path, "-u", "-c", "import sys; exec(sys.argv[1])"] + words)
        except (OSError, subprocess.SubprocessError):
            continue
left, data = int(sys.argv[4]), b""
while len(data) < left:
    got = os.read(0, left - len(data))
    got or sys.exit(0)
    data += got
texts = json.loads(zlib.decompress(data))
class Sent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in texts:
            return importlib.util.spec_from_loader(name, self, is_package="." not in name)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(texts[name], "<atlctl smoke>/" + name, "exec"), module.__dict__)
sys.meta_path.insert(0, Sent())
import atlctl_smoke.main
atlctl_smoke.main.main()
"""
_PACKAGE = "atlctl_smoke"


@cache
def program() -> bytes:
    """What is written to standard input before the first line: the text of every module, compressed."""
    here = Path(__file__).parent
    texts = {_PACKAGE: ""}
    for file in sorted((here / "agent").glob("*.py")):
        if file.stem != "__init__":
            texts[f"{_PACKAGE}.{file.stem}"] = file.read_text(encoding="utf-8")
    texts[f"{_PACKAGE}.probe"] = (here / "probe.py").read_text(encoding="utf-8")
    return zlib.compress(json.dumps(texts).encode(), 6)


def request(torch: bool) -> ExecRequest:
    """The command that starts an agent; with `torch` a Python that has it is preferred."""
    boot = _TRUST.read_text(encoding="utf-8").split('"""', 2)[2] + _BOOT  # the long docstring stays here
    packed = base64.b64encode(zlib.compress(boot.encode(), 9)).decode("ascii")
    words = ("import sys; exec(sys.argv[1])", _START, packed, "torch" if torch else "any", str(len(program())))
    return ExecRequest(command("atlctl-smoke", "-u", words, _ALIVE), stdin=True)
