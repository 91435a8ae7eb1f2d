"""The catalogues of messages: what stands in the sources, wholly translated, and the files beside each other equal."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from atlctl.packaging import messages
from tests.support.needs import needs


def test_catalogues_are_up_to_date() -> None:
    """`make generate` brings them up to date."""
    assert messages.stale() == []


def test_every_message_is_translated_with_its_values() -> None:
    """Add what is missing to the .po file, then `make generate`."""
    assert messages.untranslated() == []


def test_translations_name_the_same_options() -> None:
    for locale in messages.LOCALES:
        for (_, one, many), text in messages.read(locale).items():
            options = [re.findall(r"--[a-z-]+", said) for said in (one, many or one, text)]
            assert sorted(options[2]) in map(sorted, options[:2]), one


@needs("msgfmt")
@pytest.mark.parametrize("locale", messages.LOCALES)
def test_msgfmt_has_no_complaint(locale: str) -> None:
    command = ["msgfmt", "--check", "--output-file=/dev/null", str(messages.po_path(locale))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_templates_are_plain() -> None:
    """A template names its values: no positions, attributes or items of them."""
    for _, one, many in messages.extracted():
        names = {name for name, _ in messages.placeholders([one, many])}
        # A shell's own braces, in an example of `completion`.
        assert all(name.isidentifier() for name in names - {"fpath[1]"}), one


def test_first_argument_of_a_message_is_a_literal() -> None:
    """Otherwise nothing is extracted. A template that is a variable is one of another message."""
    found = []
    for path in messages.PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        names = ["Sentence", *(["Message"] if path.name == "i18n.py" or "from atlctl.i18n import" in text else [])]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                first = node.args[0]
                if not isinstance(first, ast.Constant):
                    found.append(f"{path.relative_to(messages.PACKAGE)}: {ast.unparse(first)}")
    assert sorted(found) == ["i18n.py: self.template", "i18n.py: template", "remote/smoke/zygote.py: error.template"]


def test_extracted_sees_messages_within_messages(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        'a = Message("one {b}", b=[plural("{n} two", "{n} twos", 2), about("why", "three" "four")])\n'
        'b = Message(f"no {a}"), Message(""), other("no")\n'
    )
    assert messages.extracted(tmp_path) == [
        ("", "one {b}", ""), ("", "{n} two", "{n} twos"), ("why", "threefour", "")
    ]  # fmt: skip
