from __future__ import annotations

from pathlib import Path

from atlctl.cli.report.page import words


def test_words_has_the_same_texts_in_each_language():
    assert list(words("en")) == list(words("zh"))
    assert words("zh")["verdict"] != words("en")["verdict"]


def test_words_in_english_is_english():
    assert [key for key, text in words("en").items() if not text.isascii()] == []


def test_every_text_is_used():
    root = Path(__file__).parents[4] / "atlctl"
    paths = [*(root / "cli/report").glob("*.py"), root / "render/page.py"]
    code = "".join(path.read_text() for path in paths)
    families = ("mark ", "part ", "smoke ")  # composed of sorts, parts and verdicts
    keys = [key for key in words("en") if not key.startswith(families)]
    # The key of a column is its English text, in its definition and in its uses.
    assert [key for key in keys if code.count(f'"{key.removeprefix("head ")}"') < 1 + key.startswith("head ")] == []
