from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli.completion import cache, complete
from atlctl.cli.completion.complete import Names, position

HOSTILE = ["$(touch F)", "`touch F`", "a'b", 'a"b', "a\\b", "a b", "a;b", "-rf", "\x1b[2J", "a\nb", "任务", "a$b", "~"]

TABLE = {
    "options": {
        "-j": "JOB",
        "--job": "JOB",
        "--color": "always|never|auto",
        "-q": None,
        "--quiet": None,
        "--backend": "local|kubernetes|ssh",
        "--hostfile": "PATH",
        "-n": "NAMESPACE",
        "--namespace": "NAMESPACE",
        "--context": "CONTEXT",
        "-l": "SELECTOR",
    },
    "commands": {
        "ps": {
            "options": {"--job": "JOB", "-j": "JOB", "-w": "WORKERS", "--workers": "WORKERS", "--all": None},
            "arguments": ["JOB"],
        },
        "exec": {
            "options": {"-j": "JOB", "--all": None, "-w": "WORKERS"},
            "arguments": ["CMD..."],
            "options_first": True,
        },
        "errors": {"options": {"--from": "PATH", "--output-dir": "DIR"}, "arguments": ["JOB"]},
        "shell": {"options": {"-j": "JOB"}, "arguments": ["WORKER"]},
        "completion": {"options": {}, "arguments": ["SHELL"]},
        "cp": {"options": {"-j": "JOB"}, "arguments": ["SRC", "DST"]},
        "local": {"options": {}, "commands": {"rm": {"options": {"--yes": None}, "arguments": ["JOB..."]}}},
        "ssh": {"options": {}, "commands": {"rm": {"options": {}, "arguments": ["JOB..."]}}},
    },
    "aliases": {"workers": "ps"},
}


def candidates(table, before, current):
    here = position(table, before)
    return complete.candidates(here, current, Names(here.path, here.asked))


@pytest.fixture(autouse=True)
def _state(isolated, monkeypatch):
    isolated /= "state"
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated))
    monkeypatch.delenv("ATLCTL_JOB", raising=False)
    for name in ("train-1", "train-2", "eval", *HOSTILE):
        (isolated / "local" / name / "workers" / f"worker-of-{name}").mkdir(parents=True)
        (isolated / "local" / name / "job.json").write_text("{}")
    for index in (0, 1):
        (isolated / "local" / "train-1" / "workers" / f"worker-{index}").mkdir()
    (isolated / "local" / "half-made").mkdir()
    for name in ("gpus", *HOSTILE):
        (isolated / "ssh" / name).mkdir(parents=True)
        workers = [{"name": worker} for worker in ("gpu1", "gpu2", *HOSTILE)]
        (isolated / "ssh" / name / "job.json").write_text(json.dumps({"workers": workers}))


@pytest.mark.parametrize(
    ("before", "current", "expected"),
    [
        ([], "", ["ps", "exec", "errors", "shell", "completion", "cp", "local", "ssh"]),
        ([], "e", ["exec", "errors"]),
        ([], "--col", ["--color"]),
        (["--color"], "a", ["always", "auto"]),
        ([], "--color=n", ["--color=never"]),
        (["ps"], "tr", ["train-1", "train-2"]),
        (["workers"], "ev", ["eval"]),
        (["ps", "-j"], "", ["eval", "train-1", "train-2", "gpus"]),
        (["--backend", "local", "ps", "-j"], "", ["eval", "train-1", "train-2"]),
        (["--backend=ssh", "ps", "-j"], "", ["gpus"]),
        (["ps", "--backend", "kubernetes", "-j"], "", []),
        (["-n", "ml", "ps"], "", []),
        (["ps"], "--job=e", ["--job=eval"]),
        (["ps", "train-1"], "-", ["--all", "--job", "--workers", "-j", "-w"]),
        (["ps", "--"], "-", []),
        (["ps", "train-1", "-w"], "", ["worker-0", "worker-1", "worker-of-train-1"]),
        (["ps", "-w"], "", []),
        (["ps", "-j", "train-1", "-w"], "worker-0,worker-1", ["worker-0,worker-1"]),
        (["-j", "train-1", "ps", "-w"], "worker-1", ["worker-1"]),
        (["-jtrain-1", "exec", "-w"], "worker-1", ["worker-1"]),
        (["--job=train-1", "exec", "--all", "-w"], "worker-1", ["worker-1"]),
        (["shell", "-j", "eval"], "", ["worker-of-eval"]),
        (["completion"], "", ["bash", "zsh", "fish"]),
        (["local"], "", ["rm"]),
        (["local", "rm", "eval"], "train-1", ["train-1"]),
        (["local", "rm"], "g", []),
        (["ssh", "rm"], "", ["gpus"]),
        (["exec", "-j", "gpus", "-w"], "", ["gpu1", "gpu2"]),
        (["exec", "-j", "gpus", "-w"], "gpu1,", ["gpu1,gpu2"]),
        (["exec", "-jgpus", "-w", "gpu1", "-w"], "", ["gpu1", "gpu2"]),
        (["no-such"], "", []),
        (["ps", "-j", "../../etc", "-w"], "", []),
    ],
)
def test_candidates(before, current, expected):
    assert candidates(TABLE, before, current) == ("words", expected)


@pytest.mark.parametrize(
    ("before", "current", "what"),
    [
        (["exec", "--all"], "l", "commands"),
        (["exec", "--all", "--"], "l", "commands"),
        (["exec", "--all", "--", "ls"], "l", "files"),
        (["exec", "--all", "ls", "-l"], "-", "files"),
        (["errors", "--from"], "", "files"),
        (["errors", "--output-dir"], "", "folders"),
        (["errors"], "--from=x", "files"),
    ],
)
def test_where_files_may_stand(before, current, what):
    assert candidates(TABLE, before, current) == (what, [])


def test_a_copy_names_workers_and_files():
    assert candidates(TABLE, ["cp", "-j", "train-1"], "worker-0") == ("files", ["worker-0:"])
    assert candidates(TABLE, ["cp", "-j", "gpus", "./x"], "") == ("files", ["gpu1:", "gpu2:"])
    for behind in ("worker-0:", "worker-0:/lo", "./wo", "worker-0/x:"):
        assert candidates(TABLE, ["cp", "-j", "train-1"], behind) == ("files", [])
    assert candidates(TABLE, ["cp", "-j", "train-1", "a", "b"], "") == ("words", ["-j"])


def test_words_have_descriptions_if_the_shell_asks_for_them(capfd, monkeypatch):
    def asked(shell, *words):
        complete.answer([shell, str(len(words)), "atlctl", *words])
        return capfd.readouterr().out.splitlines()

    assert asked("fish", "sto") == [":words", "stop"]
    assert asked("fish+", "sto") == [":words", "stop\tStop a job: show the plan, ask, save its logs, end it."]
    assert asked("zsh+", "help", "local", "r") == [
        ":words",
        "run\tStart a job on this machine.",
        "rm\tRemove ended jobs on this machine, with their logs.",
    ]
    assert asked("zsh+", "stop", "--dele") == [":words", "--delete\tdelete the job for good, with its pods"]
    assert asked("zsh+", "stop", "train-1") == [":words", "train-1\tjob of this machine"]
    assert asked("zsh+", "ps", "-j", "gp") == [":words", "gpus\tjob on hosts"]
    assert asked("zsh+", "--color", "al") == [":words", "always"]
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert asked("zsh+", "stop", "--dele") == [":words", "--delete\t彻底删除作业及其 pod"]


def test_the_environments_job_is_the_default(monkeypatch):
    monkeypatch.setenv("ATLCTL_JOB", "train-1")
    assert candidates(TABLE, ["shell"], "worker-0") == ("words", ["worker-0"])


def test_the_only_job_is_the_default(isolated, monkeypatch):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated / "one"))
    (isolated / "one" / "local" / "only" / "workers" / "w0").mkdir(parents=True)
    (isolated / "one" / "local" / "only" / "job.json").write_text("{}")
    assert candidates(TABLE, ["shell"], "") == ("words", ["w0"])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text()), st.text())
def test_hostile_names_never_appear_whatever_was_typed(before, current):
    _, found = candidates(TABLE, ["ps", *before], current)
    assert not any(name in candidate for candidate in found for name in HOSTILE if name != "~")


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20))
def test_names_that_are_shown_need_no_quoting(name):
    for safe in cache.safe([name]):
        assert shlex.quote(safe) == safe
        assert safe.isascii()
        assert safe[0].isalnum()


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_quotes_are_taken_off_as_a_shell_does(text):
    double = "".join(f"\\{letter}" if letter in '"\\$`' else letter for letter in text)
    plain = "".join(f"\\{letter}" for letter in text)
    for quoted in (shlex.quote(text), plain, f'"{double}"', f'"{double}'):  # the last one is not closed yet
        assert complete._unquoted(quoted) == text


@pytest.mark.parametrize(
    ("words", "glued", "strip"),
    [
        (["atlctl", "--context", "=", "me", "@", "tes"], ["atlctl", "--context=me@tes"], 13),
        (["atlctl", "ps", '"tr'], ["atlctl", "ps", "tr"], 0),
        (["atlctl", "ps", "--job", "=", "'tr"], ["atlctl", "ps", "--job=tr"], 6),
        (["atlctl", "--kubeconfig", '"/a b"\\ c', "x"], ["atlctl", "--kubeconfig", "/a b c", "x"], 0),
        (["atlctl", "ps", "--job", "=", "tr"], ["atlctl", "ps", "--job=tr"], 6),
        (["atlctl", "ps", "--job", "="], ["atlctl", "ps", "--job="], 6),
        (["atlctl", "ps", "a", ":", "b"], ["atlctl", "ps", "a:b"], 2),
        (["atlctl", "ps", "--job", "=", "tr", "-"], ["atlctl", "ps", "--job=tr", "-"], 0),
        (["atlctl", "ps", ""], ["atlctl", "ps", ""], 0),
        (["atlctl", "ps", "--job=tr"], ["atlctl", "ps", "--job=tr"], 0),
    ],
)
def test_bash_words_are_put_together(words, glued, strip):
    assert complete._glued(words) == (glued, strip)


def ask(*request):
    done = subprocess.run(
        [sys.executable, "-m", "atlctl", "--complete", *request], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_protocol():
    assert ask("bash", "2", "atlctl", "ps", "tr") == [":words", "train-1", "train-2"]
    assert ask("zsh", "2", "atlctl", "ps") == [":words", "eval", "train-1", "train-2", "gpus"]
    assert ask("bash", "4", "atlctl", "ps", "--job", "=", "ev") == [":words", "eval"]
    assert ask("zsh", "2", "atlctl", "ps", "--job=ev") == [":words", "--job=eval"]
    assert ask("fish", "1", "atlctl", "p", "ignored", "words") == [":words", "ps"]


@pytest.mark.parametrize("request_", [(), ("sh", "1", "atlctl", ""), ("bash", "x", "atlctl"), ("bash", "1")])
def test_malformed_requests_are_answered_with_nothing(request_):
    assert ask(*request_) == []


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "ATLCTL_STATE_DIR"])
def test_a_relative_state_folder_gives_no_names(variable, isolated, monkeypatch):
    monkeypatch.chdir(isolated)
    monkeypatch.delenv("ATLCTL_STATE_DIR", raising=False)
    monkeypatch.setenv(variable, ".")
    for folder in ("local/train", "atlctl/local/train"):
        (isolated / folder).mkdir(parents=True)
        (isolated / folder / "job.json").write_text("{}")
    assert Names().jobs() == []
    assert Names().workers("train") == []


def test_an_unreadable_registry_gives_no_names(isolated, monkeypatch):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated / "none"))
    assert Names().jobs() == []
    assert Names().workers("x") == []
    assert not (isolated / "none").exists()
