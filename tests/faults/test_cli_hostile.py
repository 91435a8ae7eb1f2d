"""Untrusted text in names, outputs and error files: no effect on a terminal, and complete in JSON."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.local import Registry, objects, registry
from tests.support.cli import Result
from tests.unit.diagnosis.samples import block, entry

#: CSI, OSC 0, 8 and 52, DCS, C1, CR, bidi, line separators, markup, a forged line.
NASTY = (
    "a\x1b[2J\x1b[31m\x1b]0;t\x07\x1b]8;;http://x\x1b\\\x1b]52;c;eA==\x07\x1bP1$r\x1b\\\x9b31m\x85\rover\b\x7f"
    "\u202egnp\u2066\u2028\u2029\u200b[bold]m[/bold]:smile:\nworker-3: forged\n中"
)
#: An unterminated OSC.
OPEN = "x\x1b]0;never closed"
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """evil: an entry of another machine, written by hand, with only untrusted texts. two: two live workers."""
    with registry() as own:
        own.start("two", 2)
        own.home.joinpath("nasty").write_text(NASTY + "\n" + OPEN)
        place = {"host": NASTY, "boot_id": NASTY, "pid_namespace": NASTY}
        folder = own.folder("evil")
        folder.joinpath("workers").mkdir(parents=True, mode=0o700)
        record = {
            "name": NASTY,
            "uid": NASTY,
            "created": time.time(),
            "argv": [NASTY],
            "master_port": 29500,
            "workers": [{"name": NASTY, "env": {}}, {"name": OPEN, "env": {}}],
            "supervisor": {"pid": 1, "start": 1, **place},
        }
        folder.joinpath("job.json").write_text(json.dumps(record))
        yield own


def assert_harmless(run: Result, tty: bool) -> None:
    for stream in (run.stdout, run.stderr):
        text = stream.decode()
        if tty:
            text = _COLOUR.sub("", text).replace("\r\n", "\n")
        assert not _BAD.search(text), ascii(text)
        assert "\n" + "worker-3: forged" not in text


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("jobs", "-o", "wide"),
        ("jobs", "-o", "name"),
        ("ps", "evil"),
        ("ps", "evil", "-o", "wide"),
        ("ps", "evil", "-o", "name"),
        ("logs", "evil"),
        ("errors", "evil"),
        ("exec", "-j", "evil", "--all", "true"),
        ("exec", "-j", "evil", "true"),
        ("stop", "evil", "--yes"),
        ("stop", "evil", "--dry-run"),
        ("local", "rm", "evil", "--yes"),
        ("doctor", "-j", "evil"),
        ("doctor", "-j", NASTY),
        ("report", "evil"),
        ("report", NASTY),
        ("report", "--from", NASTY),
        ("report", "two", "--out", f"/{NASTY}/x"),
        ("stacks", "evil"),
        ("top", "evil", "--once"),
        ("events", NASTY),
        ("cp", "-j", "two", "--all", f":/{NASTY}", "here"),
        ("cp", "-j", "two", f"{NASTY}:x", "here"),
        ("doctor", "--hostfile", NASTY),
        ("ps", NASTY),
        (NASTY,),
        ("ps", f"--{NASTY}"),
        ("exec", "-j", "two", "-w", NASTY, "true"),
        ("exec", "-j", "two", "-w", "0", NASTY),
        ("exec", "-j", "two", "--all", "--timeout", NASTY, "true"),
        ("logs", "two", "--grep", f"({NASTY}"),
        ("local", "run", "-w", "1", "--name", NASTY, "true"),
        ("exec", "-j", "two", "ls", "--all", NASTY),
        ("exec", "-j", "two", "--all", "--output-dir", f"/{NASTY}/x", "true"),
        ("--debug", "-vv", "ps", "evil"),
    ],
    ids=lambda words: ascii(" ".join(words))[1:40],
)
def test_no_command_lets_hostile_text_act(jobs: Registry, words: tuple[str, ...], tty: bool) -> None:
    run = jobs.cli(*words, tty=tty)
    assert_harmless(run, tty)
    assert b"Traceback" not in run.stderr
    assert b"internal error" not in run.stdout + run.stderr


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_variables_are_harmless_in_what_doctor_tells(jobs: Registry, tty: bool) -> None:
    names = ("TERM", "LANG", "LC_MESSAGES", "SHELL", "SSH_AUTH_SOCK", "COLUMNS")
    env = {**dict.fromkeys(names, NASTY), "LC_ALL": None, "XDG_DATA_HOME": f"/{NASTY}"}
    run = jobs.cli("doctor", "--backend", "local", env=env, tty=tty)
    assert_harmless(run, tty)
    assert b"^[]0;t^G" in run.stdout
    found = json.loads(jobs.cli("doctor", "--backend", "local", "-o", "json", env=env).stdout)["data"]
    assert found["machine"]["locale"]["value"] == found["machine"]["terminal"]["term"] == NASTY


@pytest.mark.parametrize("words", [("jobs",), ("ps", "evil")])
@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_json_and_yaml_are_lossless_and_harmless(jobs: Registry, words: tuple[str, ...], tty: bool) -> None:
    run = jobs.cli(*words, "-o", "json", tty=tty)
    assert_harmless(run, tty)
    data = json.loads(run.stdout)["data"]
    found = data["jobs"][0] if words == ("jobs",) else data["job"]
    assert (found["name"], found["uid"]) == ("evil", NASTY), "a job's name is that of its folder"
    assert found["reason"] == f"runs on {NASTY}"
    if words == ("ps", "evil"):
        assert [worker["name"] for worker in data["workers"]] == [NASTY, OPEN]
    run = jobs.cli(*words, "-o", "yaml", tty=tty)
    assert_harmless(run, tty)
    assert yaml.safe_load(run.stdout)["data"] == data


# Output of commands and logs


def test_output_on_a_terminal_is_harmless_and_coloured_lines_are_reset(jobs: Registry) -> None:
    run = jobs.exec("two", "--all", "--", "cat", f"{jobs.home}/nasty", tty=True)
    assert_harmless(run, tty=True)
    text = run.stdout.decode().replace("\r\n", "\n")
    assert "a^[[2J\x1b[31m^[]0;t^G" in text
    assert "[bold]m[/bold]:smile:\x1b[0m\n" in text
    assert _COLOUR.sub("", text).count(": worker-3: forged\n") == 2


def test_output_in_gather_form_is_harmless_too(jobs: Registry) -> None:
    run = jobs.exec("two", "--all", "--gather", "--", "cat", f"{jobs.home}/nasty", tty=True)
    text = _COLOUR.sub("", run.stdout.decode()).replace("\r\n", "\n")
    assert not _BAD.search(text), ascii(text)


def test_output_on_a_pipe_is_exact_and_a_forged_prefix_stands_behind_a_true_one(jobs: Registry) -> None:
    run = jobs.exec("two", "--all", "--", "cat", f"{jobs.home}/nasty")
    lines = run.stdout.split(b"\n")
    assert {line.partition(b": ")[0] for line in lines} == {b"worker-0", b"worker-1"}
    assert sum(line.endswith(b": worker-3: forged") for line in lines) == 2


def test_logs_of_hostile_output(jobs: Registry) -> None:
    jobs.start("talker", 2, "cat", f"{jobs.home}/nasty")
    jobs.until("talker", "Succeeded")
    assert_harmless(jobs.cli("logs", "talker", tty=True), tty=True)
    found = [item for item in objects(jobs.cli("logs", "talker", "-o", "json").stdout) if item["type"] == "output"]
    for worker in ("worker-0", "worker-1"):
        assert "".join(item["data"] for item in found if item["worker"] == worker) == f"{NASTY}\n{OPEN}"


def test_a_foreground_run_of_hostile_output(jobs: Registry) -> None:
    run = jobs.cli("local", "run", "-w", "2", "--", "cat", f"{jobs.home}/nasty", tty=True)
    assert_harmless(run, tty=True)
    assert "a^[[2J" in run.stdout.decode()


def test_a_character_that_is_split_over_reads_is_shown_whole(jobs: Registry) -> None:
    script = r"printf '\344'; sleep 0.2; printf '\270'; sleep 0.2; printf '\255\n\033'; sleep 0.2; printf '[2J\n'"
    for selection in ("0", "0-1"):
        run = jobs.exec("two", "-w", selection, "--", "sh", "-c", script, tty=True)
        assert "中\r\n" in run.stdout.decode()
        assert "^[[2J" in run.stdout.decode()


GBK = "训练失败".encode("gbk") + b"\x00 nul\n"


def test_gbk_and_nul_are_exact_on_a_pipe_visible_on_a_terminal_and_lossless_in_json(jobs: Registry) -> None:
    jobs.home.joinpath("gbk").write_bytes(GBK)
    words = ("-w", "0", "--", "cat", f"{jobs.home}/gbk")
    assert jobs.exec("two", *words).stdout == GBK
    shown = jobs.exec("two", *words, tty=True).stdout.decode()
    assert shown.endswith("^@ nul\r\n")
    assert "\\x" in shown
    line = objects(jobs.exec("two", "-o", "json", *words).stdout)[0]
    assert base64.b64decode(line["data_b64"]) == GBK
    assert "data" not in line


# Error files and summaries

ONE_LINE = NASTY.replace("\n", " ")
FRAME = f'  File "/x/{ONE_LINE}", line 3, in {ONE_LINE}'
STACK = f"Traceback (most recent call last):\n{FRAME}\n    go()\nValueError: {ONE_LINE}\n"
EXTRA = {"py_callstack": STACK, "timestamp": "1763660699"}
RECORD = {"message": {"message": f"ValueError: {NASTY}", "extraInfo": EXTRA}}


@pytest.fixture(scope="module")
def failed(jobs: Registry) -> str:
    """A job with a failed trainer whose texts, error file and file names are untrusted."""
    jobs.home.joinpath("error.json").write_text(json.dumps(RECORD))
    summary = block(entry(text=ONE_LINE, file=f"{jobs.home}/error.json"), title=ONE_LINE)
    jobs.home.joinpath("summary").write_text("\n".join(summary) + "\n")
    jobs.start("broken", 2, "sh", "-c", f"cat {jobs.home}/summary; exit 1")
    jobs.until("broken", "Failed")
    return "broken"


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_errors_shows_hostile_exceptions_harmlessly(jobs: Registry, failed: str, tty: bool) -> None:
    run = jobs.cli("errors", failed, tty=tty)
    assert_harmless(run, tty)
    assert b"ValueError: a^[[2J" in run.stdout
    assert run.code == 0


def test_errors_is_lossless_in_json(jobs: Registry, failed: str) -> None:
    run = jobs.cli("errors", failed, "-o", "json")
    assert_harmless(run, tty=False)
    message = json.loads(run.stdout)["data"]["root_causes"][0]["message"]
    assert message.startswith("ValueError: a\x1b[2J\x1b[31m\x1b]0;t\x07")


CONTENTS = [b"", b"{", b"[]", b'{"message": 3}', b"\xff" * 99, b"[" * 100_000, b"x" * (5 << 20)]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: f"{len(content)} bytes")
def test_an_error_file_of_any_content_breaks_nothing(jobs: Registry, failed: str, content: bytes) -> None:
    jobs.home.joinpath("error.json").write_bytes(content)
    run = jobs.cli("errors", failed)
    assert run.code == 0
    assert b"worker-0, rank 0" in run.stdout
    assert b"Traceback" not in run.stderr
    jobs.home.joinpath("error.json").write_text(json.dumps(RECORD))


def test_an_error_file_that_is_a_link_or_a_pipe_is_not_read(jobs: Registry, failed: str) -> None:
    path = jobs.home / "error.json"
    path.unlink()
    jobs.home.joinpath("canary").write_text(json.dumps({"message": "CanaryError: read through a link"}))
    path.symlink_to(jobs.home / "canary")
    assert b"Canary" not in jobs.cli("errors", failed, "-o", "json").stdout
    path.unlink()
    os.mkfifo(path)
    assert jobs.cli("errors", failed, timeout=10).code == 0
    path.unlink()
    path.write_text(json.dumps(RECORD))


# Completion


def test_completion_offers_no_name_that_a_shell_could_run(jobs: Registry) -> None:
    for name in ("$(touch x)", "`touch x`", "a b", "a;b", "a'b", 'a"b', "a\\b", "-rf", "\x1b[2J"):
        folder = jobs.folder(name)
        folder.mkdir()
        folder.joinpath("job.json").write_text("{}")
    run = jobs.cli("--complete", "bash", "2", "atlctl", "ps", "")
    names = run.stdout.decode().splitlines()[1:]
    assert "two" in names
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)
    for name in ("$(touch x)", "`touch x`", "a b", "a;b", "a'b", 'a"b', "a\\b", "-rf", "\x1b[2J"):
        jobs.folder(name).joinpath("job.json").unlink()
        jobs.folder(name).rmdir()


def test_odd_folders_in_the_registry_are_told_harmlessly_and_the_rest_is_listed(jobs: Registry) -> None:
    folder = jobs.folder("od\x1b[2Jd")
    folder.mkdir()
    folder.joinpath("job.json").write_text("{}")
    for tty in (False, True):
        run = jobs.cli("jobs", tty=tty)
        assert_harmless(run, tty)
        assert b"two" in run.stdout
        assert run.code != 0
    folder.joinpath("job.json").unlink()
    folder.rmdir()
