"""Full disks, damaged registries, closed streams: one clear error, a hint, the right exit code, no partial state."""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local import Registry, problem, registry
from tests.support.cli import ATLCTL

FULL = "No space left on device"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("two", 2)
        own.start("done", 1, "echo", "hi")
        own.until("done", "Succeeded")
        yield own


# Standard output on a full disk


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("ps", "two"),
        ("ps", "two", "-o", "json"),
        ("logs", "done"),
        ("errors", "done"),
        ("exec", "-j", "two", "--all", "echo", "hi"),
        ("exec", "-j", "two", "-w", "0", "yes"),
        ("exec", "-j", "two", "--all", "-o", "json", "echo", "hi"),
        ("exec", "-j", "two", "--all", "--gather", "echo", "hi"),
        ("completion", "bash"),
    ],
    ids=" ".join,
)
def test_a_full_disk_behind_stdout_is_told_and_is_1(jobs: Registry, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full, jobs.popen(*words, stdout=full, stderr=-1) as run:
        _, stderr = run.communicate(timeout=40)
    assert run.returncode == 1
    lines = stderr.decode().splitlines()
    assert f"error: the output could not be written: {FULL}" in lines
    assert "Traceback" not in stderr.decode()
    assert not jobs.commands("yes")


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "words", [("--version",), ("-h",), ("exec", "-h"), ("--complete", "bash", "1", "atlctl", "ps")]
)
def test_help_and_version_on_a_full_disk_fail_too(jobs: Registry, words: tuple[str, ...], buffered: bool) -> None:
    run = under_sh(jobs, '"$@" >/dev/full', *words, env={"PYTHONUNBUFFERED": "" if buffered else "1"})
    assert (run.stdout, run.returncode) == (b"", 1)
    assert problem(run.stderr) == (f"the output could not be written: {FULL}", "the output is not complete")


# State folder on a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB. Requires root."""
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system of our own can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


def test_a_job_on_a_full_disk_is_not_started_and_leaves_nothing(small_disk: Path) -> None:
    with registry() as own:
        env = {"ATLCTL_STATE_DIR": str(small_disk / "state")}
        assert own.cli("local", "run", "--name", "first", "-w", "1", "--detach", "true", env=env).code == 0
        filler = fill(small_disk)
        before = sorted(small_disk.rglob("*"))
        run = own.cli("local", "run", "--name", "second", "-w", "2", "--detach", "sleep", "1000", env=env)
        assert (run.stdout, run.code) == (b"", 1)
        message, hint = problem(run.stderr)
        assert "no space left" in message.lower()
        assert hint
        assert {path for path in sorted(small_disk.rglob("*")) if "second" in str(path)} == set()
        assert len(sorted(small_disk.rglob("*"))) <= len(before)
        assert not own.commands("sleep 1000")
        assert own.cli("jobs", "-o", "name", env=env).stdout == b"first\n"
        filler.unlink()
        assert own.cli("local", "run", "--name", "second", "-w", "2", "--detach", "true", env=env).code == 0


def test_exec_works_on_a_full_disk_and_says_what_it_cannot_remember(small_disk: Path) -> None:
    with registry() as own:
        env = {"ATLCTL_STATE_DIR": str(small_disk / "state")}
        assert own.cli("local", "run", "--name", "a", "-w", "2", "--detach", "sleep", "1000", env=env).code == 0
        fill(small_disk)
        run = own.cli("exec", "-j", "a", "--all", "--no-prefix", "echo", "hi", env=env)
        assert (run.stdout, run.code) == (b"hi\nhi\n", 0)
        assert b"warning: --retry-failed will not know of this run: no space left on the disk of " in run.stderr
        assert own.cli("stop", "a", "--yes", env=env).code == 0


def test_an_output_folder_on_a_full_disk_is_told_and_the_cut_output_named(jobs: Registry, small_disk: Path) -> None:
    folder = small_disk / "out"
    run = jobs.exec("two", "--all", "--output-dir", str(folder), "--", "head", "-c", "1000000", "/dev/zero")
    assert run.code == 1
    assert f"error: cannot write {folder}/worker-".encode() in run.stderr
    assert FULL.encode() in run.stderr
    assert b"hint: free some space, or choose another folder with --output-dir" in run.stderr


# Registries


@pytest.fixture
def own() -> Iterator[Registry]:
    with registry() as fresh:
        yield fresh


def test_a_damaged_entry_is_named_and_the_others_are_shown(own: Registry) -> None:
    own.start("good", 1, "true")
    own.start("bad", 1, "true")
    own.until("bad", "Succeeded")
    path = own.folder("bad") / "job.json"
    for content in (b"", b"{", b"[]", b'{"name": 1}', b"\xff\xfe", b"null", b"[" * 99999):
        path.write_bytes(content)
        run = own.cli("jobs", "-o", "name")
        assert (run.stdout, run.code) == (b"good\n", 1), content
        assert run.stderr.startswith(b"warning: the entry of job bad cannot be read: "), content
        document = json.loads(own.cli("jobs", "-o", "json").stdout)
        assert (document["status"], len(document["data"]["jobs"]), len(document["errors"])) == ("partial", 1, 1)
    for words in (("ps", "bad"), ("logs", "bad"), ("errors", "bad"), ("stop", "bad", "--yes")):
        run = own.cli(*words)
        assert (run.stdout, run.code) == (b"", 1)
        assert problem(run.stderr) == (
            f"the entry of job bad cannot be read: {path} is damaged",
            f"if none of its processes runs, remove it: rm -r {own.folder('bad')}",
        )
    assert own.exec("good", "true").code == 255


def test_an_entry_that_is_a_link_to_elsewhere_is_not_followed(own: Registry) -> None:
    own.start("real", 1, "true")
    own.folder("real").joinpath("job.json").rename(own.home / "moved")
    own.folder("real").joinpath("job.json").symlink_to(own.home / "moved")
    run = own.cli("ps", "real")
    assert run.code == 4
    assert "link" in problem(run.stderr)[0]


@pytest.mark.parametrize("command", [("jobs",), ("ps", "x"), ("local", "run", "-w", "1", "--detach", "true")])
def test_a_file_in_place_of_the_registry(own: Registry, command: tuple[str, ...]) -> None:
    own.state.mkdir(parents=True, mode=0o700)
    own.state.joinpath("local").write_text("mine")
    run = own.cli(*command)
    assert run.stdout == b""
    assert run.code in (1, 3, 4)
    problem(run.stderr)
    assert own.state.joinpath("local").read_text() == "mine"


def test_a_state_folder_that_is_a_link_is_refused(own: Registry) -> None:
    own.state.parent.mkdir(parents=True, mode=0o700)
    elsewhere = own.home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    own.state.joinpath("local").parent.mkdir(mode=0o700)
    own.state.joinpath("local").symlink_to(elsewhere)
    run = own.cli("local", "run", "-w", "1", "--detach", "true")
    assert (run.stdout, run.code) == (b"", 4)
    assert "symbolic link" in problem(run.stderr)[0]
    assert list(elsewhere.iterdir()) == []


def test_a_state_folder_that_others_can_write_is_refused(own: Registry) -> None:
    own.state.mkdir(parents=True)
    own.state.joinpath("local").mkdir()
    own.state.joinpath("local").chmod(0o777)
    run = own.cli("local", "run", "-w", "1", "--detach", "true")
    assert (run.stdout, run.code) == (b"", 4)
    message, hint = problem(run.stderr)
    assert "can be written by others" in message
    assert "chmod go-w" in hint
    assert list(own.state.joinpath("local").iterdir()) == []


def test_a_relative_state_folder_is_refused(own: Registry) -> None:
    run = own.cli("jobs", env={"ATLCTL_STATE_DIR": "here"})
    assert (run.stdout, run.code) == (b"", 2)
    assert problem(run.stderr) == ("ATLCTL_STATE_DIR must be an absolute path: here", "begin it with '/'")


def unprivileged() -> list[str]:
    """A command prefix that drops root's permission to access all files."""
    if os.geteuid() != 0:
        return []
    prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("root's power over all files cannot be laid down here")
    return prefix


@pytest.mark.parametrize(
    "command", [("jobs",), ("ps", "x"), ("stop", "x", "--yes"), ("local", "run", "-w", "1", "--detach", "true")]
)
def test_a_registry_that_cannot_be_read_is_4(own: Registry, command: tuple[str, ...]) -> None:
    own.start("x", 1, "true")
    env = {name: value for name, value in {**os.environ, **own.env}.items() if value is not None}
    folder = own.state / "local"
    folder.chmod(0)
    try:
        run = subprocess.run([*unprivileged(), *ATLCTL, *command], env=env, capture_output=True, timeout=15)
    finally:
        folder.chmod(0o700)
    assert (run.stdout, run.returncode) == (b"", 4)
    first, *rest = run.stderr.decode().splitlines()
    assert first.startswith(("error: ", "warning: "))
    assert "Permission denied" in first
    assert not [line for line in rest if not line.startswith("hint: ")]


def test_no_home_and_no_xdg_still_has_a_place(own: Registry) -> None:
    run = own.cli("jobs", env={"HOME": None, "XDG_STATE_HOME": None, "ATLCTL_STATE_DIR": str(own.state)})
    assert run.code == 0


# Missing streams


def under_sh(
    jobs: Registry, line: str, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `atlctl WORDS` as "$@" of a shell command line."""
    made = {name: value for name, value in {**os.environ, **jobs.env, **(env or {})}.items() if value is not None}
    argv = ["sh", "-c", line, "sh", sys.executable, "-W", "error", "-m", "atlctl", *words]
    return subprocess.run(argv, env=made, capture_output=True, timeout=30)


EVERYDAY = [
    ("--help",),
    ("--version",),
    ("ps", "--help"),
    ("jobs", "-o", "name"),
    ("errors", "--from", "log"),
    ("exec", "-j", "two", "-w", "0", "--", "echo", "hi"),
    ("completion", "bash"),
    ("--complete", "bash", "1", "atlctl", "ps"),
]


@pytest.fixture(scope="module")
def complete(jobs: Registry) -> Callable[[tuple[str, ...]], bytes]:
    """The output of a command that lacks nothing."""

    @functools.cache
    def output(words: tuple[str, ...]) -> bytes:
        run = under_sh(jobs, '"$@" 2>/dev/null', *words)
        assert (bool(run.stdout), run.returncode) == (True, 0)
        return run.stdout

    return output


@pytest.mark.parametrize("words", EVERYDAY, ids=" ".join)
def test_closed_streams(jobs: Registry, complete: Callable[[tuple[str, ...]], bytes], words: tuple[str, ...]) -> None:
    """If output cannot be written, the exit code is not 0; otherwise it works as with /dev/null."""
    Path("log").write_text("Traceback (most recent call last):\nValueError: boom\n")
    for closing in ("2>&-", "<&- 2>&-"):
        run = under_sh(jobs, f'"$@" {closing}', *words)
        assert (run.stdout, run.returncode) == (complete(words), 0), closing
        assert b"error" not in run.stderr
    for closing in (">&-", "<&- >&-"):
        run = under_sh(jobs, f'"$@" {closing}', *words)
        assert (run.stdout, run.returncode) == (b"", 1), closing
        *before, error, hint = run.stderr.decode().splitlines()
        assert error == "error: the output could not be written: Bad file descriptor"
        assert hint == "hint: the output is not complete"
        assert not before or words[0] == "exec"
    assert under_sh(jobs, '"$@" <&- >&- 2>&-', *words).returncode == 1


def test_standard_error_of_a_command_that_cannot_be_shown_is_1(jobs: Registry) -> None:
    words = ("exec", "-j", "two", "-w", "0", "--", "sh", "-c", "echo hi >&2")
    assert under_sh(jobs, '"$@" 2>/dev/null', *words).returncode == 0
    assert under_sh(jobs, '"$@" 2>&-', *words).returncode == 1


@pytest.mark.parametrize("words", [*EVERYDAY, ("errors", "two"), ("stacks", "two")], ids=" ".join)
def test_a_working_folder_that_was_removed(jobs: Registry, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback (most recent call last):\nValueError: boom\n")
    absolute = [str(tmp_path / word) if word == "log" else word for word in words]
    run = under_sh(jobs, 'mkdir gone; cd gone; rmdir ../gone; "$@"', *absolute)
    assert (bool(run.stdout), run.returncode) == (True, 0), run
    assert b"error" not in run.stderr


def test_a_relative_path_in_a_working_folder_that_was_removed(jobs: Registry) -> None:
    run = under_sh(jobs, 'mkdir gone; cd gone; rmdir ../gone; "$@"', "record", "two", "--out", "here")
    assert (run.stdout, run.returncode) == (b"", 1)
    assert problem(run.stderr) == ("the working folder no longer exists", "cd to one that does")


@pytest.mark.parametrize("limit", [5, 8, 12])
@pytest.mark.parametrize("words", [*EVERYDAY, ("local", "run", "-w", "1", "true"), ("logs", "two")], ids=" ".join)
def test_few_descriptors(
    jobs: Registry, complete: Callable[[tuple[str, ...]], bytes], words: tuple[str, ...], limit: int
) -> None:
    """Complete output, or one clear error."""
    Path("log").write_text("Traceback (most recent call last):\nValueError: boom\n")
    run = under_sh(jobs, f'ulimit -n {limit}; "$@"', *words)
    if run.returncode == 0:
        assert words in EVERYDAY
        assert run.stdout == complete(words)
    else:
        assert (run.stdout, run.returncode) == (b"", 1)
        assert problem(run.stderr) == (f"Too many open files: the limit is {limit}", "raise it: ulimit -n 1024")


def test_standard_input_that_is_closed_is_refused_with_i(jobs: Registry) -> None:
    words = [sys.executable, "-m", "atlctl", "exec", "-j", "two", "-w", "0", "-i", "cat"]
    env = {name: value for name, value in {**os.environ, **jobs.env}.items() if value is not None}
    run = subprocess.run(["sh", "-c", '"$@" <&-', "_", *words], env=env, capture_output=True, timeout=20)
    assert (run.stdout, run.returncode) == (b"", 2)
    problem(run.stderr)


def test_too_few_descriptors_are_told_with_the_way_out(jobs: Registry) -> None:
    jobs.start("thirty", 30)
    limit: dict[str, Any] = {
        "stdout": -1,
        "stderr": -1,
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    }
    with jobs.popen("exec", "-j", "thirty", "--all", "true", **limit) as run:
        stdout, stderr = run.communicate(timeout=100)
    assert (stdout, run.returncode) == (b"", 1)
    message, hint = problem(stderr)
    assert "open files are needed, the limit is 128" in message
    assert "--batch" in hint
    with jobs.popen("exec", "-j", "thirty", "--all", "--batch", "4", "true", **limit) as run:
        stdout, stderr = run.communicate(timeout=100)
    assert (stderr, run.returncode) == (b"ok: worker-[0-29] (30)\n", 0)


# Project files


def project(text: str) -> Path:
    """A project in the working folder, which is a separate repository."""
    Path(".git").mkdir()
    file = Path(".atlctl.toml").absolute()
    file.write_text(text)
    return file


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("variable", [True, False])
def test_a_job_of_the_project_file_is_said(own: Registry, hides: bool, variable: bool) -> None:
    """The author of the checkout chose the hosts to which commands go, perhaps in place of a job of the user."""
    file = project('[ssh.jobs.train]\nhosts = ["127.0.0.9:1"]\n')
    config = own.home / ".config/atlctl/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('[ssh.jobs.train]\nhosts = ["127.0.0.8:1"]\n' if hides else "")
    run = own.cli("ps", *([] if variable else ["train"]), env={"ATLCTL_JOB": "train"} if variable else None)
    rest = "it hides the one in your config.toml" if hides else "for one of the cluster: --backend kubernetes"
    assert f"note: job train is a list of hosts in the project file {file}; {rest}\n".encode() in run.stderr
    file.unlink()
    run = own.cli("ps", "train")
    assert b"project file" not in run.stderr


def test_a_project_file_that_others_may_write_is_said_once_and_not_read(own: Registry) -> None:
    file = project("no TOML [")
    file.chmod(0o666)
    Path("log").write_text("Traceback (most recent call last):\nValueError: boom\n")
    said = f"the project file is not read: {file} can be written by others (mode 0666)"
    run = own.cli("errors", "--from", "log")
    assert (run.stderr, run.code) == (f"note: {said}\n".encode(), 0)
    checks = own.data("doctor")["checks"]
    assert [check["text"] for check in checks if check["name"] == "settings"] == [said]
