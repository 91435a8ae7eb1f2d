"""The command line of `exec`: options end at CMD, and mistakes get the corrected line as hint."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.local import IDLE, Registry, problem, registry

ARGS = ("sh", "-c", 'printf "<%s>" "$@"', "_")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("one", 1, *IDLE)
        own.start("two", 2, *IDLE)
        yield own


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("-L",), b"<-L>"),
        (("--all", "-w", "3"), b"<--all><-w><3>"),
        (("--", "--"), b"<--><-->"),
        (("", " ", "a b", "'", '"', "$HOME", "`id`", "\\", "*"), b"<>< ><a b><'><\"><$HOME><`id`><\\><*>"),
        (("new\nline", "\t", "\x1b[31m"), b"<new\nline><\t><\x1b[31m>"),
        (("训练", "é"), "<训练><é>".encode()),
        (("-h", "--version", "--debug", "-o", "json"), b"<-h><--version><--debug><-o><json>"),
    ],
)
@pytest.mark.parametrize("end", [(), ("--",)])
def test_words_of_the_command_reach_it_unchanged(
    jobs: Registry, words: tuple[str, ...], shown: bytes, end: tuple[str, ...]
) -> None:
    assert jobs.exec("one", *end, *ARGS, *words) == (shown, b"", 0)


def test_bytes_that_are_no_utf8_reach_the_command_unchanged(jobs: Registry) -> None:
    word = b"\xff\xfe\xd1\xb5".decode(errors="surrogateescape")
    assert jobs.exec("one", *ARGS, word) == (b"<\xff\xfe\xd1\xb5>", b"", 0)


def test_only_the_first_double_dash_is_the_parsers(jobs: Registry) -> None:
    run = jobs.exec("one", "--", "--", "x")
    assert run.code == 127
    assert b"--: command not found" in run.stderr


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (("exec", "two", "nvidia-smi"), "atlctl exec -j two --all nvidia-smi"),
        (("exec", "two", "--all", "nvidia-smi", "-L"), "atlctl exec -j two --all nvidia-smi -L"),
        (("exec", "-j", "two", "nvidia-smi", "--all"), "atlctl exec -j two --all nvidia-smi"),
        (("exec", "-j", "two", "ls", "-w", "0,1", "/tmp"), "atlctl exec -j two -w 0,1 ls /tmp"),
        (("exec", "-j", "two", "ls", "--workers=0", "a b"), "atlctl exec -j two --workers=0 ls 'a b'"),
    ],
)
def test_a_misplaced_job_or_selection_gets_the_corrected_line(
    jobs: Registry, typed: tuple[str, ...], hint: str
) -> None:
    run = jobs.cli(*typed)
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr)[1] == hint


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (
            ("exec", "--gathr", "ls"),
            "no such option '--gathr' for 'atlctl exec'",
            "did you mean '--gather'?",
        ),
        (("exce", "ls"), "no such command 'atlctl exce'", "did you mean 'atlctl exec'?"),
        (("exec", "-j", "two", "--all"), "no command to run", "atlctl exec --all nvidia-smi"),
        (
            ("exec", "-j", "two", "--all", "--retry-failed"),
            (
                "--retry-failed runs the last command again on the workers on which it failed; it takes neither a "
                "command nor a selection"
            ),
            "atlctl exec --retry-failed",
        ),
        (
            ("exec", "-j", "two", "--all", "--raw", "--gather", "ls"),
            "--raw means live output, not --gather",
            "leave one of them out",
        ),
        (
            ("-j", "one", "exec", "-j", "two", "--all", "ls"),
            "'--job' is given twice with different values: 'one' before the command's name and 'two' after it",
            "give it once",
        ),
    ],
)
def test_a_wrong_line_is_told_in_one_line_with_a_hint(
    jobs: Registry, typed: tuple[str, ...], message: str, hint: str
) -> None:
    run = jobs.cli(*typed)
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr) == (message, hint)


def test_an_unknown_job_names_what_there_is(jobs: Registry) -> None:
    run = jobs.exec("tow", "--all", "ls")
    assert run.code == 3
    assert problem(run.stderr) == ("no job named tow", "did you mean 'two'?")


def test_an_unknown_worker_names_what_there_is(jobs: Registry) -> None:
    run = jobs.exec("two", "-w", "worker-7", "ls")
    assert run.code == 3
    message, hint = problem(run.stderr)
    assert "worker-7" in message
    assert "worker-[0-1]" in message + hint


def test_exec_never_guesses_the_job(jobs: Registry) -> None:
    run = jobs.cli("exec", "--all", "ls")
    assert run.code == 2
    assert problem(run.stderr) == ("no job is named", "name one with -j: one, two; all: atlctl jobs")


def test_shared_options_count_before_and_after_the_commands_name(jobs: Registry) -> None:
    assert jobs.cli("-j", "one", "exec", "echo", "hi") == (b"hi\n", b"", 0)
    assert jobs.cli("-j", "one", "exec", "-j", "one", "echo", "hi") == (b"hi\n", b"", 0)
    run = jobs.cli("-o", "json", "exec", "-j", "nope", "ls")
    assert b'"command": "exec", "status": "error"' in run.stdout
    assert run.code == 3


@pytest.mark.parametrize(
    "typed",
    [("--timeout", "soon"), ("--timeout", "0"), ("--parallel", "0"), ("--batch", "x"), ("--connect-timeout", "-1")],
    ids=" ".join,
)
def test_a_value_that_makes_no_sense_is_named(jobs: Registry, typed: tuple[str, str]) -> None:
    run = jobs.exec("two", "--all", *typed, "ls")
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr)[0].startswith(f"invalid value '{typed[1]}' for '{typed[0]}': ")


def test_a_usage_error_speaks_json_too(jobs: Registry) -> None:
    run = jobs.exec("two", "--all", "-o", "json", "--gather", "ls")
    message = "-o json and --gather are two forms of the same output"
    assert json.loads(run.stdout) == {
        "apiVersion": "atlctl/v1",
        "command": "exec",
        "status": "error",
        "data": None,
        "errors": [{"kind": "usage", "message": message, "hint": "choose one", "exit_code": 2}],
    }
    assert problem(run.stderr) == (message, "choose one")
    assert run.code == 2


@pytest.mark.parametrize("line", ["exec -j two -w 0 ls", "exec -j one ls"])
def test_atlctl_job_is_the_job_where_none_is_named_and_the_argument_wins(jobs: Registry, line: str) -> None:
    run = jobs.cli(*line.split(), env={"ATLCTL_JOB": "gone"})
    assert run.code == 0, run


def test_atlctl_job_that_names_a_job_that_is_gone_is_3_and_says_so(jobs: Registry) -> None:
    run = jobs.cli("exec", "--all", "ls", env={"ATLCTL_JOB": "gone"})
    assert run.code == 3
    assert problem(run.stderr) == ("no job named gone (named by ATLCTL_JOB)", "did you mean 'one'?")
