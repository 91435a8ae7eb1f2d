"""Host lists in all formats of launchers, and rejected ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.hosts.hostfile import Host, parse, pick
from atlctl.jobs.errors import UsageError


def hosts(text: str) -> list[Host]:
    return list(parse(text, "hosts").hosts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", [Host("a"), Host("b")]),
        ("# all\n\n  a  # the first\r\n", [Host("a")]),
        ("\ufeffa\n", [Host("a")]),
        ("worker-0 slots=8\nworker-1 slots=4 max_slots=8\n", [Host("worker-0", slots=8), Host("worker-1", slots=4)]),
        ("a:8\nb:8\n", [Host("a", slots=8), Host("b", slots=8)]),
        ("a:64\nb:65\n", [Host("a", slots=64), Host("b", port=65)]),
        ("a:22 slots=8\nb slots=8\n", [Host("a", port=22, slots=8), Host("b", slots=8)]),
        ("ml@gpu7:2222\n", [Host("gpu7", "ml", 2222)]),
        ("ml@gpu7:22\n[fd00::7]:22\n", [Host("gpu7", "ml", 22), Host("fd00::7", port=22)]),
        ("gpu[08-10,20]\n", [Host(f"gpu{n}") for n in ("08", "09", "10", "20")]),
        ("gpu[1-2].lan slots=2\n", [Host("gpu1.lan", slots=2), Host("gpu2.lan", slots=2)]),
        ("10.0.0.[1-2]:2222\n", [Host("10.0.0.1", port=2222), Host("10.0.0.2", port=2222)]),
        ("fd00::7\n[fd00::8]:2222\n[fd00::9]\n", [Host("fd00::7"), Host("fd00::8", port=2222), Host("fd00::9")]),
        ("a slots=2\na slots=3\n", [Host("a", slots=5)]),
    ],
)
def test_what_is_understood(text: str, expected: list[Host]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("-oProxyCommand=id\n", "not a host name"),
        ("a;reboot\n", "not a host name"),
        ("$(id)\n", "not a host name"),
        ("a\x1b]0;x\n", "not a host name"),
        ("-l@a\n", "user name"),
        ("ro ot@a\n", "cannot parse"),
        ("a b\n", "cannot parse"),
        ("a slots=many\n", "not a number"),
        ("a:0x16\n", "a number is expected"),
        ("a:99999\n", "not a valid port"),
        ("a slots=1\nb:0\n", "not a valid port"),
        ("gpu[1-\n", "not a range"),
        ("gpu[5-2]\n", "not a range"),
        ("gpu[01-100]\n", "same number of digits"),
        ("gpu[0-99999999]\n", "more than"),
        ("gpu[1-2]x[1-2]\n", "not a range"),
        ("a\nb@a\n", "two users or ports"),
        ("[zz::1]:22\n", "not an address"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="hosts") as caught:
        hosts(text)
    assert words in caught.value.message
    assert caught.value.message.isprintable()


def test_the_line_is_named() -> None:
    with pytest.raises(UsageError, match="line 3"):
        hosts("a\n# b\n-c\n")


def test_says_how_a_number_was_read() -> None:
    assert parse("a:8\nb:2222\n", "hosts").remarks == (
        "hosts: a:8 is read as a host and its slots",
        "hosts: b:2222 is read as a host and its port",
    )
    assert parse("a:2222\n", "hosts").remarks == ()
    assert "more than once" in parse("a\na\n", "hosts").remarks[0]


FILE = (Host("w0", slots=4), Host("w1", slots=4), Host("w2", slots=2))


def test_deepspeeds_selection() -> None:
    assert pick(FILE) == FILE
    assert pick(FILE, include="w1") == (FILE[1],)
    assert pick(FILE, include="w2@w0:0,2") == (FILE[2], Host("w0", slots=2, devices=(0, 2)))
    assert pick(FILE, exclude="w0@w1:1") == (Host("w1", slots=3, devices=(0, 2, 3)), FILE[2])
    assert pick(FILE, exclude="w1:0,1,2,3") == (FILE[0], FILE[2])


@pytest.mark.parametrize(
    ("include", "exclude"), [("w9", ""), ("w0:4", ""), ("w0:a", ""), ("w0", "w1"), ("", "w0@w1@w2"), ("w0:", "")]
)
def test_selections_that_are_refused(include: str, exclude: str) -> None:
    with pytest.raises(UsageError):
        pick(FILE, include, exclude)


@given(st.text(max_size=200))
def test_no_text_gives_a_name_that_a_shell_or_a_parser_would_understand(text: str) -> None:
    try:
        found = hosts(text)
    except UsageError:
        return
    for host in found:
        assert set(host.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:%")
        assert not host.name.startswith("-")
        assert host.user is None or not host.user.startswith("-")
