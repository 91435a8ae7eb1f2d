"""The site of the documents: `python docs/site/build.py FOLDER`, by `make docs`; `--llms`, by `make generate`.

Each language is a site with its own search. The pages are those that GitHub shows: links to files of the repository are
rewritten to what the site has. The navigation is made of the tables of docs/LANGUAGE/README.md.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: Language -> its first page.
HOMES = {"en": "README.md", "zh": "README.zh-CN.md"}

#: A fenced block, a link (text, address), or code.
_LINK = re.compile(r"^```.*?^```$|\[([^\]]*)\]\(([^)\s]+)\)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_WITHIN = re.compile(r"(?!#|[a-z]+:).")
#: The line under a title that leads to the other language; the site has a switch.
_OTHER = re.compile(r"\A(# .+\n)\n\[(?:English|中文)\]\([^)]+\)\n")


def address(source: str) -> str:
    """The address that a file of the repository has in a site; the same for both languages of a page."""
    if source in HOMES.values():
        return "index.md"
    path = re.sub(r"^docs/(?:(?:en|zh)/)?", "", source)
    if path == "README.md":
        return "documents.md"
    return re.sub(r"README\.md$", "index.md", path)


def in_language(source: str, language: str) -> str:
    """The page in this language, or the page itself if it has no translation."""
    if source in HOMES.values():
        return HOMES[language]
    own = re.sub(r"^docs/(?:en|zh)/", f"docs/{language}/", source)
    return own if (ROOT / own).exists() else source


def target_of(link: str, source: str) -> str:
    """The file that a link of `source` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link.partition("#")[0]))


def links(text: str) -> list[tuple[str, str]]:
    """The links to files, as text and address; code has none."""
    return [(text, link) for text, link in _LINK.findall(text) if _WITHIN.match(link)]


def page(source: str, language: str, sources: list[str]) -> str:
    """The text of a page with the links of the site; the files that they lead to are added to `sources`."""
    here = posixpath.dirname(address(source)) or "."

    def rewritten(match: re.Match[str]) -> str:
        text, link = match.groups()
        if not link or not _WITHIN.match(link):
            return match[0]
        named = target_of(link, source)
        target = in_language(named, language)
        if target not in sources:
            sources.append(target)
        # An anchor is a heading in its own language.
        anchor = "".join(link.partition("#")[1:]) if target == named else ""
        return f"[{text}]({posixpath.relpath(address(target), here)}{anchor})"

    text = _OTHER.sub(r"\1", (ROOT / source).read_text("utf-8"))
    return _LINK.sub(rewritten, text)


def navigation(language: str) -> list[object]:
    """The first page, the page of all documents with its first links, then its tables under their headings."""
    source = f"docs/{language}/README.md"
    intro, *sections = re.split(r"^## ", _OTHER.sub("", (ROOT / source).read_text("utf-8")), flags=re.MULTILINE)

    def entries(text: str) -> list[object]:
        found: dict[str, object] = {}
        for title, link in links(text):
            target = target_of(link, source)
            found[address(target)] = {title: commands} if address(target) in commands else address(target)
        return list(found.values())

    files = sorted(ROOT.glob(f"docs/{language}/commands/*.md"), key=lambda path: (path.stem != "README", path))
    commands = [address(str(path.relative_to(ROOT))) for path in files]
    titled = [section.split("\n", 1) for section in sections]
    return ["index.md", address(source), *entries(intro), *({title: entries(text)} for title, text in titled)]


def listed(nav: list[object]) -> list[str]:
    """The pages of a navigation, in order."""
    return [page for item in nav for page in (listed(*item.values()) if isinstance(item, dict) else [str(item)])]


def stage(language: str, folder: Path) -> list[str]:
    """Write all that the tool needs for one language into `folder`; the addresses of its pages."""
    sources = [HOMES[language], *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"docs/{language}/**/*.md"))]
    for source in sources:  # which grows
        target = folder / "pages" / address(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            target.write_text(page(source, language, sources), "utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
    shutil.copytree(HERE / "assets", folder / "pages" / "assets")
    shutil.copytree(HERE / "overrides", folder / "overrides")
    config = tomllib.loads((HERE / "zensical.toml").read_text("utf-8"))
    config["theme"]["language"] = language
    config |= {"docs_dir": "pages", "site_dir": "site", "nav": navigation(language)}
    # JSON is YAML.
    (folder / "mkdocs.yml").write_text(json.dumps(config, ensure_ascii=False, indent=1), "utf-8")
    return [address(source) for source in sources if source.endswith(".md")]


def llms(*, built: bool = False) -> str:
    """docs/llms.txt, or that of the built site: a summary, and the tables of docs/en/README.md (llmstxt.org)."""
    source = "docs/en/README.md"
    _, _, summary, _, more, *_ = (ROOT / "README.md").read_text("utf-8").split("\n\n")
    intro, *sections = re.split(r"^## ", _OTHER.sub("", (ROOT / source).read_text("utf-8")), flags=re.MULTILINE)
    lines = ["# atlctl", "", f"> {summary}", "", more.replace("\n", " "), "", "## First steps", ""]

    def entry(name: str, link: str) -> str:
        target = target_of(link, source)
        path = f"en/{address(target).removesuffix('.md')}.html" if built else posixpath.relpath(target, "docs")
        return f"- [{name}]({path})"

    lines += [entry(*found) for found in links(intro)]
    for title, text in (section.split("\n", 1) for section in sections):
        rows = re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE)
        lines += ["", f"## {title}", "", *(f"{entry(*found)}: {row[1]}" for row in rows for found in links(row[0]))]
    return "\n".join(lines) + "\n"


def build(tool: str, folder: Path) -> None:
    """The whole site in `folder`, and nothing if any link, anchor or page is wrong."""
    work = folder.with_name(folder.name + ".new")
    shutil.rmtree(work, ignore_errors=True)
    for language in HOMES:
        pages = stage(language, work / "stage" / language)
        if lost := set(pages) ^ set(listed(navigation(language))):
            raise SystemExit(f"error: docs/{language}/README.md and the pages do not agree: {', '.join(sorted(lost))}")
        subprocess.run([tool, "build", "--strict", "-f", str(work / "stage" / language / "mkdocs.yml")], check=True)
        (work / "stage" / language / "site").rename(work / language)
    shutil.rmtree(work / "stage")
    shutil.copyfile(HERE / "start.html", work / "index.html")
    (work / "llms.txt").write_text(llms(built=True), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["--llms"]:
        (ROOT / "docs" / "llms.txt").write_text(llms(), "utf-8")
    else:
        build(str(Path(sys.executable).with_name("zensical")), Path(sys.argv[1]))
