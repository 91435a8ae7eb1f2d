"""Elements of HTML and SVG. A text becomes markup in one place only, and is made harmless there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from atlctl.render.sanitize import clean, clean_lines

#: Elements without an end.
_VOID = frozenset(("meta", "br"))
_NAME = re.compile(r"[a-z][a-zA-Z0-9]{0,30}")
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,30}")
#: Attributes that could lead away from the page, load something or run something are never made.
_ALLOWED = frozenset(
    (
        *("aria-hidden", "aria-label", "charset", "class", "colspan", "content", "cx", "cy", "d", "height", "href"),
        *("http-equiv", "id", "lang", "name", "open", "overflow", "r", "role", "rx", "scope", "tabindex"),
        *("text-anchor", "title", "transform", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2"),
    )
)


class Html(str):
    """Markup: the only text that is not escaped."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def text(value: str) -> Html:
    """One line of any origin: control characters and what reorders text show as escapes."""
    return Html(escape(clean(value)))


def lines(value: str) -> Html:
    """The same for text whose newlines and tabs stay."""
    return Html(escape(clean_lines(value)))


def element(tag: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """`<tag ...>children</tag>`. Children that are no `Html` are text.

    Attributes: `class_` is class, `_` is `-`, None is left out; links lead to places of the page. Raises ValueError for
    any other attribute than those that a report needs.
    """
    if not _NAME.fullmatch(tag):
        raise ValueError(f"no element: {tag!r}")
    made = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if tag in _VOID:
        return Html(f"<{tag}{made}>")
    return Html(f"<{tag}{made}>{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Html:
    """One behind the other."""
    return Html("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    return text(child) if isinstance(child, str) else joined(child)


def _attribute(key: str, value: str | float) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or name not in _ALLOWED:
        raise ValueError(f"no attribute of a report: {name!r}")
    shown = value if isinstance(value, str) else f"{value:g}"
    if name == "href" and not shown.startswith("#"):
        raise ValueError(f"a link that leads away from the page: {shown!r}")
    return f' {name}="{escape(clean(shown))}"'
