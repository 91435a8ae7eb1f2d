"""The program that answers on a host: its text, the Python that is looked for there, and how it boots.

The supervisor is the local backend's, which is no module of this one: it is read as text.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from atlctl.backends.base import Argv, ExecRequest, Script, as_argv

#: The exit code where no Python is new enough; `supervisor/asked.py` has its own for a refusal.
NO_PYTHON, REFUSED = 95, 96

_FOLDER = Path(__file__).parents[2] / "local" / "supervisor"
#: Modules that answer, each behind those that it imports.
_ANSWERING = ("processes", "logfiles", "telling", "folders", "seeing", "logtail", "ending", "reading", "asked")
_STARTING = ("processes", "logfiles", "files", "requests", "telling", "folders", "booting", "starting", *_ANSWERING[4:])
#: What a supervisor is made of.
PROGRAM = (
    *("__init__", "boot", "children", "control", "crilog", "files", "loop"),
    *("processes", "requests", "snapshot", "supervisor", "workers"),
)

#: What is looked for in PATH there, in this order.
PYTHONS = "python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8"

# 97: too old, and nothing was done.
_SCRIPT = f"""\
for p in {PYTHONS}; do
  command -v "$p" >/dev/null 2>&1 || continue
  "$p" -I -S -X utf8 -c "$@"
  code=$?
  case $code in
  97) old="$old, $p there is $("$p" -V 2>&1)" ;;
  126 | 127) ;;
  *) exit $code ;;
  esac
done
echo "Python 3.8 or newer is needed and not in PATH there$old" >&2
exit 95
"""
_BOOT = """\
import sys
sys.version_info < (3, 8) and sys.exit(97)
import base64, json, types, zlib
modules, program = json.loads(zlib.decompress(base64.b64decode(sys.argv[1])))
package = types.ModuleType("supervisor")
package.__path__, sys.modules["supervisor"] = [], package
for name, text in modules:
    module = types.ModuleType("supervisor." + name)
    module.__package__ = "supervisor"
    sys.modules[module.__name__] = module
    exec(compile(text, "<atlctl>/" + name, "exec"), module.__dict__)
sys.exit(module.main(sys.argv[2:], program))
"""


@cache
def _packed(names: tuple[str, ...], program: tuple[str, ...]) -> str:
    sent = [(name, _text(name)) for name in names], {name: _text(name) for name in program}
    return base64.b64encode(zlib.compress(json.dumps(sent).encode(), 9)).decode("ascii")


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def request(question: str, details: dict[str, Any]) -> ExecRequest:
    """The command that asks one question. A start takes its steps on standard input; the others have no input, so that
    one session carries both the question and the lifeline."""
    start = question == "start"
    packed = _packed(_STARTING, PROGRAM) if start else _packed(_ANSWERING, ())
    words = (*as_argv(Script(_SCRIPT)).words, f"atlctl-{question}", _BOOT, packed, question, json.dumps(details))
    return ExecRequest(Argv(words), stdin=start)
