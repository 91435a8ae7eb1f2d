from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.jobs.errors import AtlctlError
from atlctl.render.lines import LinePrefixer, Piece, Spill
from atlctl.render.sanitize import OutputSanitizer


def text(pieces: Sequence[Piece]) -> bytes:
    out = bytearray()
    for piece in pieces:
        if isinstance(piece, Spill):
            while chunk := piece.read(1000):
                out += chunk
            piece.close()
        else:
            out += piece
    return bytes(out)


def test_whole_lines_get_the_prefix_and_the_rest_waits() -> None:
    lines = LinePrefixer(b"w: ", 100)
    assert text(lines.feed(b"one\ntw")) == b"w: one\n"
    assert text(lines.feed(b"o")) == b""
    assert text(lines.feed(b"\n\n")) == b"w: two\nw: \n"
    assert text(lines.finish()) == b""


def test_no_newline_is_invented() -> None:
    lines = LinePrefixer(b"w: ", 100)
    assert text(lines.feed(b"end")) == b""
    assert text(lines.finish()) == b"w: end"
    assert text(lines.finish()) == b""


def test_without_prefix_lines_stay_whole() -> None:
    lines = LinePrefixer(b"", 100)
    assert text(lines.feed(b"a\nb\nc")) == b"a\nb\n"
    assert text(lines.feed(b"d\n")) == b"cd\n"


def test_a_long_line_stays_one_line_and_not_in_memory() -> None:
    lines = LinePrefixer(b"w: ", 4096)
    chunk = bytes(range(256)).replace(b"\n", b"") * 200
    for _ in range(200):
        assert text(lines.feed(chunk)) == b""
        assert len(lines._tail) == 0
    assert text(lines.feed(b"end\nnext\n")) == b"w: " + chunk * 200 + b"end\nw: next\n"


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_long_line_at_the_end(newline: bytes) -> None:
    lines = LinePrefixer(b"w: ", 10)
    assert text([*lines.feed(b"x" * 50 + newline), *lines.finish()]) == b"w: " + b"x" * 50 + newline


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=12) | st.just(b"\n") | st.just("训练".encode("gbk") + b"\0\n"), max_size=12))
def test_payload_is_byte_exact(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    lines = LinePrefixer(b"w: ", 8)
    got = b"".join([text(lines.feed(chunk)) for chunk in chunks]) + text(lines.finish())
    expected = b""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        expected += b"w: " + data[start:end]
        start = end
    assert got == expected


def test_colours_end_with_their_line_on_a_terminal() -> None:
    lines = LinePrefixer(b"w: ", 100, OutputSanitizer())
    got = text(lines.feed(b"\x1b[31mred\nworker-3: forged\r")) + text(lines.finish())
    assert got == b"w: \x1b[31mred\x1b[0m\nw: worker-3: forged^M"


def test_a_full_disk_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    lines = LinePrefixer(b"", 10)
    with pytest.raises(AtlctlError, match=r"cannot hold output in .*: No space left on device"):
        lines.feed(b"x" * 20)
    lines.close()
