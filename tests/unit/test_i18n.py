"""Messages: English for programs, the user's language for people."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from atlctl import i18n
from atlctl.i18n import (
    COMMA,
    Message,
    about,
    as_data,
    edited,
    from_data,
    general,
    given,
    joined,
    language,
    plural,
    specific,
    translated,
)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN"}, "en"),
        ({"LC_ALL": "", "LANG": "ZH"}, "zh"),
    ],
)
def test_language(env: dict[str, str], expected: str) -> None:
    assert language(env) == expected


def test_message_is_its_english_text() -> None:
    message = Message("no answer within {seconds:g} s", seconds=4.0)
    assert message == "no answer within 4 s"
    assert f"{message}" == "no answer within 4 s"
    assert json.dumps({"why": message}) == '{"why": "no answer within 4 s"}'
    assert hash(message) == hash("no answer within 4 s")
    assert type(str(message)) is str


def test_translated_fills_in_the_values() -> None:
    message = Message("no answer within {seconds:g} s: {why}", seconds=4.0, why=Message("not connected"))
    assert translated(message, "zh") == "4 s 内没有应答：未连接上"
    assert translated(message, "en") == message
    assert translated("a worker's own words", "zh") == "a worker's own words"


def test_translated_takes_braces_of_a_worker_as_they_are() -> None:
    message = Message("lost: {why}", why="{seconds} {} {0.__class__} %s")
    assert message == "lost: {seconds} {} {0.__class__} %s"
    assert translated(message, "zh") == "连接断开：{seconds} {} {0.__class__} %s"


def test_edited_messages_stay_messages() -> None:
    why = joined([Message("lost: {why}", why="/made/a"), given("fell off the bus", "掉出总线"), "/made/b"], COMMA)
    message = Message("no answer within {seconds:g} s: {why}", seconds=4.0, why=why)
    changed = edited(message, lambda text: text.replace("/made/", ""))
    assert changed == "no answer within 4 s: lost: a, fell off the bus, b"
    assert translated(changed, "zh") == "4 s 内没有应答：连接断开：a，掉出总线，b"
    many = plural("no log of {n} worker: {names}", "no log of {n} workers: {names}", 2, names="a, b")
    assert translated(edited(many, str.upper), "zh") == translated(many, "zh").replace("a, b", "A, B")


def test_a_message_about_one_host_has_another_for_several() -> None:
    refused = Message("connection refused")
    one = specific(Message("{host}: {why}", host="gpu1:22", why=refused), refused)
    assert (one, general(one)) == ("gpu1:22: connection refused", "connection refused")
    wrapped = joined([Message("lost: {why}", why=one), "a worker's own words"])
    assert translated(general(wrapped), "zh") == "连接断开：连接被拒绝；a worker's own words"
    assert general("a worker's own words") == "a worker's own words"


def test_translated_without_a_catalogue_is_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_FOLDER", "/nonexistent")
    i18n.catalogue.cache_clear()
    try:
        assert translated(Message("not connected"), "zh") == "not connected"
    finally:
        i18n.catalogue.cache_clear()


def test_plural() -> None:
    assert [plural("{n} GPU", "{n} GPUs", n) for n in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [translated(plural("{n} GPU", "{n} GPUs", n), "zh") for n in (1, 2)] == ["1 块 GPU", "2 块 GPU"]


def test_joined() -> None:
    text = joined([Message("not connected"), "OWN"], COMMA)
    assert text == "not connected, OWN"
    assert translated(text, "zh") == "未连接上，OWN"
    assert joined([]) == ""


def test_given() -> None:
    assert given("fell off the bus", "掉出总线") == "fell off the bus"
    assert translated(given("fell off the bus", "掉出总线"), "zh") == "掉出总线"


def test_a_copy_is_the_message() -> None:
    message = Message("not connected")
    assert copy.deepcopy({"why": message})["why"] is message


@pytest.mark.parametrize(
    "message",
    [
        Message("no answer within {seconds:g} s: {why}", seconds=4.0, why=Message("not connected")),
        plural("{n} GPU", "{n} GPUs", 3),
        joined([Message("not connected"), "OWN"], COMMA),
        given("fell off the bus", "掉出总线"),
    ],
)
def test_from_data(message: Message) -> None:
    data = json.loads(json.dumps(as_data(message)))
    assert translated(from_data(data, str(message)), "zh") == translated(message, "zh") != message


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        {},
        {"template": "{x:>999999999}", "values": {"x": "1"}},
        {"template": "{x.__class__}", "values": {"x": "1"}},
        {"template": "lost: {why}", "values": {}},
        {"template": "lost: {why}", "values": 3},
        {"template": ["lost: {why}"], "values": {"why": "x"}},
        {"parts": [{"parts": []}], "by": None},
        {"en": "x"},
    ],
)
def test_from_data_of_a_hostile_file_is_the_english_text(data: object) -> None:
    assert type(from_data(data, "the text")) is str
    assert from_data(data, "the text") == "the text"


def test_about_is_looked_up_by_its_context() -> None:
    assert about("nowhere", "not connected") == "not connected"
    assert translated(about("nowhere", "not connected"), "zh") == "not connected"


def test_a_reader_of_english_loads_no_gettext() -> None:
    code = (
        "import sys; from atlctl.i18n import Message, translated; translated(Message('x'), 'en'); "
        "sys.exit('gettext' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
