"""The agent as a command: the program's text, the Python that is looked for on a worker, and how it boots."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

from atlctl.backends.base import Argv, ExecRequest, Script, as_argv

#: Exit codes of the boot: too old a Python, one without torch though torch is wanted, no usable Python at all.
TOO_OLD, NO_TORCH, NO_PYTHON = 97, 96, 3

# A worker's own Python first, then those of its processes: the trainer's, most likely. The text comes by standard
# input, which nothing reads before a Python was found good. The last round takes one without torch.
_SCRIPT = """\
try() {
  "$1" -u -c "$boot" "$2" "$size"
  code=$?
  case $code in 96 | 97 | 126 | 127) ;; *) exit $code ;; esac
}
boot=$1 wants=$2 size=$3
for round in $wants; do
  for p in python3 python; do
    command -v "$p" >/dev/null 2>&1 && try "$p" "$round"
  done
  for d in /proc/[0-9]*; do
    case $(readlink "$d/exe" 2>/dev/null) in */python*) ;; *) continue ;; esac
    p=$(tr '\\0' '\\n' <"$d/cmdline" 2>/dev/null | head -n 1)
    case $p in /*python*) ;; *) p=$d/exe ;; esac
    case " $tried " in *" $p "*) continue ;; esac
    tried="$tried $p"
    [ -x "$p" ] && try "$p" "$round"
  done
  tried=
done
echo 'no Python 3.8 or newer is there' >&2
exit 3
"""
# The folder that the worker happens to stand in is no place to import from: a `json.py` there would be run.
_BOOT = """\
import sys
sys.version_info < (3, 8) and sys.exit(97)
sys.path[:] = [p for p in sys.path if p]
import importlib.abc, importlib.machinery, importlib.util, json, os, zlib
if sys.argv[1] == "torch" and importlib.util.find_spec("torch") is None:
    sys.exit(96)
left, data = int(sys.argv[2]), b""
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
    rounds = "torch any" if torch else "any"
    words = (*as_argv(Script(_SCRIPT)).words, "atlctl-smoke", _BOOT, rounds, str(len(program())))
    return ExecRequest(Argv(words), stdin=True)
