"""Secrets stay where the user put them: they are in no message, log, process list or open file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, registry
from tests.support import proc
from tests.support.cli import Result

ENV, OPTION, WORD = "canary-in-env-4711", "canary-in-option-4712", "canary-in-argv-4713"
CANARIES = (ENV, OPTION, WORD)
LOUD = ("-vv", "--debug")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """job: two live workers; ended: a failed one. Both have secrets and a permissive umask."""
    with registry() as own:
        own.env["API_TOKEN"] = ENV
        before = os.umask(0)
        try:
            own.start("ended", 1, "sh", "-c", "exit 1", options=("--env", f"MY_SECRET={OPTION}"))
            own.start("job", 2, options=("--env", f"MY_SECRET={OPTION}"))
            own.exec("job", "--all", "--", "sh", "-c", "sleep 0.1; exit 1", "--token", WORD)
        finally:
            os.umask(before)
        yield own


def assert_silent(run: Result) -> None:
    for canary in CANARIES:
        assert canary.encode() not in run.stdout + run.stderr, run


COMMANDS: list[tuple[str, ...]] = [
    ("jobs",),
    ("jobs", "-o", "yaml"),
    ("doctor", "-j", "job", "-o", "json"),
    ("ps", "job", "-o", "wide"),
    ("ps", "job", "-o", "json"),
    ("logs", "job"),
    ("errors", "ended", "-o", "json"),
    ("report", "ended"),
    ("report", "job", "-o", "json"),
    ("record", "ended"),
    ("events", "job"),
    ("stacks", "job"),
    ("top", "job", "--once"),
    ("top", "job", "-o", "json"),
    ("smoke", "job", "--print-torchrun"),
    ("cp", "-j", "job", "--all", ":/nowhere", "here"),
    ("stop", "job", "--dry-run"),
    ("stop", "job"),
    ("local", "rm", "ended", "--dry-run"),
    ("local", "rm", "job", "--yes"),
    ("exec", "-j", "job", "--retry-failed"),
    ("exec", "-j", "job", "--all", "-o", "json", "--", "false", "--token", WORD),
    ("exec", "-j", "job", "--all", "--", "no-such-program", "--token", WORD),
    ("exec", "-j", "job", "--all", "--timeout", "0.1", "--", "sh", "-c", "sleep 999", "--token", WORD),
    ("exec", "-j", "ended", "--", "curl", "-H", f"Authorization: Bearer {WORD}"),
    ("exec", "-j", "job", "curl", "--token", WORD, "--all"),
    ("exec", "job", "curl", "--password", WORD),
    ("exec", "-j", "nope", "--all", "--", "curl", "--api-key", WORD),
    ("local", "run", "-w", "1", "--name", "job", "--env", f"MY_SECRET={OPTION}", "true"),
    ("local", "run", "-w", "1", "--env", f"MY_SECRET={OPTION}", "no-such-program"),
    ("local", "run", "-w", "1", "--env", f"RANK={OPTION}", "true"),
    ("local", "run", "-w", "1", "--env", OPTION, "true"),
    ("local", "run", "-w", "0", "--env", f"MY_SECRET={OPTION}", "true"),
    ("shell", "-j", "job", "0"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_tells_it_however_loud_and_failing(jobs: Registry, words: tuple[str, ...]) -> None:
    assert_silent(jobs.cli(*LOUD, *words, stdin=b""))


def test_a_fault_of_atlctl_itself_does_not_tell_it_either(jobs: Registry) -> None:
    """A registry file causes an unexpected exception: the traceback of --debug contains no secret."""
    folder = jobs.folder("weird")
    folder.mkdir(mode=0o700)
    record = jobs.folder("job").joinpath("job.json").read_text()
    folder.joinpath("job.json").write_text(record.replace('"created": ', '"created": "soon", "was": '))
    for words in (("jobs",), ("ps", "weird"), ("stop", "weird", "--yes")):
        assert_silent(jobs.cli(*LOUD, *words))
    folder.joinpath("job.json").unlink()
    folder.rmdir()


def test_only_private_files_that_must_hold_it_hold_it(jobs: Registry) -> None:
    holders: dict[str, set[str]] = {canary: set() for canary in CANARIES}
    for path in (path for path in jobs.home.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for canary in CANARIES:
            if canary.encode() in data:
                holders[canary].add(path.name)
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert holders[ENV] == holders[OPTION] == {"env.json"}
    uids = {name: jobs.data("ps", name)["job"]["uid"] for name in ("job", "ended")}
    assert holders[WORD] <= {f"local-{name}-{uid}.json" for name, uid in uids.items()}
    assert f"local-job-{uids['job']}.json" in holders[WORD]


def test_folders_of_the_state_are_private_under_any_umask(jobs: Registry) -> None:
    folders = [jobs.state, *(path for path in jobs.state.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_no_command_line_but_what_the_user_typed_tells_it(jobs: Registry) -> None:
    with jobs.popen("exec", "-j", "job", "--all", "--", "sleep", "981", stdout=-1, stderr=-1) as run:
        assert proc.wait_until(lambda: len(jobs.commands("sleep 981")) == 2)
        shown = [process.command for process in jobs.running()]
        run.terminate()
        run.communicate(timeout=100)
    assert any("supervisor" in command for command in shown)
    assert not [command for command in shown for canary in CANARIES if canary in command]


READING: list[tuple[str, ...]] = [
    ("jobs",),
    ("ps", "job"),
    ("logs", "job"),
    ("errors", "job"),
    ("exec", "-j", "job", "-w", "0", "-i", "--", "cat"),
    ("exec", "-j", "job", "--retry-failed"),
    ("stop", "job", "--yes"),
    ("local", "rm", "job", "--yes"),
]


@pytest.mark.parametrize(
    ("level", "words"),
    [
        *((level, words) for level in ("", "local", "local/job") for words in READING),
        *((level, ("local", "run", "-w", "1", "--name", "next", "true")) for level in ("", "local")),
    ],
    ids=str,
)
def test_a_state_folder_that_may_be_forged_is_refused(jobs: Registry, level: str, words: tuple[str, ...]) -> None:
    """A supervisor in another user's folder would receive the command and the input."""
    forged = jobs.state / level
    forged.chmod(0o777)
    try:
        run = jobs.cli(*words, stdin=b"canary")
    finally:
        forged.chmod(0o700)
    assert f"{forged} can be written by others (mode 0777)".encode() in run.stderr
    assert b"Traceback" not in run.stderr
    assert b"canary" not in run.stdout
    assert run.code == 4
    assert jobs.states("job") == ["Running"] * 2


def test_a_removed_job_takes_its_secrets_along(jobs: Registry) -> None:
    jobs.start("brief", 1, "true", options=("--env", f"MY_SECRET={OPTION}"))
    jobs.until("brief", "Succeeded")
    assert jobs.cli("local", "rm", "brief", "--yes", "-q").code == 0
    assert not jobs.folder("brief").exists()


def test_output_folders_are_private_and_links_in_them_are_not_followed(jobs: Registry) -> None:
    before = os.umask(0)
    try:
        outside = jobs.home / "outside"
        outside.write_text("untouched")
        Path("out").mkdir()
        Path("out/worker-0.out").symlink_to(outside)
        Path("out/worker-1.out").hardlink_to(outside)
        run = jobs.exec("job", "--all", "--output-dir", "out", "--", "echo", "mine")
    finally:
        os.umask(before)
    assert run.code == 0
    assert outside.read_text() == "untouched"
    for name in ("worker-0.out", "worker-1.out"):
        path = Path("out") / name
        assert (path.read_text(), path.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == ("mine\n", False, 0o600)


def test_an_output_folder_that_is_a_link_is_refused(jobs: Registry) -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    for name in ("link", "link/"):
        run = jobs.exec("job", "--all", "--output-dir", name, "--", "echo", "mine")
        assert run.code == 2
        assert b"is a link" in run.stderr
    assert list(Path("real").iterdir()) == []


def test_what_a_command_prints_is_the_users_own(jobs: Registry) -> None:
    """Output of commands is never redacted: a tool must not change data."""
    assert jobs.exec("job", "-w", "0", "printenv", "API_TOKEN", "MY_SECRET").stdout == f"{ENV}\n{OPTION}\n".encode()
