"""The destinations of `exec` output, byte for byte."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, objects, problem, registry

#: Everything that a renderer might change; no newline at the end.
BYTES = b"\x1b[31mred\x1b]0;title\x07 \r\nbad\xff\xfe \x00 \xc3(\n\xe4\xb8\xad\tlast"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.home.joinpath("bytes").write_bytes(BYTES)
        own.start("four", 4)
        yield own


def test_exactly_one_worker_selected_has_no_prefix_and_untouched_bytes(jobs: Registry) -> None:
    script = f"cat {jobs.home}/bytes; cat {jobs.home}/bytes >&2"
    assert jobs.exec("four", "-w", "3", "--", "sh", "-c", script) == (BYTES, BYTES, 0)


def test_several_have_a_prefix_on_pipes_too_without_colour_and_stderr_goes_to_stderr(jobs: Registry) -> None:
    run = jobs.exec("four", "--all", "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2")
    assert sorted(run.stdout.splitlines()) == [b"worker-%d: out %d" % (n, n) for n in range(4)]
    *lines, summary = run.stderr.splitlines()
    assert sorted(lines) == [b"worker-%d: err %d" % (n, n) for n in range(4)]
    assert summary == b"ok: worker-[0-3] (4)"
    assert run.code == 0


@pytest.mark.parametrize("option", [(), ("--raw",), ("--no-prefix",)])
def test_the_payload_of_each_line_is_exact_on_a_pipe(jobs: Registry, option: tuple[str, ...]) -> None:
    script = f"sleep 0.$((RANK * 3)); cat {jobs.home}/bytes"
    run = jobs.exec("four", "-w", "0-1", *option, "--", "sh", "-c", script)

    def block(worker: int) -> bytes:
        prefix = b"" if option == ("--no-prefix",) else b"worker-%d: " % worker
        return b"\n".join(prefix + line for line in BYTES.split(b"\n"))

    # The missing newline is added between two outputs, never at the end.
    assert run.stdout == block(0) + b"\n" + block(1)


def test_a_newline_is_added_only_between_workers(jobs: Registry) -> None:
    run = jobs.exec("four", "--all", "--", "sh", "-c", 'sleep 0.$RANK; printf "no newline $RANK"')
    assert run.stdout == b"\n".join(b"worker-%d: no newline %d" % (n, n) for n in range(4))


def test_no_prefix_keeps_lines_whole(jobs: Registry) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do printf 'worker %s ' $RANK; sleep 0.01; echo end $i; done"
    run = jobs.exec("four", "--all", "--no-prefix", "--", "sh", "-c", script)
    wanted = [f"worker {n} end {i}".encode() for n in range(4) for i in range(1, 10)]
    assert sorted(run.stdout.splitlines()) == wanted


def test_on_a_terminal_colours_pass_and_the_rest_is_made_visible(jobs: Registry) -> None:
    run = jobs.exec("four", "-w", "0", "--", "cat", f"{jobs.home}/bytes", tty=True)
    shown = "\x1b[31mred^[]0;title^G \x1b[0m\r\nbad\\xff\\xfe ^@ \\xc3(\r\n中\tlast"
    assert run.stdout.decode() == shown


def test_raw_passes_everything_on_a_terminal(jobs: Registry) -> None:
    run = jobs.exec("four", "-w", "0", "--raw", "--", "cat", f"{jobs.home}/bytes", tty=True)
    assert run.stdout == BYTES.replace(b"\n", b"\r\n")


def test_color_can_be_forced_and_refused(jobs: Registry) -> None:
    line = ("-w", "0,1", "--", "echo", "hi")
    assert jobs.exec("four", "--color", "always", *line).stdout.count(b"\x1b[38;5;") == 2
    assert jobs.exec("four", *line, env={"FORCE_COLOR": "1"}).stdout.count(b"\x1b[38;5;") == 2
    for words, env in ((("--color", "never"), {"FORCE_COLOR": "1"}), ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"})):
        assert b"\x1b" not in jobs.exec("four", *words, *line, env=env).stdout
    assert b"\x1b" not in jobs.exec("four", *line, tty=True, env={"NO_COLOR": "1"}).stdout


def test_quiet_takes_the_summary_away_and_nothing_else(jobs: Registry) -> None:
    run = jobs.exec("four", "-q", "-w", "0,1", "--", "sh", "-c", "echo err >&2; exit 4")
    assert sorted(run.stderr.splitlines()) == [b"worker-0: err", b"worker-1: err"]
    assert run.code == 4


# --gather


def test_gather_folds_equal_outputs_and_shows_the_difference(jobs: Registry) -> None:
    script = 'echo same; [ "$RANK" = 2 ] && echo odd || echo even; [ "$RANK" != 3 ] || exit 5'
    run = jobs.exec("four", "--all", "--gather", "--", "sh", "-c", script)
    assert run.stdout.decode() == (
        "worker-[0-1] (2) ok\nsame\neven\nworker-2 (1) ok\nsame\nodd\nworker-3 (1) exit 5\nsame\neven\n"
    )
    assert run.stderr.decode().splitlines() == ["ok: worker-[0-2] (3)", "exit 5: worker-3 (1)"]
    assert run.code == 5


def test_gather_shows_the_diff_against_a_majority(jobs: Registry) -> None:
    script = 'echo same; [ "$RANK" = 2 ] && echo odd || echo even'
    run = jobs.exec("four", "--all", "--gather", "--", "sh", "-c", script)
    assert run.stdout.decode() == (
        "worker-[0-1,3] (3) ok\nsame\neven\n"
        "worker-2 (1) ok\nsame\nodd\n"
        "diff of worker-[0-1,3] (3) and worker-2 (1)\n"
        "--- worker-[0-1,3] (3)\n+++ worker-2 (1)\n@@ -1,2 +1,2 @@\n same\n-even\n+odd\n"
    )


def test_gather_of_all_alike_is_one_block(jobs: Registry) -> None:
    assert jobs.exec("four", "--all", "--gather", "echo", "hi").stdout == b"worker-[0-3] (4) ok\nhi\n"


# --output-dir


def test_a_folder_gets_one_file_for_each_stream_for_its_owner_alone(jobs: Registry) -> None:
    script = f'cat {jobs.home}/bytes; [ "$RANK" = 1 ] && echo err >&2; exit 0'
    run = jobs.exec("four", "-w", "0-2", "--output-dir", "out", "--", "sh", "-c", script)
    assert (run.stdout, run.stderr, run.code) == (b"", b"ok: worker-[0-2] (3)\n", 0)
    files = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert files == {**{f"worker-{n}.out": BYTES for n in range(3)}, "worker-1.err": b"err\n"}
    assert stat.S_IMODE(Path("out").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path("out").iterdir()} == {0o600}


def test_a_folder_that_is_used_again_holds_the_new_run_only(jobs: Registry) -> None:
    jobs.exec("four", "--all", "--output-dir", "out", "--", "sh", "-c", "echo old; echo old >&2")
    jobs.exec("four", "-w", "0-1", "--output-dir", "out", "--", "echo", "new")
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == {
        "worker-0.out": b"new\n",
        "worker-1.out": b"new\n",
        **{f"worker-{n}.{kind}": b"old\n" for n in (2, 3) for kind in ("out", "err")},
    }


# -o json


def test_json_is_lines_one_outcome_for_each_worker_and_the_summary_last(jobs: Registry) -> None:
    script = "echo out $RANK; echo err $RANK >&2; exit $((RANK % 2))"
    run = jobs.exec("four", "--all", "-o", "json", "--", "sh", "-c", script)
    found = objects(run.stdout)
    assert found[-1] == {
        "type": "summary",
        "status": "partial",
        "exit_code": 1,
        "counts": {"ok": 2, "failed": 2, "failed_to_start": 0, "timeout": 0, "lost": 0, "cancelled": 0},
    }
    outcomes = [item for item in found if item["type"] == "outcome"]
    assert sorted((item["worker"], item["outcome"], item["exit_code"], item["signal"]) for item in outcomes) == [
        (f"worker-{n}", "exited", n % 2, None) for n in range(4)
    ]
    lines = [item for item in found if item["type"] == "output"]
    assert sorted((item["worker"], item["stream"], item["data"]) for item in lines) == sorted(
        (f"worker-{n}", stream, f"{word} {n}\n")
        for n in range(4)
        for stream, word in (("stdout", "out"), ("stderr", "err"))
    )
    assert all(item["time"].endswith("Z") for item in lines)
    assert run.code == 1


def test_json_is_lossless_and_harmless(jobs: Registry) -> None:
    run = jobs.exec("four", "-w", "0", "-o", "json", "--", "cat", f"{jobs.home}/bytes")
    found = [item for item in objects(run.stdout) if item["type"] == "output"]
    data = b"".join(item["data"].encode() if "data" in item else base64.b64decode(item["data_b64"]) for item in found)
    assert data == BYTES
    assert not any(byte < 0x20 and byte != 0x0A for byte in run.stdout)
    assert not any(char in run.stdout.decode() for char in "\x7f\x9b\u202e\u2028")


@pytest.mark.parametrize(
    ("words", "options", "outcome", "code", "status"),
    [
        (("true",), (), "exited", 0, "success"),
        (("no-such-thing",), (), "failed_to_start", 127, "error"),
        (("sleep", "991"), ("--timeout", "0.2"), "timeout", 124, "error"),
    ],
)
def test_json_tells_every_kind_of_outcome(
    jobs: Registry, words: tuple[str, ...], options: tuple[str, ...], outcome: str, code: int, status: str
) -> None:
    run = jobs.exec("four", "--all", "-o", "json", *options, *words)
    found = objects(run.stdout)
    assert [item["outcome"] for item in found if item["type"] == "outcome"] == [outcome] * 4
    assert (found[-1]["type"], found[-1]["status"], found[-1]["exit_code"]) == ("summary", status, code)
    assert run.code == code


def test_json_of_a_job_that_is_not_there_is_one_error_document(jobs: Registry) -> None:
    run = jobs.exec("nope", "--all", "-o", "json", "true")
    document = json.loads(run.stdout)
    assert (document["command"], document["status"], document["errors"][0]["kind"]) == (
        "exec",
        "error",
        "nothing_matched",
    )
    assert document["errors"][0]["exit_code"] == run.code == 3
    problem(run.stderr)


def test_stdout_and_stderr_on_one_pipe_keep_their_order(jobs: Registry) -> None:
    reading, writing = os.pipe()
    script = "for i in 1 2 3; do echo out $i; sleep 0.05; echo err $i >&2; sleep 0.05; done"
    with jobs.popen("exec", "-j", "four", "-w", "0", "--", "sh", "-c", script, stdout=writing, stderr=writing):
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            shown = pipe.read()
    assert shown == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
