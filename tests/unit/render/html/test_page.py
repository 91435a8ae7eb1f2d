from __future__ import annotations

import base64
import hashlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli.catalogue.report_en import TEXTS
from atlctl.render.html.model import Excerpt, Fact, Heat, Lane, Mark, Page, Smoke, Table, Timeline
from atlctl.render.html.page import render
from atlctl.render.sanitize import clean
from tests.support.markup import read


def page(words: str, *, rows: int = 3) -> Page:
    """One of everything, and `words` wherever the job has the say."""
    table = Table(["a", "b"], [[words, words]] * rows, frozenset((1,)), frozenset((0,)), words, 2, words)
    mark = Mark("root", 1.0, words, 2.0)
    heat = Heat("t", "u", [words, words], [["", "1"], ["2", ""]], [[None, 0.5], [None, None]], words, [[words] * 2] * 2)
    return Page(
        "en",
        TEXTS,
        words,
        [Fact("job", [words])],
        [("root cause: ", "strong"), (words, "culprit")],
        "bad",
        [Fact(words, [words, words], frozenset((1,)), "strong")],
        [Excerpt(words, words), *[Excerpt(words, "", 3, frozenset((4,)), [words, words])] * 5],
        [Fact("by", [words])],
        remarks=[words],
        timeline=Timeline(1.0, words, 0.0, 2.0, (0.0, 2.0), [Lane(words, 0.0, 2.0, [mark], words, True)], [words]),
        cascade=table,
        earlier=table,
        workers=table,
        everyone=table,
        states=table,
        events=table,
        smoke=Smoke(words, "bad", [Fact(words, [words])], table, table, [heat]),
        environment=table,
        machines=table,
        missing=[words],
        files=table,
    )


@settings(max_examples=60, deadline=None)
@given(st.text(st.one_of(st.characters(), st.sampled_from("<>&\"'/=\x00\x1b\r\n\u202e\u2028]]>--!")), max_size=40))
def test_no_hostile_text_breaks_out_of_any_place(words):
    found = read(render(page(words)))
    assert found.problems == []
    assert clean(words) in found.text


def test_well_known_attacks_stay_text():
    for attack in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</style><script>1</script>",
        "</title><svg onload=1>",
        "]]><!--",
        "javascript:alert(1)",
        "&lt;b&gt;",
        "\x1b]8;;http://x\x07link",
    ):
        found = read(render(page(attack)))
        assert found.problems == []
        assert clean(attack) in found.text


def test_it_stands_alone():
    made = render(page("x"))
    style = re.search("<style>(.*?)</style>", made, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    (policy,) = [
        value for tag, name, value in read(made).attributes if (tag, name) == ("meta", "content") and "src" in value
    ]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "http:" not in made
    assert "https:" not in made
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "prefers-color-scheme:dark" in style[1]


def test_parts_that_are_not_there_leave_no_heading():
    bare = Page("zh-CN", TEXTS, "t", [], [("no failure", "strong")], "good", [], [], [])
    found = read(render(bare))
    assert found.problems == []
    assert found.headings == ["t", "How this report was made"]
    assert "no failure" in found.text
    assert ("html", "lang", "zh-CN") in found.attributes


def test_tables_have_heads_and_what_is_folded_is_there():
    found = read(render(page("x", rows=9)))
    assert ("th", "scope", "col") in found.attributes
    assert ("th", "scope", "row") in found.attributes
    assert not [value for tag, name, value in found.attributes if name == "href" and value == "#verdict"]


def test_low_cells_of_a_map_are_told_without_colour():
    text = read(render(page("x"))).text
    assert "1 !" in text
    assert "x" in text
