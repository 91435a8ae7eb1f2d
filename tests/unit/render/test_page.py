from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli.report.page import words as texts
from atlctl.render.page import (
    Chip,
    Excerpt,
    Excerpts,
    Fact,
    Facts,
    Heading,
    HeatTable,
    Html,
    Lane,
    LaneMark,
    Linked,
    Numbered,
    PageTable,
    Part,
    ReportPage,
    Sentences,
    Timeline,
    draw,
    element,
    joined,
    lines,
    render,
    text,
    ticks_of,
)
from atlctl.render.sanitize import clean
from tests.support.markup import read

TEXTS = texts("en")


def page(words: str, *, rows: int = 3) -> ReportPage:
    """A page with every element, and `words` in all texts from the job."""
    table = PageTable(["a", "b"], [[words, words]] * rows, frozenset((1,)), frozenset((0,)), words, 2, words)
    mark = LaneMark("root", 1.0, words, 2.0)
    heat = HeatTable(
        "t", "u", [words, words], [["", "1"], ["2", ""]], [[None, 0.5], [None, None]], words, [[words] * 2] * 2
    )
    shown = [Numbered(3, words), Numbered(4, words, "at")]
    excerpts = [Excerpt(words, words), *[Excerpt(Linked(words, words), "", shown, shown, words)] * 5]
    lanes = [Lane(words, 0.0, 2.0, [mark, LaneMark("waits", 0.0, words, 2.0)], words, True, words)]
    return ReportPage(
        "en",
        TEXTS,
        words,
        [Fact("job", [words])],
        [("root cause: ", "strong"), (words, "culprit")],
        "bad",
        [Fact(words, [words, words], frozenset((1,)), "strong")],
        [Fact("by", [words])],
        [
            ("evidence", [Excerpts(excerpts)]),
            ("timeline", [Heading(words), Timeline(1.0, words, 0.0, 2.0, (0.0, 2.0), lanes, [words])]),
            ("workers", [table, None, table]),
            ("smoke", [Chip(words, "bad"), table, heat]),
            ("environment", [Facts([Fact(words, [words])])]),
            ("missing", [Sentences([words])]),
            ("files", [PageTable(["a"], [[Linked(words, words)]])]),
        ],
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
    nothing: list[tuple[str, Sequence[Part | None]]] = [
        ("evidence", [Excerpts([])]),
        ("workers", [None, PageTable([], [])]),
        ("missing", [Sentences([])]),
    ]
    bare = ReportPage("zh-CN", TEXTS, "t", [], [("no failure", "strong")], "good", [], [], nothing)
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


def timeline(lanes, *, begin=0.0, end=100.0, focus=(90.0, 100.0)):
    return Timeline(95.0, "2026-11-20T17:45:05Z", begin, end, focus, lanes, ["a note"])


LANE = Lane(
    "worker-1",
    0.0,
    99.0,
    (LaneMark("restart", 5.0, "restarted"), LaneMark("root", 95.0, "failed", 96.0)),
    "2 workers",
    True,
)


@pytest.mark.parametrize(
    ("begin", "end", "told"),
    [
        (-1, 5, ["-1 s", "0", "+1 s", "+2 s", "+3 s", "+4 s", "+5 s"]),
        (-0.1, 0.25, ["-0.1 s", "0", "+0.1 s", "+0.2 s"]),
        (0, 7200, ["0", "+20 min", "+40 min", "+60 min", "+80 min", "+100 min", "+120 min"]),
        (-86400 * 3, 0, ["-3 d", "-2 d", "-1 d", "0"]),
    ],
)
def test_ticks(begin, end, told):
    assert [shown for _, shown in ticks_of(begin, end)] == told


def test_ticks_of_any_span_are_few():
    for power in range(-6, 14):
        for factor in (1, 3, 7):
            assert len(ticks_of(-factor * 10**power / 3, factor * 10**power)) <= 13


def test_a_long_run_is_drawn_beside_its_end():
    found = read(draw(timeline([LANE]), TEXTS))
    assert found.problems == []
    assert found.headings == ["Around the failure"]
    assert found.text.count("worker-1") == 2
    assert "The whole run" in found.text
    # Events before the failure are only in the whole run.
    assert (found.text.count("restarted"), found.text.count("failed")) == (1, 2)


def test_a_short_run_is_drawn_once():
    found = read(draw(timeline([LANE], begin=85.0), TEXTS))
    assert found.headings == []
    assert found.text.count("worker-1") == 1


def test_labels_of_the_axis_fit_a_phone():
    """Labels at the ends stay within the axis; of the others, a phone shows every second one, including zero."""
    made = str(draw(timeline([LANE], begin=95.0, end=101.0, focus=(95.0, 101.0)), TEXTS))
    labels = re.findall(r'<text x="[\d.]+%" y="15" text-anchor="(\w+)" class="([\w ]+)">([^<]+)<', made)
    assert [(anchor, "second" in kind, shown) for anchor, kind, shown in labels] == [
        ("start", False, "0"),
        *(("middle", at % 2 == 1, f"+{at} s") for at in range(1, 6)),
        ("end", False, "+6 s"),
    ]


def test_waits_are_bands_with_a_sentence_below():
    lanes = [
        Lane("rank 2", None, None, [LaneMark("absent", 90.0, "rank 2: never", 98.0)], "", True, "never arrived"),
        Lane("rank 0", None, None, [LaneMark("waits", 90.0, "rank 0: all_reduce", 98.0)], said="all_reduce for 8 s"),
    ]
    found = read(draw(timeline(lanes, begin=90.0, end=98.0, focus=(90.0, 98.0)), TEXTS))
    assert found.problems == []
    bands = [value for tag, name, value in found.attributes if (tag, name) == ("rect", "class")]
    assert bands == ["m absent", "m waits"]
    assert ("div", "class", "said") in found.attributes
    assert "never arrived" in found.text
    assert TEXTS["mark last"] not in found.text  # no lane has a log


def test_marks_are_told_by_shape_and_title_and_the_legend_names_those_in_use():
    found = read(draw(timeline([LANE]), TEXTS))
    shapes = {value for tag, name, value in found.attributes if (tag, name) == ("path", "d")}
    assert len(shapes) == 2
    assert TEXTS["mark root"] in found.text
    assert TEXTS["mark victim"] not in found.text
    assert ("svg", "aria-label", "worker-1: restarted; failed") in found.attributes
    assert "a note" in found.text


def test_one_moment_and_lanes_without_times():
    lanes = [Lane("a", None, None, ()), Lane("b", 95.0, 95.0, (LaneMark("root", 95.0, "x"),), culprit=True)]
    found = read(draw(timeline(lanes, begin=95.0, end=95.0, focus=(95.0, 95.0)), TEXTS))
    assert found.problems == []
    places = [
        float(value.rstrip("%")) for _, name, value in found.attributes if name in ("x", "x1", "x2") and "%" in value
    ]
    assert all(0 <= place <= 100 for place in places)


HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("<>&\"'/=`\x00\x1b\u202e\u2028]]>--!")), max_size=60)


@given(HOSTILE, HOSTILE)
def test_no_text_breaks_out(inside, value):
    """A text stays a text, an attribute stays one value, and both are equal to the sanitised input."""
    made = element("div", element("span", inside, title=value), inside, aria_label=value)
    found = read(made)
    assert found.problems == []
    assert found.text == clean(inside) * 2
    assert found.attributes == [("div", "aria-label", clean(value)), ("span", "title", clean(value))]


def test_children():
    assert element("p", "a<b", None, [element("b", "x"), "&"], class_="y") == '<p class="y">a&lt;b<b>x</b>&amp;</p>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert joined(["<", Html("<br>")]) == "&lt;<br>"
    assert (text("a\nb"), lines("a\nb\x1b")) == ("a^Jb", "a\nb^[")
    assert element("svg", width=4.0, height=0.5, open=None) == '<svg width="4" height="0.5"></svg>'


@pytest.mark.parametrize(
    "attributes",
    [
        *({"onclick": "x"}, {"style": "x"}, {"src": "x"}, {"href": "https://x"}, {"href": "javascript:x"}),
        *({"href": "x.log"}, {"href": "/x.log"}, {"href": "./../x.log"}, {"href": ".//x"}, {"href": "./a/.."}),
        *({"href": "./x?y"}, {"href": "./x:y"}, {"href": "./x\\y"}, {"href": "./x\n"}),
    ],
)
def test_attributes_that_load_or_run_something_are_never_made(attributes):
    with pytest.raises(ValueError, match=r"no attribute|leads away"):
        element("a", **attributes)


@pytest.mark.parametrize(
    ("file", "href"),
    [
        ("worker-0.ts.log", "./worker-0.ts.log"),
        ("files/a b/error.json", "./files/a%20b/error.json"),
        ("训练-0.log", "./%E8%AE%AD%E7%BB%83-0.log"),
        ("a%2Fb#c?d.jsonl", "./a%252Fb%23c%3Fd.jsonl"),
        ("javascript:alert(1)//.log", None),
        ("javascript:alert(1).log", "./javascript%3Aalert%281%29.log"),
        *((name, None) for name in ("x.html", "x.svg", "x", "../x.log", "a/../x.log", "/x.log", "a//x.log")),
        *((name, None) for name in ("a\\x.log", "x\x1b.log", "x\u202e.log", "x\udcff.log", "./x.log")),
    ],
)
def test_links_lead_to_files_of_the_folder_that_are_text(file, href):
    made = element("td", Linked("shown<", file))
    assert made == (f'<td><a href="{href}">shown&lt;</a></td>' if href else "<td>shown&lt;</td>")
    assert read(made).problems == []


def test_names_of_elements_are_not_data():
    with pytest.raises(ValueError, match="no element"):
        element("p onclick=x")
