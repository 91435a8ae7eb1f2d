"""Hides what looks like a secret, in atlctl's own diagnostics and in evidence that is handed on.

By pattern, so it cannot be complete: a secret without a telling name or a known shape stays. Evidence is treated with
more care than diagnostics: a line of a log that tells of a failure must tell it afterwards, too. `KeyError: 'token'`,
`eos_token='</s>'` and `tokens: 512` are no secrets.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

HIDDEN = "[redacted]"
#: What a secret was known by: its name, its shape, a header of HTTP, a URL that holds it, the frame of a key.
Kind = Literal["name", "shape", "header", "url", "private key"]

#: What may stand behind a name, before its value.
_BEHIND = ("=", ":", '"', "'", "\\", "]", " ")
_KEYS = ("api", "access", "secret", "private", "account", "auth", "encryption", "signing", "license", "master")
_SINGLE = ("password", "passwd", "passphrase", "secret", "credential", "credentials")
_SHAPES = (
    ("eyJ", r"eyJ[\w-]{8,2000}\.[\w-]{4,4000}\.[\w-]{0,2000}"),  # JSON web tokens, also Kubernetes' own
    ("hf_", r"hf_[A-Za-z0-9]{20,200}"),
    ("api_org_", r"api_org_[A-Za-z0-9]{20,200}"),
    *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,300}}") for kind in "pousr"),
    ("github_pat_", r"github_pat_\w{20,300}"),
    ("glpat-", r"glpat-[\w-]{16,100}"),
    ("sk-", r"sk-(?:(?:proj|svcacct|admin|ant-[a-z0-9]{2,10}|or-v\d|lf)-[\w-]{16,400}|[A-Za-z0-9]{32,200})"),
    ("AKIA", r"AKIA[A-Z0-9]{16}"),
    ("ASIA", r"ASIA[A-Z0-9]{16}"),
    *((f"xox{kind}-", rf"xox{kind}-[\w-]{{10,300}}") for kind in "abeoprs"),
    ("AIza", r"AIza[\w-]{30,60}"),
    ("ya29.", r"ya29\.[\w-]{20,2000}"),
    ("npm_", r"npm_[A-Za-z0-9]{30,60}"),
    ("pypi-AgE", r"pypi-AgE[\w-]{20,2000}"),
    ("X-Amz-", r"(?<=X-Amz-Signature=)[0-9a-f]{16,200}"),
    ("X-Amz-", r"(?<=X-Amz-Credential=)[^&\s\"']{8,400}"),
    ("sig=", r"(?<=[?&]sig=)[\w%+/=-]{16,400}"),  # of Azure's storage
)
_HEADERS = ("uthorization", "UTHORIZATION", "earer ", "EARER ", "ookie:", 'ookie"', "ookie'", "ookie\\")
_FRAME = "PRIVATE KEY-----"

#: Possessive: it must not be read in another way where the value behind it is no secret, or is hidden already.
_END_OF_NAME = r"(?:\\{0,3}[\"'])?+\]?+\ {0,4}+(?:=>|:=|[:=])\ {0,4}+"
_ORDINARY = (
    r"(?!\[redacted\])(?!(?:not|is|was|are|has|no|the|a|an|and|or|in|for|must|cannot|missing|invalid|required|none|None"
    r"|null|true|false|True|False)\b)"
)
_OPEN = r"(?P<q>\\{0,3}[\"'])"
_PLAIN = r"[^\s\"'&;,\\]{0,2000}[^\s\"'&;,\\)\]}>.]"
_VALUE = rf"(?:{_OPEN}(?!\[redacted\])(?:(?!(?P=q)).){{1,2000}}|{_ORDINARY}{_PLAIN})"
#: Names with `token` are frequent in the logs of language models, and most of them are no secrets.
_LIKELY = r"(?![\d.,]{1,30}(?:[\s\"')\]},;]|$))(?![<\[({|])"
_TOKEN_VALUE = (
    rf"(?:{_OPEN}{_LIKELY}[^\s\"'\\]{{8,2000}}|{_ORDINARY}{_LIKELY}[^\s\"'&;,\\]{{7,2000}}[^\s\"'&;,\\)\]}}>.])"
)


def _either(words: tuple[str, ...]) -> str:
    return "|".join(sorted((form for word in words for form in (word, word.title(), word.upper())), reverse=True))


#: `password`, `api_key`, `API-KEY`, `apiKey`; and in names of variables, in capitals, any `_KEY`.
_STRONG = rf"(?:{_either(_SINGLE)}|(?:{_either(_KEYS)})[_\ -]?(?:[Kk]ey|KEY))"
_TOKEN = "(?:[Tt]oken|TOKEN)"  # noqa: S105 - a name
_CAPITALS = "_(?:KEY|TOKEN|PWD|PASS|AUTH)"

_STRONG_STEMS = ("assword", "asswd", "assphrase", "ecret", "redential", "redentials", "key", "Key")
_UPPER_STEMS = ("ASSWORD", "ASSWD", "ASSPHRASE", "ECRET", "REDENTIAL", "REDENTIALS", "KEY")
_CAPITAL_STEMS = ("_KEY", "_TOKEN", "_PWD", "_PASS", "_AUTH")
_STEMS = (*_STRONG_STEMS, *_UPPER_STEMS)
_TOKEN_STEMS = ("oken", "OKEN")
_SHAPE_STEMS = tuple(literal for literal, _ in _SHAPES)

#: One of these stands in every line in which something is hidden.
LITERALS = frozenset(
    text.encode()
    for text in (
        *(stem + behind for stem in (*_STEMS, *_CAPITAL_STEMS, *_TOKEN_STEMS) for behind in _BEHIND),
        *_SHAPE_STEMS,
        *_HEADERS,
        _FRAME,
        "@",
    )
)


def _compiled(text: str) -> re.Pattern[bytes]:
    return re.compile(text.encode())


def _named(names: str, value: str) -> re.Pattern[bytes]:
    return _compiled(rf"(?P<keep>{names}{_END_OF_NAME}){value}")


_SCHEME = r"(?:[Bb]earer|BEARER|[Bb]asic|[Tt]oken|Negotiate)\ "
#: Kind, texts of which one must be there, pattern. The quote in front of a value stays, so that JSON remains JSON.
_TABLE: tuple[tuple[Kind, tuple[str, ...], re.Pattern[bytes]], ...] = (
    (
        "private key",
        (_FRAME,),
        _compiled(rf"(?P<keep>-----BEGIN [A-Z0-9 ]{{0,30}}{_FRAME})(?:(?!-----END).){{1,20000}}"),
    ),
    (
        "header",
        ("uthorization", "UTHORIZATION"),
        _compiled(
            r"(?P<keep>[Aa](?:uthorization|UTHORIZATION)\\{0,3}[\"']?\ {0,4}+[:=]\ {0,4}+(?:b?\\{0,3}[\"'])?+"
            rf"(?:{_SCHEME})?)(?!{_SCHEME})(?!\[redacted\])[^\s\"'\\,;]{{4,4000}}"
        ),
    ),
    (
        "header",
        ("earer ", "EARER "),
        _compiled(r"(?P<keep>\b(?:[Bb]earer|BEARER)\ {1,4}+)(?!\[redacted\])[\w.~+/=-]{8,4000}"),
    ),
    (
        "header",
        ("ookie",),
        _compiled(
            r"(?P<keep>\b(?:[Ss]et-)?[Cc]ookie\\{0,3}[\"']?:\ {0,4}+(?:\\{0,3}[\"'])?+)"
            r"(?!\[redacted\])[^\"'\\]{4,4000}"
        ),
    ),
    (
        "url",
        ("@",),
        _compiled(
            r"(?P<keep>(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://[^\s/:@\"']{0,200}:)(?!\[redacted\]@)[^\s/@\"']{1,500}(?=@)"
        ),
    ),
    ("url", ("@",), _compiled(r"(?P<keep>(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://)[\w.~%-]{20,500}(?=@)")),
    ("shape", _SHAPE_STEMS, _compiled("(?<![A-Za-z0-9])(?:" + "|".join(shape for _, shape in _SHAPES) + ")")),
    ("name", _STEMS, _named(_STRONG, _VALUE)),
    ("name", _CAPITAL_STEMS, _named(rf"[A-Z0-9]{_CAPITALS}", _VALUE)),
    ("name", _TOKEN_STEMS, _named(_TOKEN, _TOKEN_VALUE)),
    (
        "name",
        ("--",),
        _compiled(rf"(?P<keep>(?<![\w-])--[\w-]{{0,60}}(?:{_STRONG}|{_TOKEN})\ {{1,4}}+)(?!-|\[redacted\]){_VALUE}"),
    ),
)
_PATTERNS = tuple((kind, tuple(stem.encode() for stem in stems), pattern) for kind, stems, pattern in _TABLE)
_HIDDEN = HIDDEN.encode()
_SECRET_NAME = re.compile(rf".*(?:{_STRONG}|{_TOKEN}|[A-Z0-9]{_CAPITALS})", re.DOTALL)

_BEGINS = _compiled(rf"-----BEGIN [A-Z0-9 ]{{0,30}}{_FRAME}")
_ENDS = _compiled(rf"-----END [A-Z0-9 ]{{0,30}}{_FRAME}")
#: A line of a key: one word behind a stamp and a prefix, or a long one of base64.
_OF_KEY = _compiled(
    r"(?P<keep>(?:20\d\d-\d\d-\d\dT\S{8,30} )?(?:(?:stdout|stderr) [FP] )?"
    r"(?:\[[^\]\s]{1,60}\]:? |[\w./-]{1,80}: )?\s{0,40})"
    r"(?:[A-Za-z0-9+/]{1,200}={0,2}|Proc-Type: .{1,100}|DEK-Info: .{1,200})\s{0,4}"
)
_BASE64_LINE = _compiled(r"(?P<keep>(?:20\d\d-\d\d-\d\dT\S{8,30} )?)[A-Za-z0-9+/]{60,80}={0,2}")
#: Lines of a private key at most: of a longer one something else has come between.
_KEY_LINES = 200
_DIGITS = bytes(0x30 if 0x30 <= code <= 0x39 else code for code in range(256))
#: Bytes of a line whose form is kept, and forms that are.
_SHAPE, _SHAPES_KEPT = 400, 2_000


class Redactor:
    """Hides secrets in one stream of lines; a private key may take many of them. Lines stay lines.

    `holds` says of bytes whether one of `LITERALS` is in them: a quick no saves the looking. `cut`: the stream may
    begin in the middle of a key, as a log that was cut at its top.
    """

    def __init__(
        self, holds: Callable[[bytes], bool] | None = None, found: Counter[Kind] | None = None, *, cut: bool = False
    ) -> None:
        """`found` counts what was hidden, over several streams where it is shared."""
        self.found: Counter[Kind] = Counter() if found is None else found
        self._holds = holds
        self._inside = 0
        self._harmless: set[bytes] = set()
        self._top = cut

    @property
    def quiet(self) -> bool:
        """Whether lines without a literal stay as they are."""
        return not self._inside and not self._top

    def line(self, data: bytes) -> bytes:
        """One line, with or without its newline."""
        if self._top:
            self._top = False
            if _BASE64_LINE.fullmatch(data.rstrip(b"\r\n")):
                self._top = True
                return self._of_key(data, _BASE64_LINE)
        if self._inside:
            self._inside -= 1
            if _ENDS.search(data):
                self._inside = 0
            elif _OF_KEY.fullmatch(data.rstrip(b"\r\n")):
                return self._of_key(data, _OF_KEY)
        if self._holds is not None and not self._holds(data):
            return data
        if (begin := _BEGINS.search(data)) and not _ENDS.search(data, begin.end()):
            self._inside = _KEY_LINES
        # A training prints the same line again and again, with other numbers: to the patterns all digits are alike.
        shape = data.translate(_DIGITS) if len(data) <= _SHAPE else b""
        if shape in self._harmless:
            return data
        hidden = _hide(data, self.found)
        if hidden == data and shape:
            if len(self._harmless) >= _SHAPES_KEPT:
                self._harmless.clear()
            self._harmless.add(shape)
        return hidden

    def _of_key(self, data: bytes, pattern: re.Pattern[bytes]) -> bytes:
        self.found["private key"] += 1
        body = data.rstrip(b"\r\n")
        return pattern.sub(rb"\g<keep>" + _HIDDEN, body, count=1) + data[len(body) :]


def _hide(data: bytes, found: Counter[Kind]) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        groups = match.groupdict()
        return (groups.get("keep") or b"") + (groups.get("q") or b"") + _HIDDEN

    end = b"\r\n" if data.endswith(b"\r\n") else b"\n" if data.endswith(b"\n") else b""
    body = data[: len(data) - len(end)]
    for kind, stems, pattern in _PATTERNS:
        for stem in stems:  # several times as fast as any() over a generator, and every busy line comes here
            if stem in body:
                body, count = pattern.subn(replaced, body)
                if count:
                    found[kind] += count
                break
    return body + end


def redact_text(text: str, found: Counter[Kind] | None = None) -> str:
    """A text of one or several lines."""
    redactor = Redactor(found=found)
    lines = text.encode("utf-8", "surrogatepass").split(b"\n")
    return b"\n".join(map(redactor.line, lines)).decode("utf-8", "surrogatepass")


def redact_json(value: Any, found: Counter[Kind] | None = None, depth: int = 0) -> Any:
    """A value of JSON: texts as `redact_text`, and the text under a name that says it is a secret.

    Pairs like `{"name": "HF_TOKEN", "value": "..."}` are understood. What is nested deeper than 60 is left out.
    """
    found = Counter() if found is None else found
    if isinstance(value, str):
        return redact_text(value, found)
    if depth > 60:
        return None if isinstance(value, dict | list) else value
    if isinstance(value, list):
        return [redact_json(item, found, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    named = value.get("name", value.get("key"))
    made = {}
    for name, item in value.items():
        secret = isinstance(named, str) and name == "value" and is_secret_name(named)
        if isinstance(item, str) and item and item != HIDDEN and (secret or is_secret_name(str(name))):
            found["name"] += 1
            made[name] = HIDDEN
        else:
            made[name] = redact_json(item, found, depth + 1)
    return made


def redact_json_bytes(data: bytes, found: Counter[Kind] | None = None) -> bytes:
    """A JSON document on one line, or line by line where it is none. The result has as many lines."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        redactor = Redactor(found=found)
        return b"\n".join(map(redactor.line, data.split(b"\n")))
    made = redact_json(value, found)
    if made == value:
        return data
    lines = data.count(b"\n")
    text = json.dumps(made).encode()
    return text + b"\n" * lines


def is_secret_name(name: str) -> bool:
    """Whether a name says that its value is a secret: `HF_TOKEN`, `db.password`, `apiKey`."""
    return len(name) <= 500 and _SECRET_NAME.fullmatch(name) is not None


_NAMES = r"(?:token|password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
_SUSPECT = re.compile(
    rf"""
    (?P<keep>
        \bauthorization["']?\s*[:=]\s*(?:(?:bearer|basic|token)\s+)?
      | \bbearer\s+
      | (?<!\w)--[\w-]*{_NAMES}[\w-]*\s+
      | \b[\w-]*{_NAMES}[\w-]*["']?\s*[:=]\s*
    )
    (?!\[redacted\])(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;&]+)
    """,
    re.IGNORECASE | re.VERBOSE,
)


def redact_diagnostics(text: str) -> str:
    """The same for what atlctl says of itself, where nothing is lost by hiding too much: all that has such a name."""
    return redact_text(_SUSPECT.sub(rf"\g<keep>{HIDDEN}", text))
