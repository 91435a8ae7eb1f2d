"""The output in Chinese: no English sentence of atlctl itself, and English for programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.cli.parser import Group
from atlctl.cli.table import pages
from tests.integration.local import Registry, registry
from tests.integration.terminal import Terminal

CHINESE = {"LC_ALL": "zh_CN.UTF-8", "LANG": "zh_CN.UTF-8"}
#: Command lines are shown unchanged. `-- …` is another command, and so is the text after a prefix.
_COMMAND = re.compile(
    r"(\$ )?atlctl [^；：，“”]*|'[^']*'|“[^”]*”|mkdir -p \S+|echo hello \| |kubectl logs [^）]*|worker server|"
    r"flight recorder|--\S+ [a-z]+\|\S+|uid \S+"
)
_SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;]? [a-z]{2,}")
#: A worker command that fails after a line of output.
FAILING = ("sh", "-c", "echo started; sleep 0.2; exit 3")
#: One run of each command. `TMP` is the test's folder.
EVERY = {
    "jobs": "jobs",
    "ps": "ps one",
    "logs": "logs one -w 9",
    "top": "top one --once",
    "events": "events one",
    "errors": "errors failed --ranks",
    "stacks": "stacks one",
    "slow": "slow one --net",
    "smoke": "smoke one --net-only",
    "record": "record failed --out TMP/recorded",
    "report": "report failed --out TMP/report",
    "exec": "exec -j one --all --gather -v -- true",
    "shell": "shell one",
    "cp": "cp -j one --all /etc/hostname :TMP/copied",
    "stop": "stop one --dry-run",
    "resume": "resume one",
    "run": "run --block nonsense -- true",
    "rerun": "rerun one",
    "release": "release one",
    "local run": "local run --name three --workers 2 -- true",
    "local rm": "local rm failed --dry-run",
    "ssh run": "ssh run --hostfile TMP/hosts --connect-timeout 5 -- true",
    "ssh rm": "ssh rm nope",
    "demo": "demo more",
    "use": "use",
    "doctor": "doctor",
    "notify": "notify team",
    "help": "help",
    "options": "options",
    "completion": "completion tcsh",
}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("one", 2)
        own.start("two", 2)
        own.start("failed", 2, *FAILING)
        own.until("failed", "Failed")
        yield own


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("frob", "错误：没有命令“atlctl frob”\n提示：参见：atlctl -h\n"),
        ("job", "错误：没有命令“atlctl job”\n提示：是否想输入“atlctl jobs”？\n"),
        ("ps --bogus", "错误：“atlctl ps”没有选项“--bogus”\n提示：是否想输入“--verbose”？\n"),
        ("ps one two", "错误：参数过多（two）\n提示：参见：atlctl ps -h\n"),
        ("ps -j", "错误：选项“-j”需要一个值\n提示：参见：atlctl ps -h\n"),
        ("top --timeout soon", "错误：“--timeout”的值“soon”无效：需要一个时长，如 10、1.5s、2m 或 1h\n"),
        ("-q", "错误：缺少命令\n提示：参见：atlctl -h\n"),
        ("ps", "错误：没有指定作业\n提示：请用 -j 指定一个：one、two；查看全部：atlctl jobs\n"),
        (
            "exec -j one ls",
            "错误：选择 one 的 2 个 worker 中的哪些？\n提示：请选择：--all，或用 -w 从 worker-[0-1] 中选择\n",
        ),
        ("exec -j one --all -- sh -c 'exit $RANK'", "成功：worker-0 (1)\n退出码 1：worker-1 (1)\n"),
        ("events one", "错误：后端“local”不保存事件\n提示：查看 worker 的输出：atlctl logs\n"),
        ("cp -j one --all :y /nope/x/y", "错误：目录 /nope/x 不存在\n提示：请先创建：mkdir -p /nope/x\n"),
    ],
    ids=lambda value: value.split("：")[0],
)
def test_messages_are_chinese(jobs: Registry, line: str, expected: str) -> None:
    run = jobs.cli(*shlex.split(line), env=CHINESE)
    assert run.stderr.decode() == expected
    assert english(run.stdout.decode()) == []


@pytest.mark.parametrize(
    "command", [page.path for page in pages() if page.path and not isinstance(page.command, Group)]
)
def test_every_command_is_chinese(jobs: Registry, tmp_path: Path, command: str) -> None:
    """Neither its output nor its help contains an English sentence."""
    tmp_path.joinpath("hosts").write_text("127.0.0.1:1\n")
    for line in (EVERY[command].replace("TMP", str(tmp_path)), f"{command} -h"):
        run = jobs.cli(*shlex.split(line), env=CHINESE, timeout=60)
        text = (run.stdout + run.stderr).decode()
        assert re.search("[一-龥]", text), run
        assert english(text) == []


def english(text: str) -> list[str]:
    return [line for line in text.splitlines() if _SENTENCE.search(_COMMAND.sub("", line))]


def test_english_is_seen() -> None:
    assert english("错误：no job is named\n提示：参见：atlctl ps -h\nworker-0  运行中") == ["错误：no job is named"]


def test_programs_read_english(jobs: Registry) -> None:
    for line in ("ps -o json", "ps one -o json", "exec --gathr ls -o json", "jobs -o yaml"):
        plain, chinese = (jobs.cli(*shlex.split(line), env=env) for env in (None, CHINESE))
        assert (chinese.stdout, chinese.code) == (plain.stdout, plain.code)


def test_the_question_takes_a_chinese_yes(jobs: Registry) -> None:
    name = jobs.start("three", 1)
    with Terminal("stop", name, env={**jobs.env, **CHINESE}) as terminal:
        terminal.wait_for("停止作业 three？[y/N] ".encode())
        terminal.type("是\r".encode())
        assert terminal.code() == 0
