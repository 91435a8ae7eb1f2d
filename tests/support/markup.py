"""Parses a report page like a browser, and lists forbidden content."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

TAGS = frozenset(
    (
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "div"),
        *("span", "p", "h1", "h2", "h3", "a", "b", "i", "small", "code", "pre", "figure"),
        *("figcaption", "dl", "dt", "dd", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th"),
        *("td", "details", "summary", "svg", "g", "rect", "line", "path", "text"),
    )
)
_VOID = ("meta", "br")
#: An anchor of the page, or a file below its folder that a browser does not open as a page.
_LINK = re.compile(r"#[a-z]+|\.(?:/(?!\.\.?/)[\w.~%-]+)+\.(?:log|json|jsonl)", re.ASCII)
#: Characters forbidden in texts: controls, and those that reorder or hide text.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@dataclass
class Read:
    """`texts`: of the page, outside its style; `attributes`: (tag, name, value); `problems`: descriptions."""

    texts: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.read = Read()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.read.problems.append(f"element {tag}")
        for name, value in attrs:
            self.read.attributes.append((tag, name, value or ""))
            if name.startswith("on") or name in ("style", "src", "srcset", "xlink:href", "action", "srcdoc", "data"):
                self.read.problems.append(f"attribute {name}")
            if name == "href" and not _LINK.fullmatch(value or ""):
                self.read.problems.append(f"link to {value}")
            if _HARMFUL.search(value or ""):
                self.read.problems.append(f"harmful value of {name}")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.read.problems.append(f"end of {tag} where it is not open")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            return
        self.read.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.read.headings.append(data)
        if _HARMFUL.search(data):
            self.read.problems.append(f"harmful text {data[:60]!r}")

    def handle_comment(self, data: str) -> None:
        self.read.problems.append("a comment")

    def handle_pi(self, data: str) -> None:
        self.read.problems.append("an instruction")


def read(page: str) -> Read:
    """Never raises: errors are in `problems`."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    parser.read.problems += [f"{tag} is not closed" for tag in parser.open]
    return parser.read
