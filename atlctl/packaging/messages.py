"""The message catalogues: extracted from the package, managed by Babel, written to `atlctl/locale` by `make generate`.

    python -m atlctl.packaging.messages --write

updates the `.po` files (adds new messages untranslated, removes old ones) and compiles the `.mo` files beside them;
without `--write` it lists outdated files and untranslated messages, and exits with 1. A test does the same.
"""

from __future__ import annotations

import ast
import string
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

PACKAGE = Path(__file__).parents[1]
#: Calls that create a message, with the positions of context, singular and plural; see `atlctl.i18n`.
_CALLS: dict[str, tuple[int | None, int, int | None]] = {
    "Message": (None, 0, None),
    "plural": (None, 0, 1),
    "about": (0, 1, None),
    # Of programs on workers, see `remote.sentences` and `remote.smoke.probe`.
    "Sentence": (None, 0, None),
    "RankError": (None, 1, None),
}
#: Plural forms, by gettext language.
LOCALES = {"zh_CN": "nplurals=1; plural=0;"}

Key = tuple[str, str, str]


def extracted(package: Path = PACKAGE) -> list[Key]:
    """Context, singular and plural of every message in the sources, in order.

    Reads the syntax tree, because Babel's extractor does not find a message that is a value of another one.
    """
    found: set[Key] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (places := _CALLS.get(ast.unparse(node.func))):
                texts = [_literal(node.args, place) for place in places]
                if texts[1]:
                    found.add((texts[0], texts[1], texts[2]))
    return sorted(found)


def _literal(arguments: list[ast.expr], place: int | None) -> str:
    argument = arguments[place] if place is not None and place < len(arguments) else None
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def po_path(locale: str) -> Path:
    return PACKAGE / "locale" / locale / "LC_MESSAGES" / "atlctl.po"


def read(locale: str) -> dict[Key, str]:
    """The translations of a locale, without fuzzy ones."""
    path = po_path(locale)
    if not path.exists():
        return {}
    with path.open("rb") as file:
        known = read_po(file, locale=locale)
    return {key_of(message): "" if message.fuzzy else text_of(message) for message in known if message.id}


def key_of(message: Message) -> Key:
    ids = message.id if isinstance(message.id, tuple | list) else (message.id, "")
    return message.context or "", ids[0], ids[1]


def text_of(message: Message) -> str:
    text = message.string[0] if isinstance(message.string, tuple | list) else message.string
    return text or ""


def po(locale: str, texts: dict[Key, str]) -> bytes:
    """The `.po` file: sorted and without source lines, so that moving code changes nothing."""
    import io

    made = Catalog(locale=locale)
    for (context, one, many), text in sorted(texts.items()):
        made.add((one, many) if many else one, (text,) if many else text, context=context or None)
    for message in made:
        # Templates are for str.format, not for `%`: gettext's check would be wrong.
        message.flags -= {"python-format"}
    out = io.BytesIO()
    write_po(out, made, width=120, no_location=True, omit_header=True, sort_output=True)
    head = "".join(f'"{line}\\n"\n' for line in _header(locale))
    return f'msgid ""\nmsgstr ""\n{head}\n'.encode() + out.getvalue()


def _header(locale: str) -> list[str]:
    return [
        "Project-Id-Version: atlctl",
        "Report-Msgid-Bugs-To: ",
        "PO-Revision-Date: 2026-01-01 00:00+0000",
        "Last-Translator: atlctl",
        f"Language-Team: {locale}",
        f"Language: {locale}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
        f"Plural-Forms: {LOCALES[locale]}",
    ]


def mo(locale: str, texts: dict[Key, str]) -> bytes:
    """The `.mo` file of GNU gettext; the same texts give the same bytes."""
    table = {"": "".join(f"{line}\n" for line in _header(locale))}
    for (context, one, many), text in texts.items():
        if text:
            table[(f"{context}\x04" if context else "") + one + (f"\0{many}" if many else "")] = text
    pairs = [(original.encode(), text.encode()) for original, text in table.items()]
    pairs.sort()
    count = len(pairs)
    start = 28 + 16 * count
    columns, data = [b"", b""], b""
    for column in (0, 1):
        for pair in pairs:
            columns[column] += struct.pack("<2I", len(pair[column]), start + len(data))
            data += pair[column] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, start)
    return head + b"".join(columns) + data


def generated() -> dict[Path, bytes]:
    """The expected files of `locale`."""
    files: dict[Path, bytes] = {}
    for locale in LOCALES:
        known, path = read(locale), po_path(locale)
        texts = {key: known.get(key, "") for key in extracted()}
        files |= {path: po(locale, texts), path.with_suffix(".mo"): mo(locale, texts)}
    return files


def stale() -> list[str]:
    return [str(path) for path, data in generated().items() if not path.exists() or path.read_bytes() != data]


def untranslated() -> list[str]:
    """Messages without a translation, or whose translation has other placeholders."""
    found = []
    for locale in LOCALES:
        known = read(locale)
        for key in extracted():
            _, one, many = key
            text = known.get(key, "")
            if not text or placeholders([one, many]) != placeholders([text]):
                found.append(f"{locale}: {one!r}")
    return found


def placeholders(texts: Iterable[str]) -> set[tuple[str, str]]:
    """Name and format of each placeholder in any of these templates."""
    parts = (part for text in texts for part in string.Formatter().parse(text))
    return {(name, form or "") for _, name, form, _ in parts if name is not None}


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        for path, data in generated().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    wrong = [*stale(), *untranslated()]
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
