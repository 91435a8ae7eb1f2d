import pytest

from atlctl.render.sanitize import OutputSanitizer, clean, clean_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "^[[31mred"),
        ("a\rb\nc\td", "a^Mb^Jc^Id"),
        ("\x7f\x9b\x85", r"^?\x9b\x85"),
        ("abc\u202edef\u2066", r"abc\u202edef\u2066"),
        ("\u2028\u2029\ufeff\u200b", r"\u2028\u2029\ufeff\u200b"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("\U000e0100\U000e01ef\u3164\u115f\u034f\u2800", r"\U000e0100\U000e01ef\u3164\u115f\u034f\u2800"),
        ("训练 é 👨\u200d👩", "训练 é 👨\u200d👩"),
        ("❤\ufe0f e\u0301 한국 ⠋⣿", "❤\ufe0f e\u0301 한국 ⠋⣿"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_clean(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_clean_lines_keeps_layout() -> None:
    assert clean_lines("a\tb\r\nc\x1b") == "a\tb^M\nc^["


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\r\nb\r", b"a\nb^M"),
        (b"\x1b[31mred\nplain", b"\x1b[31mred\x1b[0m\nplain"),
        (b"\x1b[31mred\x1b[m\n", b"\x1b[31mred\x1b[m\n"),
        (b"\x1b[38;5;0mdark", b"\x1b[38;5;0mdark\x1b[0m"),
        (b"\x1b[2J\x1b[?25l", b"^[[2J^[[?25l"),
        (b"\x1b[8mhidden\x1b[0m", b"^[[8mhidden\x1b[0m"),
        (b"\x1b[1;08;31mhidden", b"^[[1;08;31mhidden"),
        (b"\x1b[8;0mshown\x1b[38;5;8mgrey\x1b[28m", b"\x1b[8;0mshown\x1b[38;5;8mgrey\x1b[28m\x1b[0m"),
        (b"\x1b[30;40mhidden", b"^[[30;40mhidden"),
        (b"\x1b[30m\x1b[1m\x1b[40mhidden", b"\x1b[30m\x1b[1m^[[40mhidden\x1b[0m"),
        (b"\x1b[97;107mhidden", b"^[[97;107mhidden"),
        (b"\x1b[38;5;16;40mhidden", b"^[[38;5;16;40mhidden"),
        (b"\x1b[48;2;1;2;3m\x1b[38;5;232mhidden", b"\x1b[48;2;1;2;3m^[[38;5;232mhidden\x1b[0m"),
        (b"\x1b[38:2::9:9:9;48:2:9:9:9mhidden", b"^[[38:2::9:9:9;48:2:9:9:9mhidden"),
        (b"\x1b[38;5mcut", b"^[[38;5mcut"),
        (b"\x1b[30;47mshown\x1b[0;40mtoo", b"\x1b[30;47mshown\x1b[0;40mtoo\x1b[0m"),
        (b"\x1b[30mone\n\x1b[40mtwo", b"\x1b[30mone\x1b[0m\n\x1b[40mtwo\x1b[0m"),
        (b"\x1b]52;c;aGk=\x07", b"^[]52;c;aGk=^G"),
        (b"\x9b31m\xc2\x9b31m", rb"\x9b31m\x9b31m"),
        (b"\x1b[" + b"1" * 65 + b"m", b"^[[" + b"1" * 65 + b"m"),
        (b"\0\x08", b"^@^H"),
    ],
)
def test_output(data: bytes, shown: bytes) -> None:
    sanitizer = OutputSanitizer()
    assert sanitizer.feed(data) + sanitizer.finish() == shown


def test_without_colour_sequences_are_dropped() -> None:
    sanitizer = OutputSanitizer(color=False)
    assert sanitizer.feed(b"\x1b[1;31mred\x1b[0m\n\x1b[K") + sanitizer.finish() == b"red\n^[[K"


def test_an_open_sequence_holds_no_memory() -> None:
    sanitizer = OutputSanitizer()
    fed = shown = 0
    for chunk in (b"\x1b]0;", b"\x1b[", *[b"1" * 1000] * 50):
        fed += len(chunk)
        shown += len(sanitizer.feed(chunk))
        assert fed - shown <= 67
    assert sanitizer.finish() == b""


def test_harmless_chunks_are_not_copied() -> None:
    chunk = b"step 1 loss 0.5\n" * 10
    assert OutputSanitizer().feed(chunk) is chunk
