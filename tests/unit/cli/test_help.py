from __future__ import annotations

import re
import subprocess
import sys
import unicodedata

import pytest
from typer.main import get_command

from atlctl.cli import app, helptext, table
from atlctl.i18n import Message, translated
from atlctl.render.width import display_width
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


ROOT = next(table.pages())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_commands_are_grouped_and_have_one_line_each(lang):
    text = helptext.render(ROOT.command, ROOT.ctx, lang, 79)
    starts = [
        text.index(f"\n{translated(Message(name), lang)}\n")
        for name in ("Look:", "Diagnose:", "Act:", "Jobs:", "Tool:")
    ]
    assert starts == sorted(starts)
    lines = text[starts[0] :].split(f"\n{translated(helptext.OPTIONS, lang)}\n")[0].splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert named == list(ROOT.command.table)


def test_the_options_of_every_command_have_their_own_page(capfd):
    assert app.run(["ps", "-h"]) == 0
    own = capfd.readouterr().out
    assert "--kubeconfig" not in own
    assert own.endswith("  Options of every command: atlctl options\n")
    assert app.run(["options"]) == 0
    shared = capfd.readouterr().out
    names = {helptext.key_of(param) for param in ROOT.command.params} - {"version"}
    assert names == set(re.findall(r"^ .*--([a-z]+)", shared, re.MULTILINE))


@pytest.mark.parametrize("path", [[], ["errors"], ["exec"], ["local"], ["local", "run"], ["workers"], ["help"]])
def test_help_of_a_command_is_its_help_page(path, capfd):
    assert app.run([*path, "--help"]) == 0
    page = capfd.readouterr().out
    assert app.run(["help", *path]) == 0
    assert capfd.readouterr().out == page


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["help", "exec", "touch", "F"], "'atlctl exec' has no commands", "atlctl exec -h"),
        (["help", "pss"], "no such command 'atlctl pss'", "did you mean 'atlctl ps'?"),
        (["help", "local", "rn"], "no such command 'atlctl local rn'", "did you mean 'atlctl local run'?"),
    ],
)
def test_help_of_what_there_is_not(words, error, hint, capfd):
    assert app.run(words) == 2
    assert capfd.readouterr() == ("", f"error: {error}\nhint: {hint}\n")


@pytest.mark.parametrize("argv", [["ps", "-h"], ["options"], ["help", "exec"], []])
def test_colours_are_beside_the_text(argv, capfd):
    app.run([*argv, "--color=always"] if argv else ["--color", "always", "-h"])
    coloured = capfd.readouterr().out
    assert "\x1b[1mOptions" in coloured
    app.run(argv)  # last: the colours would stay for the tests behind this one
    plain = capfd.readouterr().out
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_keep_to_the_width(lang, width):
    page = page_of("")
    text = helptext.render(page.command, page.ctx, lang, width)
    body = text.split(translated(helptext.COMMANDS, lang))[1]
    for line in body.splitlines():
        cells = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)
        # Options longer than their column are on a separate line.
        assert cells <= width or line.strip().startswith("-"), line


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_pages_fit_a_terminal_of_80_columns(lang):
    for page in table.pages():
        for line in helptext.render(page.command, page.ctx, lang, 79).splitlines():
            assert display_width(line) <= 79 or line.strip().startswith("-"), page.path


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
    """Every example can be parsed: it contains no unknown option."""
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
