"""Signatures from users' files, priority, start positions of patterns, and the prefilter."""

from __future__ import annotations

import os

import pytest

from atlctl.diagnosis.signatures import FaultScope, LineRole, Matcher, Signature, Text, Where, builtin, load
from atlctl.jobs.errors import UsageError

GOOD = """\
[[signature]]
id = "license_server"
category = "license"
role = "root"
pattern = 'license server \\S{1,200} (?:is down|refused us)'
meaning_en = "The license server did not answer"
advice_en = "Ask the owner of the license server"
"""

ALL_KEYS = """\
[[signature]]
id = "own_disk"
category = "disk_full"
role = "ambiguous"
pattern = 'quota of project \\w{1,40} is used up'
literals = ["quota of project "]
meaning_en = "The project's quota is used up"
meaning_zh = "项目配额已用完"
advice_en = "Ask for more"
advice_zh = "申请更多"
scope = "worker"
hardware = true
where = "unhandled"
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "own.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_what_is_left_out_is_filled_in(written):
    (found,) = load(written(GOOD))
    assert found.id == "license_server"
    assert found.role is LineRole.ROOT
    assert found.literals == ("license server ",)
    assert found.meaning == Text("The license server did not answer", "The license server did not answer")
    assert found.advice.zh == "Ask the owner of the license server"
    assert (found.scope, found.where, found.hardware) == (FaultScope.RANK, Where.ANYWHERE, False)


def test_all_keys_are_read(written):
    (found,) = load(written(ALL_KEYS))
    assert found.literals == ("quota of project ",)
    assert (found.meaning.zh, found.advice.zh) == ("项目配额已用完", "申请更多")
    assert (found.scope, found.where, found.hardware) == (FaultScope.WORKER, Where.UNHANDLED, True)


def test_advice_and_hardware_of_a_known_category(written):
    text = GOOD.replace('"license"', '"gpu_hardware"').replace(
        'advice_en = "Ask the owner of the license server"\n', ""
    )
    (found,) = load(written(text))
    assert found.advice == builtin().categories["gpu_hardware"].advice
    assert found.hardware


def test_own_signatures_in_front_win(written):
    own = load(written(GOOD + ALL_KEYS))
    assert [signature.id for signature in own] == ["license_server", "own_disk"]
    matcher = Matcher([*own, *builtin().signatures])
    found = matcher.match("ValueError: license server lic-1 refused us")
    assert found is not None
    assert found.signature.id == "license_server"


def test_an_empty_file_has_none(written):
    assert load(written("# later\n")) == ()


def change(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (change('id = "license_server"', 'id = "License Server"'), ["entry number 1", "id: 'License Server'"]),
        (change('id = "license_server"\n', ""), ["entry number 1", "id is missing"]),
        (change('id = "license_server"', "id = 7"), ["entry number 1", "id must be a text"]),
        (change('"license"', '"li-cense"'), ["entry license_server", "category: 'li-cense'"]),
        (change('"root"', '"cause"'), ["entry license_server", "role: 'cause'"]),
        (change('role = "root"\n', ""), ["entry license_server", "role is missing"]),
        (change('meaning_en = "The license server did not answer"', 'meaning_en = " "'), ["meaning_en must be"]),
        (
            change('advice_en = "Ask the owner of the license server"\n', ""),
            ["entry license_server", "advice_en is missing"],
        ),
        (change("advice_en", "advise_en"), ["entry license_server", "unknown key advise_en"]),
        (GOOD + 'scope = "node"\n', ["scope: 'node'"]),
        (GOOD + 'where = "start"\n', ["where: 'start'"]),
        (GOOD + 'hardware = "yes"\n', ["hardware must be true or false"]),
        (GOOD + 'literals = "license"\n', ["literals must be a list"]),
        (GOOD + 'literals = ["lic"]\n', ["literals: each needs at least 4 bytes"]),
        (GOOD + 'literals = ["is down"]\n', ["literals: the pattern matches lines that contain none"]),
        (GOOD + "literals = []\n", ["literals: the pattern matches lines that contain none"]),
        (change("\\S{1,200} (?:is down|refused us)", "(.*)*"), ["entry license_server", "pattern: only a single"]),
        (
            change("license server \\S{1,200} (?:is down|refused us)", "(oops"),
            ["entry license_server", "pattern: missing )"],
        ),
        (change("license server \\S{1,200} (?:is down|refused us)", "\\d{1,9} x"), ["no plain text of 4 bytes"]),
        (change("license server \\S{1,200} (?:is down|refused us)", "x" * 2_001), ["pattern must be a text"]),
        (GOOD + GOOD, ["entry license_server", "id: used twice"]),
        ('signature = "x"\n', ["must hold [[signature]] entries"]),
        ("signature = [1]\n", ["must hold [[signature]] entries"]),
        ("[[category]]\nid = 'x'\n", ["must hold [[signature]] entries"]),
        ("[[signature]\n", ["not valid TOML", "line 1"]),
        ("[[signature]]\n" * 501, ["more than 500 entries"]),
        ("# " + "x" * (1 << 20), ["larger than"]),
    ],
)
def test_mistakes_name_file_entry_and_cure(written, text, says):
    path = written(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    for part in [path, *says]:
        assert part in caught.value.message
    assert caught.value.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="does not exist") as caught:
        load(str(tmp_path / "none.toml"))
    assert "errors.signatures" in str(caught.value.hint)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "own.toml"
    path.write_bytes(b"\xff\xfe[[signature]]")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(str(path))


def test_what_is_no_file_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(UsageError, match="not a regular file"):
            load(str(path))


def test_what_may_not_be_read(tmp_path):
    path = tmp_path / "own.toml"
    path.symlink_to(path)
    with pytest.raises(UsageError, match="cannot read"):
        load(str(path))


def test_builtin_is_read_once():
    assert builtin() is builtin()


def signature(ident: str, pattern: str, *literals: str, where: Where = Where.ANYWHERE) -> Signature:
    text = Text("text", "文本")
    return Signature(ident, "unknown", LineRole.ROOT, pattern, literals or (pattern,), text, text, where=where)


def test_the_first_wins_whatever_stands_first_in_the_line():
    matcher = Matcher([signature("one", "second word"), signature("two", "first word")])
    found = matcher.match("first word, second word")
    assert found is not None
    assert found.signature.id == "one"
    assert matcher.match("a third word") is None


def test_a_literal_alone_is_no_match():
    assert Matcher([signature("one", r"exit code \d", "exit code ")]).match("exit code unknown") is None


def test_the_next_one_is_tried_where_a_pattern_does_not_fit():
    matcher = Matcher([signature("one", r"lost rank \d", "lost rank"), signature("two", "lost rank")])
    found = matcher.match("lost rank of unknown number")
    assert found is not None
    assert found.signature.id == "two"


def test_groups_that_took_no_part_are_left_out():
    matcher = Matcher([signature("one", r"peer (?P<peer>\w{1,9})(?: port (?P<port>\d{1,5}))?", "peer ")])
    with_port, without = matcher.match("peer abc port 22"), matcher.match("peer abc")
    assert with_port is not None
    assert without is not None
    assert dict(with_port.groups) == {"peer": "abc", "port": "22"}
    assert dict(without.groups) == {"peer": "abc"}


def test_a_second_place_of_a_group_has_its_name():
    found = Matcher([signature("one", r"lost (?:rank (?P<rank>\d)|(?P<rank2>\d) of 8)", "lost ")]).match("lost 3 of 8")
    assert found is not None
    assert dict(found.groups) == {"rank": "3"}


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("OwnError: x", True),
        ("   OwnError: x", True),
        ("my.module.OwnError: x", True),
        ("[rank3]: OwnError: x", True),
        ("[rank3]:   my.OwnError: x", True),
        ("[rank3]: [rank3]: OwnError: x", True),
        ("[1,7]<stderr>: OwnError: x", True),
        ("704.7s\t1461\tOwnError: x", True),
        ("main/0 OwnError: x", True),
        ("错误：OwnError: x", True),
        ("(Actor pid=1, ip=10.0.0.1) OwnError: x", True),
        ("2025-01-01 00:00:00,000 - ERROR - main - OwnError: x", True),
        ("[2025-01-01 00:00:00,000] [ERROR] OwnError: x", True),
        ("stopped after OwnError: x", False),
        ("    raise OwnError: x", False),
        ("    except OwnError: x", False),
        ("NotOwnError: x", False),
        ("2025-01-01 00:00:00,000 - WARNING - main - OwnError: x", False),
        ("[2025-01-01 00:00:00,000] [INFO] OwnError: x", False),
        ("WARNING:root:OwnError: x", False),
        ("INFO OwnError: x", False),
        ("retrying: OwnError: x", False),
        ("OwnError: x, this time not retrying", True),
        ('{"level":"debug"} OwnError: x', False),
        ("x" * 300 + " INFO: OwnError: x", True),
    ],
)
def test_where_an_exception_begins(line, hit):
    matcher = Matcher([signature("one", "OwnError: ", where=Where.EXCEPTION)])
    assert (matcher.match(line) is not None) is hit


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("cp: No space left", True),
        ("ERROR No space left", True),
        ("[rank0]: OSError: No space left", True),
        ("n1:2:3 [0] NCCL WARN No space left", True),
        ("n1:2:3 [0] NCCL INFO No space left", False),
        ("INFO No space left", False),
        ("<warning> No space left", False),
        ("No space left. INFO: see above", True),
        ("No space left, will retry", False),
        ("No space left (ignored)", False),
        ("    raise OSError('No space left')", False),
        ("INFORMATION: No space left", True),
    ],
)
def test_lines_of_failures_that_were_dealt_with(line, hit):
    matcher = Matcher([signature("one", "No space left", where=Where.UNHANDLED)])
    assert (matcher.match(line) is not None) is hit
    assert Matcher([signature("one", "No space left")]).match(line) is not None


def test_the_prefilter_knows_both_encodings_of_chinese_logs():
    matcher = Matcher([signature("one", "训练失败"), signature("two", "license server")])
    assert matcher.literals() == {"训练失败".encode(), "训练失败".encode("gb18030"), b"license server"}


@pytest.mark.parametrize("pattern", ["失败", "训练失败", "abcd", "abcde"])
def test_a_literal_is_found_wherever_it_stands(pattern: str):
    matcher = Matcher([signature("one", pattern), signature("two", "absent words")])
    for line in (pattern, f"x {pattern}", f"{pattern} x", "y" * 3000 + pattern):
        assert matcher.match(line) is not None
    assert matcher.match(pattern[:-1]) is None


def test_the_prefilter_leaves_out_what_a_shorter_literal_finds():
    matcher = Matcher([signature("one", "disk full"), signature("two", "disk"), signature("three", "no disk at all")])
    assert matcher.literals() == {b"disk"}


def test_only_the_head_of_a_line_is_looked_at():
    matcher = Matcher([signature("one", "needle")])
    assert matcher.match("x" * 16_378 + "needle") is not None
    assert matcher.match("x" * 16_379 + "needle") is None


@pytest.mark.parametrize("line", ["", "\0\0", "\ud800 ValueError: x", "�" * 50, "\x1b[31mValueError: x", "\r"])
def test_odd_text_raises_nothing(line):
    Matcher(builtin().signatures).match(line)
