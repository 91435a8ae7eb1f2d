from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli import app, runtime
from atlctl.jobs.errors import UsageError
from atlctl.jobs.selection import Selection
from tests.unit.cli import sample


def test_values_reach_the_command():
    seen = sample.parse("ps", "train", "-w", "0,2-5", "-w", "worker-9", "-x", "3", "--failed", "-o", "json")
    assert seen["job"] == "train"
    assert seen["output"] == "json"
    assert seen["selection"] == Selection(workers=("0,2-5", "worker-9"), failed=True, exclude=("3",))


def test_an_alias_is_the_same_command():
    assert sample.parse("workers", "train")["job"] == "train"
    assert runtime.context().command == "ps"


def test_exec_options_end_at_the_first_word():
    seen = sample.parse("exec", "--all", "nvidia-smi", "-L", "--all", "-o", "json")
    assert seen["cmd"] == ["nvidia-smi", "-L", "--all", "-o", "json"]
    assert seen["output"] == "table"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--", "ls", "-l"], ["ls", "-l"]),
        (["--", "--", "ls"], ["--", "ls"]),
        (["--", "-x"], ["-x"]),
        (["sh", "-c", "x", "--", "y"], ["sh", "-c", "x", "--", "y"]),
    ],
)
def test_exec_removes_one_double_dash(words, expected):
    assert sample.parse("exec", "--all", *words)["cmd"] == expected


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(), min_size=1))
def test_exec_hands_on_any_words(words):
    assert sample.parse("exec", "--all", "--", *words)["cmd"] == words


def test_words_that_are_not_utf8_pass():
    word = b"\xff\xfe".decode(errors="surrogateescape")
    assert sample.parse("exec", word)["cmd"] == [word]


def test_durations_and_numbers_are_converted():
    seen = sample.parse("exec", "--timeout", "1.5m", "--parallel", "8", "x")
    assert seen["timeout"] == 90.0
    assert seen["parallel"] == 8
    assert sample.parse("exec", "x")["timeout"] is None


@pytest.mark.parametrize("before", [True, False])
def test_shared_options_before_or_after_the_name(before):
    shared = ["-j", "train", "-o", "json", "-q", "-vv", "--debug", "--color", "never", "--backend", "local"]
    sample.parse(*([*shared, "ps"] if before else ["ps", *shared]))
    ctx = runtime.context()
    assert (ctx.quiet, ctx.verbose, ctx.debug, ctx.color, ctx.backend) == (True, 2, True, "never", "local")
    assert ctx.output == "json"
    assert sample.seen["named"] == "train"


def test_shared_options_at_three_places_unite():
    sample.parse("-v", "local", "-v", "-j", "a", "run", "-q", "-j", "a", "cmd")
    ctx = runtime.context()
    assert (ctx.verbose, ctx.quiet) == (2, True)
    assert sample.seen["named"] == "a"


@pytest.mark.parametrize(
    "argv",
    [
        ("-j", "a", "ps", "-j", "b"),
        ("-o", "json", "ps", "-o", "table"),
        ("--color", "always", "ps", "--color", "never"),
        ("local", "--color", "always", "run", "--color", "never", "x"),
    ],
)
def test_two_different_values_are_refused(argv):
    with pytest.raises(UsageError, match="different values"):
        sample.parse(*argv)


def test_the_same_value_twice_is_fine():
    assert sample.parse("-j", "a", "ps", "-j", "a")["named"] == "a"


def test_shared_options_that_do_not_apply_are_refused():
    with pytest.raises(UsageError, match="'--job' does not apply to 'atlctl completion'"):
        sample.parse("-j", "a", "completion", "x")
    with pytest.raises(UsageError, match="invalid value 'yaml' for '--output'"):
        sample.parse("-o", "yaml", "ps")


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (("pss",), "no such command 'atlctl pss'", "did you mean 'atlctl ps'?"),
        (("worker",), "no such command 'atlctl worker'", "did you mean 'atlctl workers'?"),
        (("local", "runn"), "no such command 'atlctl local runn'", "did you mean 'atlctl local run'?"),
        (("zzz",), "no such command 'atlctl zzz'", "see: atlctl -h"),
        (("ps", "--worker", "1"), "no such option '--worker' for 'atlctl ps'", "did you mean '--workers'?"),
        (("ps", "-Z"), "no such option '-Z' for 'atlctl ps'", None),
        (("--debgu", "ps"), "no such option '--debgu' for 'atlctl'", "did you mean '--debug'?"),
        (("ps", "-w"), "option '-w' requires an argument", "see: atlctl ps -h"),
        (("ps", "a", "b"), "too many arguments (b)", "see: atlctl ps -h"),
        (("completion",), "'SHELL' is missing", "usage: atlctl completion [OPTIONS] SHELL"),
        (("exec", "--parallel", "0", "x"), "invalid value '0' for '--parallel': at least 1", None),
        (("exec", "--parallel", "x", "x"), "invalid value 'x' for '--parallel': a whole number is needed", None),
        (("exec", "--timeout", "1y", "x"), "invalid value '1y' for '--timeout': a duration is needed", None),
    ],
)
def test_wrong_command_lines(argv, message, hint):
    with pytest.raises(UsageError) as caught:
        sample.parse(*argv)
    assert caught.value.message.startswith(message)
    if hint is not None:
        assert caught.value.hint == hint


def test_a_return_value_is_the_exit_code(capfd):
    assert sample.run("ps") == 7
    assert sample.run("exec", "x") == 0
    assert capfd.readouterr() == ("", "")


def test_usage_errors_are_told_in_two_lines(capfd):
    assert sample.run("pss") == 2
    assert capfd.readouterr() == ("", "error: no such command 'atlctl pss'\nhint: did you mean 'atlctl ps'?\n")


@pytest.mark.parametrize(
    "argv",
    [
        ("-o", "json", "pss"),
        ("pss", "-o", "json"),
        ("pss", "--all", "-ojson", "train"),
        ("local", "frob", "--output=json"),
        ("completion", "-ojson"),
        ("--output=json", "completion"),
        ("completion", "--bad", "--output", "json"),
    ],
)
def test_usage_errors_speak_json_where_it_is_asked_for(argv, capfd):
    assert sample.run(*argv) == 2
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["apiVersion"] == "atlctl/v1"
    assert document["status"] == "error"
    assert document["errors"][0]["kind"] == "usage"
    assert document["errors"][0]["message"] in err
    assert document["command"] == next((name for name in ("completion", "local") if name in argv), "")


def test_words_behind_two_hyphens_are_no_options_of_a_mistyped_command(capfd):
    assert sample.run("exce", "--", "x", "-o", "json") == 2
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("kill", "train-7"), "atlctl stop train-7"),
        (("kill",), "atlctl stop JOB"),
        (("kill", "-n", "ml", "a b"), "atlctl stop -n ml 'a b'"),
        (("delete", "train-7"), "atlctl stop train-7 --delete"),
        (("delete",), "atlctl stop JOB --delete"),
        (("-q", "version"), "atlctl --version"),
    ],
)
def test_commands_of_other_tools_are_shown_what_to_type_and_nothing_runs(argv, hint, capfd):
    assert app.run(argv) == 2
    word = next(word for word in argv if word[0] != "-")
    assert capfd.readouterr() == ("", f"error: no such command 'atlctl {word}'\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("argv", "same"),
    [(("pods", "-h"), ("ps", "-h")), (("list", "-h"), ("jobs", "-h")), (("local", "ls", "-h"), ("jobs", "-h"))],
)
def test_names_of_other_tools_are_aliases(argv, same, capfd):
    assert app.run(same) == 0
    expected = capfd.readouterr()
    assert app.run(argv) == 0
    assert capfd.readouterr() == expected


def test_the_list_of_local_jobs_asks_no_cluster(capfd):
    assert app.run(["local", "ls", "-o", "json"]) == 0
    assert (runtime.context().command, runtime.context().backend) == ("jobs", "local")
    assert json.loads(capfd.readouterr().out)["data"] == {"jobs": []}


def test_typers_own_completion_is_off(monkeypatch, capfd):
    monkeypatch.setenv("_ATLCTL_COMPLETE", "complete_zsh")
    assert sample.run("ps") == 7
    assert capfd.readouterr().out == ""
