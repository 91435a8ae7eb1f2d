"""The documents' site has every page, and no external link."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "build/site-tool/bin/zensical"


def program() -> ModuleType:
    """The module docs/site/build.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs/site/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", ["en", "zh"])
def test_navigation_has_every_page_once(language: str, tmp_path: Path) -> None:
    site = program()
    pages = site.stage(language, tmp_path)
    assert Counter(site.listed(site.navigation(language))) == Counter(pages)
    written = {str(path.relative_to(tmp_path / "pages")) for path in tmp_path.glob("pages/**/*.md")}
    assert written == set(pages)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_links_stay_in_the_site(language: str, tmp_path: Path) -> None:
    site = program()
    site.stage(language, tmp_path)
    pages = tmp_path.glob("pages/**/*.md")
    named = [(page, link.partition("#")[0]) for page in pages for _, link in site.links(page.read_text("utf-8"))]
    lost = [(page.name, link) for page, link in named if not (page.parent / link).is_file()]
    assert lost == []


def test_links_are_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link to the other language leads to the same page here, without its anchor; code is unchanged."""
    site = program()
    for name in ("docs/en/a.md", "docs/zh/a.md", "docs/en/only.md", "LICENSE"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "# A\n\n[中文](../zh/a.md)\n\n[b](../en/a.md#x) [c](#x) `[d](e)` [f](only.md#y) [`g`](../../LICENSE)"
        )
    monkeypatch.setattr(site, "ROOT", tmp_path)
    sources: list[str] = []
    text = site.page("docs/en/a.md", "en", sources)
    assert text == "# A\n\n[b](a.md#x) [c](#x) `[d](e)` [f](only.md#y) [`g`](LICENSE)"
    assert sources == ["docs/en/a.md", "docs/en/only.md", "LICENSE"]
    assert "[b](a.md) " in site.page("docs/zh/a.md", "zh", [])


def test_llms_txt_is_of_today() -> None:
    text = program().llms()
    assert (ROOT / "docs/llms.txt").read_text("utf-8") == text, "make generate"
    linked = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    assert len(linked) > 30
    assert [link for link in linked if not (ROOT / "docs" / link).is_file()] == []


@pytest.mark.skipif(not TOOL.exists(), reason="the site's tool is not installed: make docs")
def test_the_site_is_built_and_asks_no_network(tmp_path: Path) -> None:
    site = program()
    site.build(str(TOOL), tmp_path / "site")
    for page in re.findall(r"^- \[.+?\]\((.+?)\)", (tmp_path / "site/llms.txt").read_text("utf-8"), re.MULTILINE):
        assert (tmp_path / "site" / page).is_file()
    for language, title in {"en": "Exit codes", "zh": "退出码"}.items():
        assert title in (tmp_path / "site" / language / "search.js").read_text("utf-8")
        pages = list((tmp_path / "site" / language).glob("**/*.html"))
        assert len(pages) > 50
        fetched = r'<(?:script|img|iframe|source)[^>]*src="?(?:https?:)?//|<link[^>]*href="?(?:https?:)?//'
        assert [page.name for page in pages if re.search(fetched, page.read_text("utf-8"))] == []
