from __future__ import annotations

import re
import subprocess
import sys
import unicodedata

import pytest
from typer.main import get_command

from atlctl.cli import helptext, table
from atlctl.i18n import Message, translated
from tests.unit.cli import sample


def page_of(path):
    return next(page for page in table.pages(get_command(sample.app)) if page.path == path)


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("path", [[], ["ps"], ["exec"], ["local"], ["local", "run"]])
def test_help_everywhere(flag, path, capfd):
    assert sample.run(*path, flag) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("Usage: " + " ".join(["atlctl", *path]))
    usage, examples, options = (out.index(word) for word in ("Usage:", "Examples:", "Options:"))
    assert usage < examples < options
    assert "-h, --help" in out


@pytest.mark.parametrize("path", [[], ["local"]])
def test_a_group_alone_shows_its_help(path, capfd):
    assert sample.run(*path) == 0
    assert capfd.readouterr().out.startswith("Usage: atlctl")


def test_the_help_of_an_unfinished_line_wins(capfd):
    assert sample.run("completion", "-h") == 0
    assert capfd.readouterr().out.startswith("Usage: atlctl completion [OPTIONS] SHELL\n")


def test_exec_shows_where_its_options_end(capfd):
    assert sample.run("exec", "-h") == 0
    assert capfd.readouterr().out.startswith("Usage: atlctl exec [OPTIONS] [--] [CMD...]\n")


def test_words_after_exec_ask_for_no_help():
    assert sample.parse("exec", "ls", "-h")["cmd"] == ["ls", "-h"]


def test_chinese_help(monkeypatch, capfd):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert sample.run("ps", "-h") == 0
    out = capfd.readouterr().out
    assert out.startswith("用法：atlctl ps")
    assert out.index("用法：") < out.index("示例：") < out.index("选项：")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_keep_to_the_width(lang, width):
    page = page_of("")
    text = helptext.render(page.command, page.ctx, lang, width)
    body = text.split(translated(helptext.COMMANDS, lang))[1]
    for line in body.splitlines():
        cells = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)
        # A spelling that is longer than its column stands on a line of its own.
        assert cells <= width or line.strip().startswith("-"), line


def test_every_command_and_option_has_a_text():
    missing = []
    for page in table.pages():
        if not (page.command.summary and page.command.examples):
            missing.append(page.title)
        missing += [
            f"{page.title} {helptext.spelling(param)}"
            for param in page.command.get_params(page.ctx)
            if not param.hidden and not isinstance(helptext.help_of(param), Message)
        ]
    assert missing == []


def test_examples_are_the_same_commands_in_both_languages():
    for page in table.pages():
        english, chinese = page.command.examples, translated(page.command.examples, "zh")
        assert re.sub(r" *# .*", "", english) == re.sub(r" *# .*", "", chinese), page.title


def test_examples_are_valid_command_lines():
    """Every example line parses: no option in it is unknown."""
    import shlex

    from atlctl.cli.completion.complete import position

    data = table.completion_table()
    for page in table.pages():
        for line in page.command.examples.splitlines():
            for part in re.split(r"[|>]+", re.sub(r"'[^']*'", "X", line.partition("  #")[0])):
                words = shlex.split(part)
                if words[:1] != ["atlctl"]:
                    continue
                for end, word in enumerate(words):
                    here = position(data, words[1:end])
                    assert not here.lost, line
                    if word.startswith("--") and len(word) > 2 and not here.foreign and here.option is None and end:
                        assert word.partition("=")[0] in here.node["options"], line


def test_the_real_app_shows_help_without_loading_commands():
    code = (
        "import sys; sys.argv = ['atlctl', '-h']\n"
        "from atlctl.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as leave: assert leave.code == 0\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    heavy = {"kubernetes", "aiohttp", "asyncssh", "torch", "yaml", "asyncio", "rich", "pydantic", "ssl"}
    assert loaded & heavy == set()
    assert {name for name in loaded if name.startswith("atlctl.cli.commands.")} == set()
    assert "errors" in done.stdout
