"""What every command shows, literally. `ATLCTL_UPDATE_GOLDEN=1 pytest tests/golden` writes the files anew.

Each file holds the command line, then what came on stdout, on stderr and as exit code; on a terminal, the screen.
Escape characters are written as `<ESC>`, and times, ids and folders of the run as fixed words of the same length.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.golden.entries import write_all
from tests.integration.local import Registry, registry
from tests.support import proc

DATA = Path(__file__).parent / "data"
UPDATE = "ATLCTL_UPDATE_GOLDEN" in os.environ

#: Where it is shown: width of the terminal or None for pipes, and the language.
FORMS: dict[str, tuple[int | None, str]] = {
    "pipe": (None, "C.UTF-8"),
    "tty80": (80, "C.UTF-8"),
    "tty40": (40, "C.UTF-8"),
    "zh-pipe": (None, "zh_CN.UTF-8"),
    "zh80": (80, "zh_CN.UTF-8"),
    "zh40": (40, "zh_CN.UTF-8"),
}
TABLE = ("pipe", "tty80", "tty40")
SAME = ("pipe", "tty80")
HELP = ("pipe", "tty40", "zh-pipe", "zh40")

WRITTEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "jobs": ("jobs", (*TABLE, "zh80")),
    "jobs-wide": ("jobs -o wide", ("pipe",)),
    "jobs-json": ("jobs -o json", ("pipe",)),
    "jobs-yaml": ("jobs -o yaml", ("pipe",)),
    "jobs-name": ("jobs -o name", SAME),
    "ps": ("ps train-8", (*TABLE, "zh80")),
    "ps-wide": ("ps train-8 -o wide", ("pipe",)),
    "ps-json": ("ps train-8 -o json", ("pipe",)),
    "ps-far": ("ps far", SAME),
    "ps-missing": ("ps nope", (*SAME, "zh80")),
    "ps-missing-json": ("ps nope -o json", ("pipe",)),
    "logs": ("logs train-7", (*TABLE, "zh80")),
    "logs-json": ("logs train-7 -o json", ("pipe",)),
    "logs-one": ("logs train-7 -w 1", SAME),
    "stop-ended": ("stop train-8", SAME),
    "rm-plan": ("local rm train-7 --dry-run", SAME),
    "rm-refused": ("local rm far --yes", SAME),
    "usage": ("exec --gathr ls", (*SAME, "zh80")),
    "unknown": ("exce", SAME),
    "version": ("--version", ("pipe",)),
    "completion": ("completion fish", ("pipe",)),
    "help": ("-h", HELP),
    "help-exec": ("exec -h", HELP),
    "help-local-run": ("local run -h", HELP),
    "help-stop": ("stop -h", ("pipe", "zh-pipe")),
    "help-smoke": ("smoke -h", ("pipe", "zh40")),
    "smoke-ended": ("smoke train-8", SAME),
    "smoke-usage": ("smoke train-8 --net-only --mount /data", SAME),
}

FAILED: dict[str, tuple[str, tuple[str, ...]]] = {
    "errors": ("errors train-8", (*TABLE, "zh80")),
    "errors-json": ("errors train-8 -o json", ("pipe",)),
    "errors-none": ("errors train-7", SAME),
}

#: One stream a worker: which of two pipes is read first is left to chance.
ONE_STREAM = "sh -c 'exec >&$((1 + RANK / 2)); echo out $((RANK / 2)); exit $((RANK / 2))'"
SAYS = "sh -c 'echo out $((RANK / 2)); echo err >&2; exit $((RANK / 2))'"
LIVING: dict[str, tuple[str, tuple[str, ...]]] = {
    "exec": (f"exec -j live -w 2 -- {ONE_STREAM}", SAME),
    "exec-several": ("exec -j live --all --batch 1 -- echo hi", (*SAME, "tty40")),
    "exec-failed": ("exec -j live --all --batch 1 -- no-such-program", SAME),
    "exec-gather": (f"exec -j live --all --gather -- {SAYS}", (*SAME, "zh80")),
    "exec-json": (f"exec -j live --all --batch 1 -o json -- {ONE_STREAM}", ("pipe",)),
    "exec-folder": (f"exec -j live --all --output-dir out -- {SAYS}", SAME),
    "exec-timeout": ("exec -j live --all --timeout 0.2 -- sleep 9", SAME),
    "exec-hint": ("exec -j live nvidia-smi --all", SAME),
    "ps-live-json": ("ps live -o json", ("pipe",)),
    "stop-plan": ("stop live --dry-run", (*TABLE, "zh80")),
    "stop-asked": ("stop live", ("pipe",)),
    "run-detached": ("local run --name run-1 --workers 2 --detach -- true", ("pipe",)),
    "run-foreground": ("local run --name run-2 --workers 1 -- echo hi", SAME),
    "run-failed": ("local run --name run-3 --workers 1 -- sh -c 'exit 3'", SAME),
    "run-refused": ("local run --name live --workers 1 -- true", SAME),
    "run-not-found": ("local run --name run-4 --workers 1 -- no-such-program", SAME),
}


@pytest.fixture(scope="module")
def written() -> Iterator[Registry]:
    with registry() as own:
        # Four days, four hours and some minutes ago: `4d4h` for most of an hour to come.
        write_all(own.state, time.time() - 100 * 3600 - 300)
        yield own


@pytest.fixture(scope="module")
def failed() -> Iterator[Registry]:
    with registry() as own:
        # The log's stamps must agree with the times in its summaries, which are of a fixed day.
        write_all(own.state, datetime(2026, 11, 20, 17, 45, tzinfo=UTC).timestamp())
        yield own


@pytest.fixture(scope="module")
def living() -> Iterator[Registry]:
    with registry() as own:
        own.start("live", 4)
        yield own


def cases(table: dict[str, tuple[str, tuple[str, ...]]]) -> list[tuple[str, str, str]]:
    return [(name, line, form) for name, (line, forms) in table.items() for form in forms]


@pytest.mark.parametrize(("name", "line", "form"), cases(WRITTEN), ids=lambda value: value if " " not in value else "")
def test_over_written_jobs(written: Registry, name: str, line: str, form: str) -> None:
    compare(name, form, show(written, line, form))


@pytest.mark.parametrize(("name", "line", "form"), cases(FAILED), ids=lambda value: value if " " not in value else "")
def test_over_a_failed_job(failed: Registry, name: str, line: str, form: str) -> None:
    compare(name, form, show(failed, line, form))


@pytest.mark.parametrize(("name", "line", "form"), cases(LIVING), ids=lambda value: value if " " not in value else "")
def test_over_a_living_job(living: Registry, name: str, line: str, form: str) -> None:
    compare(name, form, show(living, line, form))


@pytest.mark.parametrize("form", SAME)
def test_stop(living: Registry, form: str) -> None:
    name = living.start("stopped", 3)
    compare("stop", form, show(living, f"stop {name} --yes", form))
    assert proc.wait_until(lambda: not [p for p in living.running("supervisor") if f"/{name}" in p.command])
    compare("rm", form, show(living, f"local rm {name} --yes", form))


def test_stop_json(living: Registry) -> None:
    name = living.start("stopped", 3)
    compare("stop-json", "pipe", show(living, f"stop {name} --yes -o json", "pipe"))


def test_every_file_belongs_to_a_case() -> None:
    known = {f"{name}.{form}.txt" for table in (WRITTEN, FAILED, LIVING) for name, _, form in cases(table)}
    known |= {f"{name}.{form}.txt" for name in ("stop", "rm") for form in SAME} | {"stop-json.pipe.txt"}
    assert {path.name for path in DATA.iterdir()} == known


def show(jobs: Registry, line: str, form: str) -> str:
    columns, language = FORMS[form]
    for name in ("run-2", "run-3"):  # no note of the same job in another form
        shutil.rmtree(jobs.folder(name), ignore_errors=True)
    env = {"LANG": language, "LC_ALL": language, "COLUMNS": None}
    if columns is None:
        run = jobs.cli(*shlex.split(line), env=env)
        parts = f"--- stdout\n{run.stdout.decode()}--- stderr\n{run.stderr.decode()}--- exit {run.code}\n"
    else:
        run = jobs.cli(*shlex.split(line), env=env, tty=True, columns=columns)
        parts = f"--- screen\n{run.stdout.decode().replace(chr(13) + chr(10), chr(10))}--- exit {run.code}\n"
    return f"$ atlctl {line}\n" + _fixed(parts, jobs)


_VOLATILE: list[tuple[str, str]] = [
    (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "YYYY-MM-DDTHH:MM:SS.ffffffZ"),
    (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "YYYY-MM-DDTHH:MM:SSZ"),
    (r"(?!0{8})[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUUUUUUU-UUUU-UUUU-UUUU-UUUUUUUUUUUU"),
    (r'"pid": \d+', '"pid": PID'),
    (r'"host": "(?!gpu)[^"]*"', '"host": "HOST"'),
    (r"atlctl \d+\.\d+\.\d+\S*", "atlctl VERSION"),
]


def _fixed(text: str, jobs: Registry) -> str:
    text = text.replace("\x1b", "<ESC>").replace(str(jobs.home), "/HOME")
    for pattern, word in _VOLATILE:
        text = re.sub(pattern, word, text)
    return text


def compare(name: str, form: str, shown: str) -> None:
    path = DATA / f"{name}.{form}.txt"
    if UPDATE:
        path.write_text(shown)
    assert shown == path.read_text()
