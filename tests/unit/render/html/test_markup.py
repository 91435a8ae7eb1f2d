from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.render.html.markup import Html, element, joined, lines, text
from atlctl.render.sanitize import clean
from tests.support.markup import read

HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("<>&\"'/=`\x00\x1b\u202e\u2028]]>--!")), max_size=60)


@given(HOSTILE, HOSTILE)
def test_no_text_breaks_out(inside, value):
    """A text is a text of the page, an attribute is one value, and both are what sanitising makes of them."""
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
    "attributes", [{"onclick": "x"}, {"style": "x"}, {"src": "x"}, {"href": "https://x"}, {"href": "javascript:x"}]
)
def test_attributes_that_load_or_run_something_are_never_made(attributes):
    with pytest.raises(ValueError, match=r"no attribute|leads away"):
        element("a", **attributes)


def test_names_of_elements_are_not_data():
    with pytest.raises(ValueError, match="no element"):
        element("p onclick=x")
