"""The wrapper in real shells: commands are unchanged, and end with their client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from atlctl.backends.guarded import guard
from atlctl.backends.guarded.guard import Ending, ending
from tests.support import proc
from tests.support.needs import find_program, needs
from tests.support.pace import within
from tests.support.proc import wait_until

SHELLS = {"dash": ["sh"], "bash": ["sh"], "busybox": ["busybox", "sh"]}
#: Unique to this process: watchers of parallel tests search for their own mark.
MARK = guard.new_mark()

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(params=["dash", "bash", pytest.param("busybox", marks=needs("busybox"))])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a script like a container runtime: argv, pipes, a new session."""
    program = find_program(request.param)
    begun: list[subprocess.Popen[bytes]] = []

    def run(text: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        argv = [*SHELLS[request.param], "-c", text, "sh", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv, executable=program, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe, **options
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


def finish(process: subprocess.Popen[bytes]) -> tuple[bytes, list[str], bytes]:
    """Wait without closing its stdin. Returns its stdout, the wrapper's messages on stderr, its stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    taken, beside = guard.WordFilter(MARK), guard.WordFilter(MARK)
    (out, marks), (err, said) = beside.feed(process.stdout.read()), taken.feed(process.stderr.read())
    process.wait(30)
    if said[0][0] == "S" and said[-1][0] == "X":
        assert marks == [said[0], "E"]
    return out + beside.rest(), said, err + taken.rest()


def word(process: subprocess.Popen[bytes]) -> list[str]:
    """The next message of the wrapper; the command writes nothing to stderr."""
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert line.startswith(MARK), line
    return line.removeprefix(MARK).split()


def ask(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.flush()


def hang_up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def left() -> list[str]:
    """Processes left by the commands of these tests."""
    commands = [process.command for process in proc.marked() if MARK not in process.command]
    return [command for command in commands if "sleep 43" in command or command == "yes"]


def kill(command: str) -> None:
    """Kill processes that a test left running on purpose."""
    for process in proc.marked():
        if process.command == command:
            os.kill(process.pid, signal.SIGKILL)


def wrappers() -> list[str]:
    return [process.command[:40] for process in proc.marked() if MARK in process.command]


def test_the_texts_are_short() -> None:
    """They are in the URL query of every exec; proxies accept 8 KiB."""
    for text in (guard.GUARD, guard.INPUT, guard.TERMINAL, guard.WATCH, guard.LOOK):
        assert text.isascii()
        assert len(quote_plus(text)) < 4000


# The command is unchanged


def test_streams_and_code(start: Start) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", "printf out; printf err >&2; cat; exit 7")
    out, said, err = finish(process)
    assert (process.returncode, out, err) == (7, b"out", b"err")
    assert [text[0] for text in said] == ["S", "X"]
    assert said[0].split()[1] == str(process.pid)
    assert ending(said[1][2:]) == Ending(7, None)
    assert wrappers() == []


def test_words_environment_folder_and_descriptors(start: Start, tmp_path: Path) -> None:
    given = ["", " ", "-n", "*", "a\nb", "$(x)", '"', "\\", "'", "\x1b", "显存"]
    shown = "sys.argv[1:], os.getcwd(), dict(os.environ), os.listdir('/proc/self/fd')"
    program = f"import json, os, sys; print(json.dumps([{shown}]))"
    argv = [sys.executable, "-I", "-c", program, *given]
    plain = json.loads(subprocess.run(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True).stdout)
    for text in (guard.GUARD, guard.INPUT):
        process = start(text, MARK, *argv, cwd=tmp_path)
        ask(process, "\n")
        words, folder, environment, descriptors = json.loads(finish(process)[0])
        assert (words, folder, descriptors) == (given, str(tmp_path), plain[3])
        assert environment.pop("ATLCTL_EXEC") == MARK
        # Variables that every shell sets for its commands.
        for name in ("PWD", "OLDPWD", "SHLVL", "_"):
            environment.pop(name, None)
            plain[2].pop(name, None)
        assert environment == plain[2]


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 15])
def test_deaths_by_signal(start: Start, number: int, request: pytest.FixtureRequest) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", f"ulimit -c 0; sleep 0.1; kill -{number} $$")
    _, said, err = finish(process)
    assert err == b""
    assert process.returncode == 128 + number
    shell = request.node.callspec.params["start"]
    proven = number if shell == "bash" or number not in (2, 13) else None
    assert ending(said[-1][2:]) == Ending(128 + number, proven)


@pytest.mark.parametrize(
    ("said", "signal_number"),
    [
        ('[1]+ Broken pipe ( C "$@" ) 0<&6', 13),
        ('[1]+ Running ( C "$@" ) 0<&6 & [1]+ Broken pipe ( C "$@" ) 0<&6', 13),
        ('[1]+ Broken pipe ( C "$@" ) 0<&6 sh: line 9: jobs: %%: no such job', 13),
        ('[1]+ Running ( C "$@" ) 0<&6 & [1]+ Exit 141 ( C "$@" ) 0<&6', None),
        ('[1]+ Running ( C "$@" ) 0<&6 &', None),
        ("sh: line 9: jobs: %%: no such job", None),
        ("", None),
        ("Broken pipe", 13),
    ],
)
def test_what_shells_say_of_an_end(said: str, signal_number: int | None) -> None:
    """bash may report a child before its end, or be asked about a child that it has forgotten."""
    assert ending(f"{said} 141") == Ending(141, signal_number)


@pytest.mark.parametrize("code", [0, 1, 126, 127, 129, 130, 137, 141, 143, 145, 255])
def test_codes_are_no_signals(start: Start, code: int) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", f"exit {code}")
    assert ending(finish(process)[1][-1][2:]) == Ending(code, None)
    assert process.returncode == code


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-command", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/etc", 126), ("", 127)]
)
@pytest.mark.parametrize("text", [guard.GUARD, guard.INPUT, guard.TERMINAL], ids=["guard", "input", "terminal"])
def test_what_cannot_be_started(start: Start, text: str, program: str, code: int) -> None:
    arguments = [MARK, "vt100", "24", "80", program] if text == guard.TERMINAL else [MARK, program]
    process = start(text, *arguments)
    out, said, err = finish(process)
    assert (process.returncode, out, err, said) == (code, b"", b"", [f"F {code}"])


def test_a_command_named_like_a_builtin_is_the_program(start: Start) -> None:
    out, said, _ = finish(start(guard.GUARD, MARK, "printf", "%s|", "a b", "", "*"))
    assert (out, said[-1]) == (b"a b||*|", said[-1])
    _, said, _ = finish(start(guard.GUARD, MARK, "exit", "0"))
    assert ending(said[-1][2:]) != Ending(0, None)


def test_words_that_are_no_utf_8(start: Start) -> None:
    words = [
        b"printf",
        b"%s|",
        b"\x80\xff",
        bytes(range(1, 256)),
        b"\n\n",
        b"-n",
        b"",
        b"\\0101\\c%s",
        "显存".encode("gbk"),
    ]
    _, _, text, _, line = guard.encoded(guard.line(guard.GUARD, (MARK,), words))
    assert line.isprintable()
    assert not set(line) & set("'!%")
    out, _, _ = finish(start(text, line))
    assert out == b"".join(word + b"|" for word in words[2:])


def test_a_background_child_outlives_the_command(start: Start) -> None:
    finish(start(guard.GUARD, MARK, "sh", "-c", "sleep 4318 >/dev/null 2>&1 & exit 0"))
    assert wrappers() == []
    time.sleep(0.2)
    assert wait_until(lambda: left() == ["sleep 4318"])
    kill("sleep 4318")


def test_the_exit_is_told_while_a_child_holds_the_output(start: Start) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", "sleep 4319 & exit 6")
    assert word(process)[0] == "S"
    assert ending(" ".join(word(process)[1:])) == Ending(6, None)
    process.wait(30)
    hang_up(process)
    assert wait_until(lambda: left() == ["sleep 4319"]), "a shell of its own until then, which is not killed"
    kill("sleep 4319")


def test_signals_to_its_own_group_do_not_end_the_wrapper(start: Start) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", "trap '' TERM HUP; kill -TERM 0; kill -HUP 0; exit 4")
    _, said, _ = finish(process)
    assert ending(said[-1][2:]) == Ending(4, None)


def test_input_reaches_the_command_with_its_end(start: Start) -> None:
    process = start(guard.INPUT, MARK, "sh", "-c", "cat; sleep 0.1; exit 9")
    ask(process, "\ntyped")
    hang_up(process)
    out, said, _ = finish(process)
    assert (process.returncode, out) == (9, b"typed")
    assert ending(said[-1][2:]) == Ending(9, None)


def test_the_marks_come_after_all_that_the_command_wrote(start: Start) -> None:
    """Later output of a child comes after the mark of its stream."""
    process = start(
        guard.GUARD, MARK, "sh", "-c", "yes | head -c 200000; (sleep 0.3; echo late; echo late >&2) & exit 3"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    begun, own, ended = out.partition(b"y\n" * 100_000)
    assert begun.startswith(f"{MARK} S ".encode())
    assert own
    assert ended == f"{MARK} E\nlate\n".encode()
    assert err.endswith(b" 3\nlate\n")


def test_with_input_nothing_starts_before_the_client_says_so(start: Start, tmp_path: Path) -> None:
    process = start(guard.INPUT, MARK, "touch", str(tmp_path / "begun"))
    assert word(process)[0] == "S"
    hang_up(process)
    process.wait(30)
    assert not (tmp_path / "begun").exists()
    assert wrappers() == []


@pytest.mark.parametrize("text", [guard.GUARD, guard.INPUT], ids=["guard", "input"])
def test_the_death_of_the_shell_that_is_the_exec_is_told_when_asked(start: Start, text: str) -> None:
    """Then the rest of the command is ended."""
    process, (pid, began) = begin(start, text, ["sh", "-c", "printf begun; sleep 4323 & wait"])
    watcher = process if text == guard.GUARD else start(guard.WATCH, MARK, pid, began, "")
    if watcher is not process:
        assert word(watcher) == ["R"]
    ask(watcher, "?\n?\n")
    assert "sleep 4323" in left()
    process.kill()
    process.wait()
    ask(watcher, "?\n")
    assert word(watcher) == ["D"]
    assert wait_until(lambda: not left() and not wrappers()), (left(), wrappers())


def test_a_look_finds_what_was_left_behind(start: Start) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", "sleep 4324 >/dev/null 2>&1 & exit 0")
    _, pid, began = word(process)
    process.wait(30)
    assert word(start(guard.LOOK, MARK, pid, began)) == ["L", "1"]
    kill("sleep 4324")
    assert wait_until(lambda: not left())
    assert word(start(guard.LOOK, MARK, pid, began)) == ["L", "0"]


def test_a_word_that_was_cut_is_not_output() -> None:
    words = guard.WordFilter(MARK)
    assert words.feed(b"out" + MARK.encode()[:12]) == (b"out", [])
    assert words.rest() == b""
    assert words.feed(b"mail@") == (b"mail", [])
    assert words.rest() == b"@"


# It ends the processes that it started

DOUBLE_FORKED = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "4305"])
    os._exit(0)
os.wait()
os.write(1, b"begun")
os.execvp("sleep", ["sleep", "4306"])
"""

COMMANDS = {
    "plain": ["sh", "-c", "printf begun; exec sleep 4301"],
    "child": ["sh", "-c", "printf begun; sleep 4302; echo never"],
    "many": ["sh", "-c", "for i in 1 2 3 4 5; do sleep 430$i & done; printf begun; wait"],
    "pipeline": ["sh", "-c", "printf begun; sleep 4307 | sleep 4308 | cat"],
    "session": ["sh", "-c", "setsid sleep 4304 & printf begun; wait"],
    "double-forked": [sys.executable, "-c", DOUBLE_FORKED],
    "stopped": ["sh", "-c", "sleep 4310 & printf begun; kill -STOP $$; wait"],
    "chatty": ["sh", "-c", "sleep 4311 & printf begun; yes"],
    "clean-environment": [
        "sh",
        "-c",
        "exec env -i ATLCTL_TEST_ID=$ATLCTL_TEST_ID /bin/sh -c 'setsid sleep 4309 & printf begun; wait'",
    ],
}


def begin(start: Start, text: str, argv: list[str], **options: Any) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Start a command and wait until its processes exist. Returns the words after S."""
    process = start(text, MARK, *argv, **options)
    said = word(process)
    assert said[0] == "S"
    assert process.stdout is not None
    assert process.stdout.readline().decode().startswith(MARK)
    if text == guard.INPUT:
        ask(process, "\n")
    assert process.stdout.read(5) == b"begun"
    # Not the shell that has the name in its arguments.
    assert wait_until(lambda: any(command.startswith(("sleep 43", "yes")) for command in left()))
    return process, said[1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_client_that_is_gone(start: Start, name: str) -> None:
    process, _ = begin(start, guard.GUARD, COMMANDS[name])
    hang_up(process)
    assert wait_until(lambda: not left() and not wrappers()), (left(), wrappers())
    assert wait_until(lambda: not proc.named("tr ") and not proc.named("sleep .1"))


def test_a_gone_client_with_full_pipes(start: Start) -> None:
    """There are no readers any more: processes with pending output must not hang."""
    process, _ = begin(start, guard.GUARD, ["sh", "-c", "sleep 4312 & printf begun; yes >&2"])
    time.sleep(0.2)
    hang_up(process)
    assert wait_until(lambda: not left() and not wrappers()), (left(), wrappers())


@pytest.mark.parametrize("name", COMMANDS)
def test_an_end_that_was_asked_for_is_proven(start: Start, name: str) -> None:
    process, _ = begin(start, guard.GUARD, COMMANDS[name])
    begun = time.monotonic()
    ask(process, "300\n")
    said = {word(process)[0], word(process)[0]}
    assert said == {"X", "G"}
    assert left() == []
    assert within(time.monotonic() - begun, 20)
    hang_up(process)
    assert wait_until(lambda: not wrappers())


@pytest.mark.parametrize("tools", [("grep", "tr"), ("tr",)], ids=" ".join)
@pytest.mark.parametrize("name", ["sleep", "a) S 1 (b", "a) Z 1\nb", "\n"], ids=repr)
def test_what_left_its_session_is_found_whatever_its_name_and_the_image_tools(
    start: Start, tmp_path: Path, name: str, tools: Sequence[str]
) -> None:
    for program in ("sh", "sleep", "setsid", *tools):
        found = find_program(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    if name != "sleep":
        (tmp_path / name).symlink_to(tmp_path / "sleep")
    script = '(setsid "$0" 4316 &); printf begun; sleep 4317'
    env = {**os.environ, "PATH": str(tmp_path)}
    process = start(guard.GUARD, MARK, "sh", "-c", script, str(tmp_path / name), env=env)
    assert word(process)[0] == "S"
    assert wait_until(lambda: proc.named(f"{tmp_path / name} 4316"))
    ask(process, "300\n")
    assert {word(process)[0], word(process)[0]} == {"X", "G"}
    assert not proc.named(f"{tmp_path / name} 4316")
    assert left() == []


def test_where_no_process_can_be_started_to_look_nothing_is_said_to_be_gone(start: Start, tmp_path: Path) -> None:
    real = find_program("grep")
    (tmp_path / "grep").write_text(f'#!/bin/sh\n[ -e {tmp_path}/room ] && exec {real} "$@"\nexit 2\n')
    (tmp_path / "grep").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process, (pid, began) = begin(start, guard.GUARD, ["sh", "-c", "printf begun; sleep 4318"], env=env)
    look = start(guard.LOOK, MARK, pid, began, env=env)
    assert word(look) == ["L", "1"]
    ask(process, "300\n")
    time.sleep(0.5)
    (tmp_path / "room").touch()
    assert {word(process)[0], word(process)[0]} == {"X", "G"}
    assert left() == []


def test_what_is_deaf_is_killed_after_the_grace(start: Start) -> None:
    deaf = "(trap '' TERM; exec setsid sleep 4313) & trap '' TERM; sleep 0.1; printf begun; sleep 4314"
    process, _ = begin(start, guard.GUARD, ["sh", "-c", deaf])
    begun = time.monotonic()
    ask(process, "5\n")
    assert {word(process)[0], word(process)[0]} == {"X", "G"}
    assert (seconds := time.monotonic() - begun) >= 0.5
    assert within(seconds, 20)
    assert left() == []


def test_a_long_grace_ends_with_the_client(start: Start) -> None:
    process, _ = begin(start, guard.GUARD, ["sh", "-c", "trap '' TERM; printf begun; sleep 4315; sleep 4315"])
    ask(process, "6000\n")
    time.sleep(0.3)
    assert left()
    hang_up(process)
    assert wait_until(lambda: not left() and not wrappers()), (left(), wrappers())


def test_a_handler_may_clean_up(start: Start, tmp_path: Path) -> None:
    script = "trap 'sleep 0.2; touch cleaned; exit 7' TERM; printf begun; sleep 4316 & wait"
    process, _ = begin(start, guard.GUARD, ["sh", "-c", f"cd {tmp_path}; {script}"])
    ask(process, "50\n")
    said = [word(process), word(process)]
    assert ending(" ".join(next(text for text in said if text[0] == "X")[1:])) == Ending(7, None)
    assert (tmp_path / "cleaned").exists()


def test_a_script_does_not_go_on(start: Start, tmp_path: Path) -> None:
    script = "printf begun; sleep 4317; touch went-on; sleep 4317"
    for _ in range(5):
        process, _ = begin(start, guard.GUARD, ["sh", "-c", f"cd {tmp_path}; {script}"])
        ask(process, "50\n")
        said = [word(process), word(process)]
        assert ending(" ".join(next(text for text in said if text[0] == "X")[1:])) == Ending(143, 15)
    assert not (tmp_path / "went-on").exists()


# The separate watcher


@pytest.mark.parametrize("name", COMMANDS)
def test_a_watcher_beside_ends_what_another_exec_has_started(start: Start, name: str) -> None:
    _, (pid, began) = begin(start, guard.INPUT, COMMANDS[name])
    watcher = start(guard.WATCH, MARK, pid, began, "")
    assert word(watcher) == ["R"]
    hang_up(watcher)
    assert wait_until(lambda: not left() and not wrappers()), (left(), wrappers())


def test_an_end_that_is_asked_for_while_the_command_is_being_started(start: Start) -> None:
    """S was sent, and the shell of the script starts nothing more: after the report, no process appears."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # the reader of a message runs before its writer
    try:
        process = start(guard.GUARD, MARK, "sh", "-c", "sleep 4322 & exec sleep 4322")
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        assert word(process)[0] == "S"
        process.send_signal(signal.SIGSTOP)
    finally:
        os.sched_setaffinity(0, cpus)
    ask(process, "10\n")
    while word(process) != ["G"]:
        pass
    process.send_signal(signal.SIGCONT)
    assert not wait_until(left, 0.5)


def test_a_watcher_beside_goes_when_asked(start: Start) -> None:
    _, (pid, began) = begin(start, guard.INPUT, COMMANDS["plain"])
    watcher = start(guard.WATCH, MARK, pid, began, "")
    assert word(watcher) == ["R"]
    ask(watcher, "q\n")
    assert watcher.wait(30) == 0
    assert left()
    hang_up(start(guard.WATCH, MARK, pid, began, ""))
    assert wait_until(lambda: not left())


def test_a_watcher_ends_what_was_left_behind(start: Start) -> None:
    process = start(guard.GUARD, MARK, "sh", "-c", "sleep 4320 >/dev/null 2>&1 & exit 0")
    _, pid, began = word(process)
    process.wait(30)
    watcher = start(guard.WATCH, MARK, pid, began, "")
    ask(watcher, "10\n")
    assert [word(watcher), word(watcher)] == [["R"], ["G"]]
    assert left() == []


def test_a_watcher_leaves_strangers_alone(start: Start) -> None:
    """Even processes that reused the PID of an ended exec."""
    stranger = subprocess.Popen(["sleep", "4321"], start_new_session=True)
    try:
        watcher = start(guard.WATCH, MARK, str(stranger.pid), "1", "")
        ask(watcher, "0\n")
        assert [word(watcher), word(watcher)] == [["R"], ["G"]]
        hang_up(watcher)
        watcher.wait(30)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
