"""The agent as a command: the program's text, the Python that is looked for on a worker, and how it boots."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

from atlctl.backends.base import Argv, ExecRequest, Script, as_argv

# The first word is the shell's: a worker that has too much to do takes long to start a Python, and is not a silent one.
# A worker's own Python first. Without a good one in PATH that of a process of the same user does, the trainer's most
# likely. A boot that ends with 97 has found its Python too old: the next one is tried. The text comes by standard
# input, which nothing reads before a Python was found good.
_SCRIPT = """\
count() { cpus=$#; }
count /sys/devices/system/cpu/cpu[0-9]*
load=1 running=1/
read -r load _ _ running _ 2>/dev/null </proc/loadavg
printf '\\036{"ev":"alive","load":%s,"running":%s,"cpus":%s}\\n' "$load" "${running%%/*}" "$cpus"
try() {
  "$1" -u -c 'import sys; exec(sys.argv[1])' "$boot" "$wants" "$size"
  code=$?
  case $code in 97 | 126 | 127) ;; *) exit $code ;; esac
}
boot=$1 wants=$2 size=$3
for p in python3 python; do
  command -v "$p" >/dev/null 2>&1 && try "$p"
done
for d in /proc/[0-9]*; do
  [ -O "$d" ] || continue
  case $(readlink "$d/exe" 2>/dev/null) in */python*) ;; *) continue ;; esac
  p=$(tr '\\0' '\\n' <"$d/cmdline" 2>/dev/null | head -n 1)
  case $p in /*python*) [ "$p" -ef "$d/exe" ] || p=$d/exe ;; *) p=$d/exe ;; esac
  case " $tried " in *" $p "*) continue ;; esac
  tried="$tried $p"
  [ -x "$p" ] && try "$p"
done
echo 'no Python 3.8 or newer is there' >&2
exit 3
"""
# The folder that the worker happens to stand in is no place to import from: a `json.py` there would be run. One in
# PYTHONPATH would, too: the standard library goes first. Where this Python has no torch, that of another process of
# this user may (a trainer in its venv; those of this worker first): it takes over, with the same standard input. Other
# users' are left alone, as is a path that is not the program that the process runs: neither is to be trusted.
_BOOT = """\
import sys
sys.version_info < (3, 8) and sys.exit(97)
import os
std = os.path.dirname(os.__file__)
sys.path[:] = sorted((p for p in sys.path if p), key=lambda p: p not in (std, std + "/lib-dynload"))
import importlib.abc, importlib.machinery, importlib.util, json, zlib
def others():
    found, own = [], {name: os.fsencode(os.environ.get(name, "")) for name in ("ATLCTL_JOB", "ATLCTL_WORKER")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        at = "/proc/" + pid
        try:
            if os.stat(at).st_uid != os.geteuid() or "/python" not in os.readlink(at + "/exe"):
                continue
            with open(at + "/cmdline", "rb") as file:
                name = os.fsdecode(file.read(4096).split(b"\\0")[0])
            with open(at + "/environ", "rb") as file:
                env = dict(word.partition(b"=")[::2] for word in file.read(1 << 17).split(b"\\0"))
            if "/" in name:
                path = os.path.join(os.readlink(at + "/cwd"), name)
            else:
                paths = [os.path.join(d, name) for d in os.fsdecode(env.get(b"PATH", b"")).split(":")]
                path = next(filter(os.path.exists, paths), "")
            if os.path.isabs(path) and os.path.samefile(path, at + "/exe"):
                alien = any(env.get(os.fsencode(name), b"") != value for name, value in own.items())
                found.append((alien, b"LOCAL_RANK" not in env, path))
        except OSError:
            continue
    return dict.fromkeys(path for _, _, path in sorted(found))
if sys.argv[2] == "torch" and importlib.util.find_spec("torch") is None:
    import subprocess
    ask = (
        "import sys; sys.version_info < (3, 8) and sys.exit(1); sys.path[:] = [p for p in sys.path if p]; "
        "from importlib.util import find_spec; sys.exit(find_spec('torch') is None)"
    )
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for path in others():
        try:
            if path != sys.executable and subprocess.call([path, "-c", ask], timeout=5, **quiet) == 0:
                os.execv(path, [path, "-u", "-c", "import sys; exec(sys.argv[1])", sys.argv[1], "any", sys.argv[3]])
        except (OSError, subprocess.SubprocessError):
            continue
left, data = int(sys.argv[3]), b""
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
    words = (*as_argv(Script(_SCRIPT)).words, "atlctl-smoke", _BOOT, "torch" if torch else "any", str(len(program())))
    return ExecRequest(Argv(words), stdin=True)
