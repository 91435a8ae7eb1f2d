"""How a program that is sent as text starts: the word behind `-c` of every Python that runs one.

Words: NAME DATA, once or more often, then `--`, then the program's own. NAME is a module that DATA brings, and its
`main` is called: that of the last NAME with the program's own words, those before it with none. DATA is how many bytes
to read from standard input, or the bytes themselves in base64: JSON of modules by name, compressed.

Every Python can parse this, and one that is too old ends with 97 before it has read anything.
"""

# ruff: noqa: ARG002, E402, RET503, S102
# mypy: ignore-errors
import sys

sys.version_info < (3, 8) and sys.exit(97)
import os

# The folder that the worker happens to stand in is no place to import from: a `json.py` there would be run. One in
# PYTHONPATH would be, too: the standard library goes first.
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
