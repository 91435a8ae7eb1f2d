"""Boot code for programs sent as text: the argument of `-c` for each Python that runs one.

Arguments: NAME DATA, once or several times, then `--`, then the program's arguments. NAME is a module in DATA, whose
`main` is called: the last one with the program's arguments, earlier ones with none. DATA is the number of bytes to read
from standard input, or the bytes in base64: compressed JSON of modules by name.

Every Python can parse this file; one that is too old exits with 97 before it reads anything.
"""

# ruff: noqa: ARG002, E402, RET503, S102
# mypy: ignore-errors
import sys

sys.version_info < (3, 8) and sys.exit(97)
import os

# Do not import from the current folder: a `json.py` there would be run. The same goes for folders in PYTHONPATH, so the
# standard library comes first.
std = os.path.dirname(os.__file__)
sys.path[:] = sorted((p for p in sys.path if p), key=lambda p: p not in (std, std + "/lib-dynload"))
import binascii
import importlib
import json
import zlib
from importlib.machinery import ModuleSpec

texts = {}


class Sent:
    def find_spec(self, name, path=None, target=None):
        if name in texts:
            return ModuleSpec(name, self, is_package=any(text.startswith(name + ".") for text in texts))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        exec(compile(texts[name], "<atlctl>/" + name, "exec"), module.__dict__)


sys.meta_path.insert(0, Sent())
more = True
while more:
    name, data = sys.argv[1:3]
    del sys.argv[1:3]
    if data.isdigit():
        left, data = int(data), b""
        while len(data) < left:
            got = os.read(0, left - len(data))
            got or sys.exit(0)
            data += got
    else:
        data = binascii.a2b_base64(data)
    texts.update(json.loads(zlib.decompress(data)))
    more = sys.argv[1] != "--"
    importlib.import_module(name).main(*([] if more else sys.argv[2:]))
