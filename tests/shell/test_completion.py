"""Completion in real shells on a real terminal: it completes, and it runs nothing."""

from __future__ import annotations

import os

import pytest

from tests.shell.shells import HOSTILE, SHELLS, until
from tests.support.needs import needs


@pytest.mark.parametrize("shell", SHELLS)
def test_words_are_completed(shell, open_shell, state):
    opened = open_shell(shell)
    for typed, line in [
        ("atlctl com\tba\t", "completion|bash"),
        ("atlctl stop tr\t", "stop|train-7"),
        ("atlctl --job tr\tps --fai\t", "--job|train-7|ps|--failed"),
        ("atlctl ps --job=tr\t", "ps|--job=train-7"),
        ("atlctl shell -j zz-9 wo\t", "shell|-j|zz-9|worker-0"),
        ("atlctl exec -j zz-9 -w wo\t--al\t", "exec|-j|zz-9|-w|worker-0|--all"),
        ("atlctl local r\t", "local|r"),
    ]:
        opened.type(typed)
        assert opened.line() == line


@pytest.mark.parametrize("shell", SHELLS[1:])
def test_words_have_descriptions(shell, open_shell, state):
    opened = open_shell(shell)
    for typed, text in [
        ("c\t", "Copy files"),
        ("ps --\t\t", "workers in state Failed"),
        ("stop zz\t\t", "job of this machine"),
    ]:
        opened.type(f"atlctl {typed}")
        opened.expect(text)
        opened.abandon_line()
    opened.type("atlctl ps --fai\t")
    assert opened.line() == "ps|--failed"


@needs("zsh")
def test_a_description_that_is_wider_than_the_screen_is_cut(open_shell, isolated):
    (isolated / "answer").write_text(f":words\nfirst\t{'长' * 150}\nsecond\tshort\n")
    opened = open_shell("zsh", f"#!/bin/sh\ncat '{isolated}/answer'\n")
    opened.type("atlctl \t\t")
    shown = opened.expect("second")
    assert 90 < shown.count("长") < 100
    assert "长..." in shown.replace(" ", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_files_stand_where_a_path_does(shell, open_shell, state):
    opened = open_shell(shell)
    (opened.work / "saved-logs").mkdir()
    (opened.work / "saved-file").write_text("")
    opened.type("atlctl exec --all cat saved-f\t")
    assert opened.line() == "exec|--all|cat|saved-file"
    opened.type("atlctl exec --output-dir saved-\t")
    assert opened.line().rstrip("/") == "exec|--output-dir|saved-logs"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_the_shell_finds_by_itself(shell, open_shell, state):
    opened = open_shell(shell, installed=True)
    for _ in range(2):  # the first time loads it
        opened.type("atlctl stop tr\t")
        assert opened.line() == "stop|train-7"


@pytest.mark.parametrize("shell", SHELLS)
def test_atlctl_by_its_path_and_by_an_alias(shell, open_shell, state):
    opened = open_shell(shell, before="alias atl=atlctl")
    folder = opened.work.parent / "bin"
    (opened.work / "here").symlink_to(folder)
    opened.type(f"{folder}/atlctl stop tr\t")
    assert opened.line() == "stop|train-7"
    opened.type("./here/atlctl ps --job=tr\t")
    assert opened.line() == "ps|--job=train-7"
    if shell == "bash":  # the others know by themselves what an alias stands for
        opened.type("complete -F _atlctl atl\r")
    opened.type("atl stop tr\t")
    assert opened.line() == "stop|train-7"


@pytest.mark.parametrize("shell", SHELLS)
def test_words_with_blanks_and_quotes(shell, open_shell, state, isolated):
    hosts = isolated / "two hosts"
    hosts.write_text("gpu[07-08]\n")
    opened = open_shell(shell)
    for typed, line in [
        (f"atlctl --hostfile '{hosts}' exec -w gpu07,gp\ttrue", f"--hostfile|{hosts}|exec|-w|gpu07,gpu08|true"),
        (
            f"atlctl --hostfile {str(hosts).replace(' ', chr(92) + ' ')} shell gpu08\t",
            f"--hostfile|{hosts}|shell|gpu08",
        ),
        (f'atlctl --hostfile="{hosts}" shell gpu08\t', f"--hostfile={hosts}|shell|gpu08"),
        ('atlctl stop "tr\t', "stop|train-7"),
        ("atlctl stop 'tr\t", "stop|train-7"),
    ]:
        opened.type(typed)
        assert opened.line() == line


@pytest.mark.parametrize("shell", SHELLS)
def test_workers_and_files_of_a_copy(shell, open_shell, state):
    opened = open_shell(shell)
    (opened.work / "saved-logs").mkdir()
    (opened.work / "saved-logs" / "a").write_text("")
    (opened.work / "$(touch F)").write_text("")
    for typed, line in [
        ("atlctl cp -j zz-9 wo\t/tmp/x .", "cp|-j|zz-9|worker-0:/tmp/x|."),
        ("atlctl cp -j zz-9 saved-\ta\tworker\t/tmp", "cp|-j|zz-9|saved-logs/a|worker-0:/tmp"),
    ]:
        opened.type(typed)
        assert opened.line() == line
    opened.type("atlctl cp -j zz-9 \t\t")
    opened.expect("worker-0:")
    opened.abandon_line()
    assert {path.name for path in opened.work.iterdir()} == {"saved-logs", "$(touch F)"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_of_exec(shell, open_shell, state, isolated, monkeypatch):
    bin_ = isolated / "more"
    bin_.mkdir()
    (bin_ / "trainer-of-mine").write_text("#!/bin/sh\n")
    (bin_ / "trainer-of-mine").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    opened = open_shell(shell)
    (opened.work / "saved-file").write_text("")
    for typed, line in [
        ("exec --all trainer-of-m\tsaved-f\t", "exec|--all|trainer-of-mine|saved-file"),
        ("exec --all -- trainer-of-m\tsaved-f\t", "exec|--all|--|trainer-of-mine|saved-file"),
        ("local run -w 2 ./../more/trainer\t", "local|run|-w|2|./../more/trainer-of-mine"),
    ]:
        opened.type(f"atlctl {typed}")
        assert opened.line() == line


def test_a_bash_without_newer_builtins(open_shell, state):
    """What bash 3.2 does not have, as far as a newer bash can be told to be one."""
    opened = open_shell("bash", before="enable -n compopt mapfile readarray")
    (opened.work / "saved logs").mkdir()
    (opened.work / "saved-file").write_text("")
    for typed, line in [
        ("atlctl stop tr\t", "stop|train-7"),
        ("atlctl ps --job=tr\t", "ps|--job=train-7"),
        ("atlctl errors --from saved-f\t", "errors|--from|saved-file"),
        ("atlctl exec --output-dir saved\\ \t --all", "exec|--output-dir|saved logs|--all"),
        ("atlctl cp -j zz-9 wo\t", "cp|-j|zz-9|worker-0:"),
    ]:
        opened.type(typed)
        assert opened.line() == line


@pytest.mark.parametrize("shell", [*SHELLS, "old bash"])
def test_files_with_hostile_names_stay_words(shell, open_shell, state):
    old = "enable -n compopt mapfile readarray" if shell == "old bash" else ":"
    opened = open_shell(shell.removeprefix("old "), before=old)
    for name in ("zq$(touch F)", "vv;touch F"):
        (opened.work / name).write_text("")
        (opened.work / name).chmod(0o755)
    for typed, line in [
        ("exec --all ./zq\t", "exec|--all|./zq$(touch F)"),
        ("exec --all ls zq\t", "exec|--all|ls|zq$(touch F)"),
        ("errors --from zq\t", "errors|--from|zq$(touch F)"),
        ("cp -j zz-9 zq\t/x", "cp|-j|zz-9|zq$(touch F)|/x"),
        ("cp -j zz-9 vv\t/x", "cp|-j|zz-9|vv;touch F|/x"),
    ]:
        opened.type(f"atlctl {typed}")
        assert opened.line().replace("F/", "F|/") == line
    assert not (opened.work / "F").exists()


# zsh expands words on TAB by itself, behind whatever command they stand.
@pytest.mark.parametrize("shell", ["bash", "old bash", pytest.param("fish", marks=needs("fish"))])
def test_what_was_typed_is_not_run_before_its_line_is(shell, open_shell, state):
    old = "enable -n compopt mapfile readarray" if shell == "old bash" else ":"
    opened = open_shell(shell.removeprefix("old "), before=old)
    for place in ("exec --all ", "exec --all ls ", "errors --from ", "exec --output-dir ", "cp ", "stop ", "-n "):
        for typed in (
            "$(touch F)",
            "`touch F`/",
            '"$(touch F)/',
            "./$(touch F)/a",
            "(touch F)",
            "x=$(touch F)",
            "~$(touch F)",
        ):
            opened.type(f"atlctl {place}{typed}\t\t")
            opened.abandon_line()
            assert list(opened.work.iterdir()) == [], (place, typed)


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_names_of_jobs_and_workers_run_nothing(shell, open_shell, state):
    for name in HOSTILE:
        safe = name.replace("/", "_")
        (state / safe / "workers" / safe).mkdir(parents=True)
        (state / safe / "job.json").write_text("{}")
        (state / "zz-8" / "workers" / safe).mkdir(parents=True)
    opened = open_shell(shell)
    for typed, last in [
        ("atlctl stop \t\t", "zz-9"),
        ("atlctl ps -j \t\t", "zz-9"),
        ("atlctl shell -j zz-8 \t\t", "worker-0"),
    ]:
        opened.type(typed)
        shown = opened.expect(last)
        assert "touch" not in shown.replace(typed.strip(), "")
        opened.abandon_line()
    for typed in ("x", "x$", "x\\", "x'", "-x"):
        opened.type(f"atlctl stop {typed}\t\t")
        opened.abandon_line()
    assert list(opened.work.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_evaluate_no_candidate(shell, open_shell, isolated):
    """Even a program that answers with hostile candidates gets none of them run."""
    answer, asked = isolated / "answer", isolated / "asked"
    opened = open_shell(shell, f"#!/bin/sh\ncat '{answer}'; echo >> '{asked}'\n")
    for number, hostile in enumerate(HOSTILE):
        answer.write_text(f":words\n{hostile}\nzz-first\t%F{{1}}{hostile}\nzz-last-{number}\n")
        opened.type("atlctl stop \t\t")
        opened.expect(f"zz-last-{number}")
        opened.abandon_line()
        answer.write_text(f":words\n{hostile}\n")
        asked.unlink()
        opened.type("atlctl stop \t\t")
        until(asked.exists)
        opened.abandon_line()
        assert list(opened.work.iterdir()) == [], hostile


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_that_fails_is_silent(shell, open_shell, isolated):
    asked = isolated / "asked"
    opened = open_shell(shell, f"#!/bin/sh\necho oops >&2; touch '{asked}'; exit 1\n")
    opened.type("atlctl stop \t\t")
    until(asked.exists)
    opened.type("\x01\x0becho ali''ve\r")
    assert "oops" not in opened.expect("alive")
