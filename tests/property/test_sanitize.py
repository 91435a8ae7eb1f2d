"""Hard cases 1 and 2: what is sanitised holds nothing that a terminal obeys, whatever is fed and however it is cut."""

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.render.sanitize import OutputSanitizer, clean, clean_lines

NASTY = [
    b"\x1b", b"\x1b[31m", b"\x1b[0m", b"\x1b[m", b"\x1b[;0m", b"\x1b[38;5;0m", b"\x1b[", b"31", b"m", b"\x1b[2J",
    b"\x1b]0;title\x07", b"\x1b]52;c;aGk=\x1b\\", b"\x1b]8;;http://x", b"\x1bPq", b"\x9b31m", b"\xc2\x9b31m",
    b"\r", b"\n", b"\r\n", b"\t", b"\0", b"\x08", b"\x7f", b"\xe2\x80\xae", b"\xe2\x80", b"\xae", b"\xed\xa0\x80",
    b"\x1b[8m", b"\x1b[30m", b"\x1b[40m", b"\x1b[48;5;16m", b"\x1b[38;2;0;0;0m", "\U000e0100\u3164\u2800".encode(),
    b"\xf0\x9f\x98\x80", "训练".encode(), "训练".encode("gbk"), "é".encode(), b"a", b"^[", b"\\x9b", b"1;" * 40,
]  # fmt: skip
streams = st.lists(st.one_of(st.sampled_from(NASTY), st.binary(max_size=4)), max_size=14).map(b"".join)
SGR = re.compile("\x1b\\[[0-9;:]*m")
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Letters and symbols that show nothing.
BLANK = "\u115f\u1160\u2800\u3164\uffa0\U000e0001"
many = settings(deadline=None, max_examples=300)


def run(data: bytes, color: bool = True, cuts: tuple[int, ...] = ()) -> bytes:
    sanitizer = OutputSanitizer(color)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [sanitizer.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    return b"".join(parts) + sanitizer.finish()


@many
@given(st.text(st.characters()))
def test_a_clean_field_is_one_harmless_line_and_stays_it(text: str) -> None:
    once = clean(text)
    assert not OBEYED.search(once)
    assert not set("\n\t\r") & set(once)
    assert clean(once) == once
    once.encode()


@many
@given(streams)
def test_clean_lines_agrees_with_clean(data: bytes) -> None:
    text = data.decode("utf-8", "backslashreplace")
    lines = clean_lines(text)
    assert clean(lines) == clean(text)
    assert lines.count("\n") == text.count("\n")
    assert clean_lines(lines) == lines


@many
@given(streams, st.lists(st.integers(0, 400), max_size=8).map(tuple), st.booleans())
def test_chunk_boundaries_do_not_matter(data: bytes, cuts: tuple[int, ...], color: bool) -> None:
    assert run(data, color, cuts) == run(data, color)
    assert run(data, color, tuple(range(len(data)))) == run(data, color)


@many
@given(streams, st.booleans())
def test_output_is_idempotent_and_holds_only_colours(data: bytes, color: bool) -> None:
    shown = run(data, color)
    assert run(shown, color) == shown
    rest = SGR.sub("", shown.decode()) if color else shown.decode()
    assert not OBEYED.search(rest)


@many
@given(streams)
def test_no_colour_is_on_where_a_line_ends(data: bytes) -> None:
    for line in run(data).decode().split("\n"):
        found = SGR.findall(line)
        assert not found or re.fullmatch("\x1b\\[[0;]*m", found[-1])


@many
@given(st.text(st.characters(categories=["Lo", "Ll", "Lu", "Nd", "So", "Po"], exclude_characters=BLANK)))
def test_letters_of_every_script_stay(text: str) -> None:
    assert clean(text) == text
    assert run(text.encode()) == text.encode()
