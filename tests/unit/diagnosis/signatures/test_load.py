"""Signatures of users' own files: what is accepted, what is filled in, and how mistakes are told."""

from __future__ import annotations

import os

import pytest

from atlctl.diagnosis.signatures.load import builtin, load
from atlctl.diagnosis.signatures.match import Matcher
from atlctl.diagnosis.signatures.model import Role, Scope, Text, Where
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
    assert found.role is Role.ROOT
    assert found.literals == ("license server ",)
    assert found.meaning == Text("The license server did not answer", "The license server did not answer")
    assert found.advice.zh == "Ask the owner of the license server"
    assert (found.scope, found.where, found.hardware) == (Scope.RANK, Where.ANYWHERE, False)


def test_all_keys_are_read(written):
    (found,) = load(written(ALL_KEYS))
    assert found.literals == ("quota of project ",)
    assert (found.meaning.zh, found.advice.zh) == ("项目配额已用完", "申请更多")
    assert (found.scope, found.where, found.hardware) == (Scope.WORKER, Where.UNHANDLED, True)


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
        ("[[signature]\n", ["no valid TOML", "line 1"]),
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
