"""JSON and YAML for programs: lossless, yet harmless when they meet a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from atlctl.jobs.errors import AtlctlError
from atlctl.render.sanitize import HARMFUL

API_VERSION = "atlctl/v1"
Status = Literal["success", "partial", "error"]

_HARMFUL = re.compile(f"[{HARMFUL}]")
_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def dumps(obj: object, indent: int | None = None) -> str:
    """`obj` as JSON (RFC 8259), on one line unless `indent` is given.

    Text stays readable, but C1, DEL, bidi controls, invisible characters, U+2028, U+2029 and lone surrogates are
    escaped. Raises ValueError for NaN and infinities, which JSON has not.
    """
    text = json.dumps(obj, ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isascii() and "\x7f" not in text else _HARMFUL.sub(_escape, text)


def output_lines(head: str, lines: Iterable[str]) -> str:
    """JSON Lines for many texts at once: `head` is an object that is open before its last value, say `{"data": `.

    As harmless as `dumps`, at a tenth of its cost.
    """
    encode = _ENCODER.encode
    text = "".join([f"{head}{encode(line)}}}\n" for line in lines])
    return text if text.isascii() and "\x7f" not in text else _HARMFUL.sub(_escape, text)


def envelope(command: str, status: Status, data: object, errors: Sequence[object] = ()) -> dict[str, object]:
    """The one document that `-o json` prints. `status`: whether the command succeeded."""
    return {"apiVersion": API_VERSION, "command": command, "status": status, "data": data, "errors": list(errors)}


def yaml_dump(obj: object) -> str:
    """The same data as `dumps` gives, as one YAML document."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes every text that holds a harmful character, so that it can be escaped afterwards."""

        def represent_text(self, text: str) -> Any:
            style = '"' if _HARMFUL.search(text) else None
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, Dumper.represent_text)
    # Through JSON: enumerations, tuples and keys become what a reader of the JSON form sees.
    plain = json.loads(dumps(obj))
    text: str = yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    return _HARMFUL.sub(_escape_yaml, text)


def _escape_yaml(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def error_data(error: AtlctlError) -> dict[str, Any]:
    """An error as the `errors` of a JSON envelope hold it."""
    return {"kind": error.kind, "message": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}
