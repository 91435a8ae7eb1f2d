"""`atlctl cp` on real local jobs: forms, exit codes, JSON, the terminal, Ctrl-C, secrets."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.cli import STATUS_LINE

CANARY = "canary-in-a-file-4714"
BODY = os.urandom(300_000)
#: Bytes that take some seconds to copy.
HUGE = 4 << 30


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """four: live workers; bare: no tar in PATH; ended: no live worker."""
    with registry() as own:
        tools = own.home / "tools"
        tools.mkdir()
        for name in ("sh", "cat", "wc", "mkdir", "mv", "rm", "chmod", "sleep"):
            found = shutil.which(name)
            assert found is not None
            tools.joinpath(name).symlink_to(found)
        own.env["API_TOKEN"] = CANARY
        own.start("four", 4)
        own.start("bare", 1, options=("--env", f"PATH={tools}"))
        own.start("ended", 2, "true")
        own.until("ended", "Succeeded")
        yield own


def write(path: str, data: bytes = BODY) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file.resolve()


def names(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


@pytest.mark.parametrize("job", ["four", "bare"])
def test_one_file_there_and_back(jobs: Registry, job: str) -> None:
    source, place = write("file"), Path("there").absolute()
    place.mkdir()
    run = jobs.cli("cp", "-j", job, str(source), f"worker-0:{place}/")
    assert (run.stdout, run.stderr, run.code) == (b"", b"copied: worker-0 (1): 1 file, 293.0 KiB\n", 0)
    run = jobs.cli("cp", "-j", job, f"worker-0:{place}/file", "./back")
    assert (run.stdout, run.stderr, run.code) == (b"", b"copied: worker-0 (1): 1 file, 293.0 KiB\n", 0)
    assert Path("back").read_bytes() == BODY
    assert names("there") == ["file"]


def test_a_relative_path_is_where_the_worker_was_started(jobs: Registry) -> None:
    write("note", b"hi")
    assert jobs.cli("cp", "-j", "four", "--all", "note", ":./note").code == 0
    assert jobs.exec("four", "--all", "--gather", "cat", "note").stdout == b"worker-[0-3] (4) ok\nhi"


def test_from_all_each_into_its_own_folder_and_to_all(jobs: Registry) -> None:
    script = "mkdir -p out/deep && echo $RANK >out/rank && touch out/deep/x"
    assert jobs.exec("four", "--all", "--", "sh", "-c", script).code == 0
    run = jobs.cli("cp", "-j", "four", "--all", ":out", "./logs")
    assert (run.stderr, run.code) == (b"copied: worker-[0-3] (4): 8 files, 8 B\n", 0)
    assert [Path(f"logs/worker-{n}/rank").read_text() for n in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
    assert names("logs/worker-1") == ["deep", "deep/x", "rank"]
    run = jobs.cli("cp", "-j", "four", "-w", "0-2", "-x", "1", "./logs/worker-3", ":back")
    assert (run.stderr, run.code) == (b"copied: worker-[0,2] (2): 4 files, 4 B\n", 0)
    run = jobs.exec("four", "-w", "0-2", "--gather", "--", "sh", "-c", "cat back/rank")
    assert b"worker-[0,2] (2) ok\n3\n" in run.stdout


def test_some_fail_and_the_others_are_copied(jobs: Registry) -> None:
    jobs.exec("four", "--all", "--", "sh", "-c", "[ $RANK = 2 ] || echo x >some")
    run = jobs.cli("cp", "-j", "four", "--all", ":some", "./got")
    assert run.stderr.splitlines() == [
        b"copied: worker-[0-1,3] (3): 3 files, 6 B",
        b"failed: worker-2 (1): no such file or folder",
    ]
    assert run.code == 1
    assert names("got") == ["worker-0", "worker-0/some", "worker-1", "worker-1/some", "worker-3", "worker-3/some"]


def test_ended_workers_are_255(jobs: Registry) -> None:
    run = jobs.cli("cp", "-j", "ended", "--all", ":/etc/hostname", "./x")
    assert (run.stderr, run.code) == (b"lost: worker-[0-1] (2): not running (Succeeded)\n", 255)


def test_a_deadline_is_124(jobs: Registry) -> None:
    slow = jobs.home / "slow"
    slow.mkdir()
    for name, text in {"tar": "exec /bin/sleep 77", "sh": 'exec /bin/sh "$@"'}.items():
        slow.joinpath(name).write_text(f"#!/bin/sh\n{text}\n")
        slow.joinpath(name).chmod(0o755)
    jobs.start("slow", 1, "/bin/sleep", "1000", options=("--env", f"PATH={slow}:/bin:/usr/bin"))
    run = jobs.cli("cp", "-j", "slow", "--timeout", "0.4", "worker-0:/etc/hostname", "./x")
    assert (run.stderr, run.code) == (b"timed out: worker-0 (1): not done within 0.4 s\n", 124)
    assert names(".") == []


@pytest.mark.parametrize(
    ("words", "message", "hint", "code"),
    [
        (("a:/x", "b:/y"), "both sides are on workers", "in two steps", 2),
        (("x", "y"), "neither side is on a worker", "WORKER:PATH", 2),
        (("x", ":/y"), "which of the 4 workers of four?", "--all", 2),
        (("--all", "worker-0:/x", "."), "'worker-0:' names one worker", ":PATH", 2),
        (("worker-[0-1]:/x", "."), "means 2 workers", ":PATH", 2),
        (("worker-9:/x", "."), "worker-9", "", 3),
        (("nope", "worker-0:/x"), "nope: no such file or folder", "WORKER:PATH", 2),
        (("worker-0:/etc/hostname", "no/pe/x"), "there is no folder no/pe", "mkdir", 2),
        (("x",), "'DST' is missing", "usage", 2),
    ],
)
def test_mistakes_are_told_with_the_way_out(
    jobs: Registry, words: tuple[str, ...], message: str, hint: str, code: int
) -> None:
    run = jobs.cli("cp", "-j", "four", *words)
    assert run.code == code
    said, way = problem(run.stderr)
    assert message in said
    assert hint in way
    assert run.stdout == b""


def test_json_is_one_document(jobs: Registry) -> None:
    jobs.exec("four", "--all", "--", "sh", "-c", "mkdir -p d; ln -sf x d/link; [ $RANK = 1 ] || echo x >d/one")
    run = jobs.cli("cp", "-j", "four", "-w", "0-1", ":d/one", "./got", "-o", "json")
    document = json.loads(run.stdout)
    assert run.code == 1
    assert (document["command"], document["status"]) == ("cp", "partial")
    first, second = document["data"].pop("workers")
    assert document["data"] == {
        "job": "four", "direction": "from", "path": "./d/one", "local": "./got", "exit_code": 1,
    }  # fmt: skip
    assert first == {
        "worker": "worker-0", "outcome": "copied", "exit_code": 0, "reason": "", "path": "./got/worker-0/one",
        "files": 1, "bytes": 2, "changed": False, "skipped": [], "skipped_count": 0, "may_still_run": False,
    }  # fmt: skip
    assert (second["worker"], second["outcome"], second["reason"]) == ("worker-1", "failed", "no such file or folder")
    assert document["errors"] == [
        {"kind": "failed", "message": "worker-1: failed: no such file or folder", "hint": None, "exit_code": 1}
    ]
    run = jobs.cli("cp", "-j", "four", "worker-1:d", "./links", "-o", "json")
    [worker] = json.loads(run.stdout)["data"]["workers"]
    assert (worker["skipped"], worker["skipped_count"], run.code) == (["link (symlink)"], 1, 0)


def test_quiet_says_nothing_but_warnings(jobs: Registry) -> None:
    jobs.exec("four", "-w", "0", "--", "sh", "-c", "mkdir -p q; touch q/file; ln -sf x q/link")
    assert jobs.cli("cp", "-q", "-j", "four", "worker-0:q/file", "./q") == (b"", b"", 0)
    run = jobs.cli("cp", "-q", "-j", "four", "worker-0:q", "./qq")
    assert run == (b"", b"warning: not copied from worker-0 (1): link (symlink)\n", 0)


def test_escape_sequences_in_names_are_shown_and_do_nothing(jobs: Registry) -> None:
    link, file = "evil/\\033]0;owned\\007\\n\\302\\233", "evil/\\033[31m"
    script = f"mkdir -p evil; ln -sf x \"$(printf '{link}')\"; touch \"$(printf '{file}')\""
    jobs.exec("four", "-w", "0", "--", "sh", "-c", script)
    for options in ((), ("-o", "json")):
        run = jobs.cli("cp", "-j", "four", "worker-0:evil", "./evil", *options, tty=True)
        assert b"\x1b]" not in run.stdout
        assert b"\x1b[31m" not in run.stdout
        assert b"\x07" not in run.stdout
        assert "\x9b" not in run.stdout.decode()
        assert run.code == 0
    run = jobs.cli("cp", "-j", "four", "worker-0:evil", "./again")
    assert run.stderr.splitlines()[0] == b"warning: not copied from worker-0 (1): ^[]0;owned^G^J\\x9b (symlink)"
    assert names("again") == ["\x1b[31m"]


def test_progress_is_on_a_terminal_alone_and_goes_away(jobs: Registry) -> None:
    slow = jobs.home / "slower"
    slow.mkdir()
    slow.joinpath("tar").write_text('#!/bin/sh\n/bin/tar "$@"\ncode=$?\n/bin/sleep 1\nexit $code\n')
    slow.joinpath("tar").chmod(0o755)
    jobs.start("slower", 1, "/bin/sleep", "1000", options=("--env", f"PATH={slow}:/bin:/usr/bin"))
    source = write("big")
    copy = ("-j", "slower", f"worker-0:{source}", "./new")
    with Terminal("cp", "--color", "never", *copy, env=jobs.env) as terminal:
        assert terminal.code() == 0
    shown = terminal.screen
    assert re.search(rb"\r\x1b\[K\S+ copying: 0/1 workers  29\S+ KiB  \S+ [KM]?i?B/s  \ds", shown), shown
    assert STATUS_LINE.sub(b"", shown) == b"copied: worker-0 (1): 1 file, 293.0 KiB\r\n"
    for words, env in ((("-q",), {}), ((), {"TERM": "dumb"})):
        with Terminal("cp", *words, *copy, env={**jobs.env, **env}) as terminal:
            assert terminal.code() == 0
        assert b"\x1b[K" not in terminal.screen
    assert b"copying" not in jobs.cli("cp", *copy).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("upload", [False, True], ids=["from", "to"])
def test_interrupted_nothing_is_half_named_and_nothing_runs(
    jobs: Registry, number: signal.Signals, upload: bool
) -> None:
    Path("there").mkdir()
    Path("here").mkdir()
    source = write("huge", bytes(1 << 20))
    with source.open("r+b") as file:
        file.truncate(HUGE)  # a sparse file without data blocks
    place = Path("there/new").absolute()
    words = (str(source), f":{place}") if upload else (f":{source}", "here")
    with jobs.popen("cp", "-j", "four", "-w", "0", *words, stdout=-1, stderr=-1) as run:
        folder = "there" if upload else "here"
        assert proc.wait_until(lambda: any(Path(path).stat().st_size for path in files(folder)))
        run.send_signal(number)
        _, stderr = run.communicate(timeout=100)
    assert proc.wait_until(lambda: not jobs.running("atlctl-cp") and not jobs.running("tar "))
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert proc.wait_until(lambda: number == signal.SIGKILL or not files(folder)), files(folder)
    assert all("/.atlctl-cp." in path for path in files(folder))
    if number != signal.SIGKILL:
        assert b"cancelled: worker-0 (1): interrupted\n" in stderr


def files(folder: str) -> list[str]:
    return [str(path) for path in Path(folder).rglob("*") if path.is_file()]


def test_ctrl_c_on_a_terminal(jobs: Registry) -> None:
    source = write("huge", b"")
    with source.open("r+b") as file:
        file.truncate(HUGE)
    Path("here").mkdir()
    with Terminal("cp", "-j", "four", "--all", f":{source}", "./here", env=jobs.env) as terminal:
        terminal.wait_for(b"copying: 0/4 workers")
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert terminal.mode() == terminal.before
    assert files("here") == []
    assert not jobs.running("tar ")


def test_neither_contents_nor_environment_are_told(jobs: Registry) -> None:
    source = write("secret", CANARY.encode())
    Path("blocked").mkdir()
    Path("blocked/secret").mkdir()
    for words in (
        ("-j", "four", str(source), f"worker-0:{source}.copy"),
        ("-j", "four", f"worker-0:{source}", "./back"),
        ("-j", "four", f"worker-0:{source}", "./blocked"),
        ("-j", "bare", f"worker-0:{source}", "./back"),
        ("-j", "ended", f"worker-0:{source}", "./back"),
        ("-j", "four", "--all", f":{source}", "./each", "-o", "json"),
    ):
        run = jobs.cli("-vv", "--debug", "cp", *words)
        assert CANARY.encode() not in run.stdout + run.stderr, words
    assert Path("back").read_text() == CANARY


def test_what_is_made_is_private_under_any_umask(jobs: Registry) -> None:
    source = write("open", b"x")
    source.chmod(0o666)
    before = os.umask(0)
    try:
        assert jobs.cli("cp", "-j", "bare", f"worker-0:{source}", "./no-mode-known").code == 0
        assert jobs.cli("cp", "-j", "four", "--all", f":{source}", "./each").code == 0
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(Path(path).stat().st_mode) for path in ("no-mode-known", "each", "each/worker-0")}
    assert modes == {"no-mode-known": 0o600, "each": 0o700, "each/worker-0": 0o700}
    assert jobs.cli("cp", "-j", "four", f"worker-0:{source}", "./by-umask").code == 0
    assert stat.S_IMODE(Path("by-umask").stat().st_mode) == 0o666 & ~before


def test_links_in_the_target_are_not_followed(jobs: Registry) -> None:
    source = write("file", b"x")
    Path("each").mkdir()
    Path("outside").mkdir()
    Path("each/worker-0").symlink_to("../outside")
    run = jobs.cli("cp", "-j", "four", "-w", "0,1", f":{source}", "./each")
    assert run.stderr.splitlines()[1] == b"failed: worker-0 (1): a link is in its place"
    assert (run.code, names("outside"), names("each/worker-1")) == (1, [], ["file"])


def test_many_workers_share_one_target(jobs: Registry) -> None:
    """Workers of a job often share a disk: they do not disturb each other."""
    write("tree/a")
    write("tree/sub/b")
    place = Path("shared").absolute()
    place.mkdir()
    for _ in range(3):
        run = jobs.cli("cp", "-j", "four", "--all", "./tree/.", f":{place}")
        assert (run.stderr, run.code) == (b"copied: worker-[0-3] (4): 8 files, 2.3 MiB\n", 0)
    assert names("shared") == ["a", "sub", "sub/b"]
    assert Path("shared/sub/b").read_bytes() == BODY
