from __future__ import annotations

import string
from pathlib import Path

from atlctl.cli.catalogue import report_en, report_zh
from atlctl.cli.report.words import words


def test_both_languages_have_the_same_texts():
    assert list(report_en.TEXTS) == list(report_zh.TEXTS)
    parse = string.Formatter().parse
    for key, text in report_en.TEXTS.items():
        named = {name for _, name, _, _ in parse(text) if name}
        assert {name for _, name, _, _ in parse(report_zh.TEXTS[key]) if name} == named, key
    assert (words("en"), words("zh")) == (report_en.TEXTS, report_zh.TEXTS)


def test_english_is_english():
    assert [key for key, text in report_en.TEXTS.items() if not text.isascii()] == []


def test_every_text_is_used():
    root = Path(__file__).parents[4] / "atlctl"
    code = "".join(
        path.read_text() for folder in ("cli/report", "render/html") for path in (root / folder).glob("*.py")
    )
    families = ("mark ", "part ", "smoke ")  # put together from sorts, parts and verdicts
    keys = [key for key in report_en.TEXTS if not key.startswith(families)]
    assert [key for key in keys if f'"{key.removeprefix("head ")}"' not in code] == []
