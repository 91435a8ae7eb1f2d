"""Pages generated from the command table: Markdown and man pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from atlctl.cli.table import ENVIRONMENT, escape, man_pages, markdown_pages, pages
from tests.support.needs import needs

ROOT = Path(__file__).parents[3]
PAGES = list(pages())
#: Internal variables between parts of atlctl, not set by users.
INTERNAL = {
    "ATLCTL_EXEC",
    "ATLCTL_SMOKE_SECONDS",
    "ATLCTL_DEMO_FAULT_FILE",
    "ATLCTL_DEMO_FAULT_RANK",
    "ATLCTL_DEMO_HOLD",
}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_command_has_its_pages(lang):
    written = markdown_pages(PAGES, lang)
    manual = man_pages(PAGES, lang)
    assert len(written) == len(manual) == len(PAGES)
    for page in PAGES:
        assert written[f"{page.slug}.md" if page.path else "README.md"].startswith(f"# {page.title}\n")
        assert manual[f"{page.title.replace(' ', '-')}.1"].startswith(f".TH {page.title.replace(' ', '-').upper()} 1 ")


def test_every_command_but_the_program_names_a_document():
    assert [page.path for page in PAGES if not page.command.guide] == [""]


def test_every_variable_of_the_code_is_told():
    found = set()
    for path in (ROOT / "atlctl").rglob("*.py"):
        found |= set(re.findall(r"\bATLCTL_[A-Z_]*[A-Z]\b", path.read_text("utf-8")))
    assert found - INTERNAL - set(ENVIRONMENT) == set()
    assert {name for name in ENVIRONMENT if name.startswith("ATLCTL_")} <= found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".TH forged", "\\&.TH forged"),
        ("'so /etc/passwd", "\\&'so /etc/passwd"),
        ("a\n.b", "a\n\\&.b"),
        ("--all \\n", "\\-\\-all \\en"),
        ("a.b", "a.b"),
    ],
)
def test_text_stays_text_in_a_man_page(text, expected):
    assert escape(text) == expected


@needs("man")
@pytest.mark.parametrize("place", ["man1", "zh_CN/man1"])
def test_man_shows_every_page_without_a_warning(place):
    for path in sorted((ROOT / "docs" / "man" / place).iterdir()):
        shown = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", str(path)],
            env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=True,
        )
        # A Chinese line has no spaces that could be stretched.
        assert [line for line in shown.stderr.splitlines() if "cannot adjust line" not in line] == [], path.name
        usage = next(line for line in path.read_text("utf-8").splitlines() if line.startswith(".B atlctl"))
        assert usage.removeprefix(".B ").replace("\\-", "-") in re.sub(r"\s+", " ", shown.stdout)
