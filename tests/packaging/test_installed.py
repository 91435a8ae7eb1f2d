"""The wheel in a fresh environment with an empty home: the program, its man pages, TAB in three shells."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from atlctl import __version__
from tests.shell.shells import Shell
from tests.support.needs import needs

BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
SHELLS = [
    "bash",
    pytest.param(
        "bash-completion",
        marks=pytest.mark.skipif(not BASH_COMPLETION.exists(), reason="bash-completion is not installed"),
    ),
    pytest.param("zsh", marks=needs("zsh")),
    pytest.param("fish", marks=needs("fish")),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, built: tuple[Path, Path]) -> Path:
    """A virtual environment with the wheel. What the wheel needs is lent by the one that runs the tests: no index."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-I", "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-cache-dir", built[1]], check=True)
    return folder


@pytest.fixture
def path(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{environment}/bin:{os.environ['PATH']}")


def run(*words: object, **env: str) -> str:
    """What a program prints that must succeed and complain of nothing."""
    result = subprocess.run([str(word) for word in words], env={**os.environ, **env}, capture_output=True, text=True)
    assert (result.stderr, result.returncode) == ("", 0)
    return result.stdout


@pytest.mark.usefixtures("path")
def test_the_program(environment: Path, tmp_path: Path) -> None:
    assert run("atlctl", "--version") == f"atlctl {__version__}\n"
    assert run("atlctl", "--help").startswith("Usage: atlctl [OPTIONS] COMMAND ...")
    place = run(environment / "bin/python", "-c", "import atlctl; print(atlctl.__file__)")
    assert place.startswith(str(environment))
    log = tmp_path / "a.log"
    log.write_text('Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad magic\n')
    assert "ValueError: bad magic" in run("atlctl", "errors", "--from", log)
    assert run("atlctl", "jobs", "-o", "name") == ""


@needs("man")
@pytest.mark.usefixtures("path")
def test_man_finds_its_pages_beside_the_program(environment: Path) -> None:
    assert run("man", "-w", "atlctl") == f"{environment}/share/man/man1/atlctl.1\n"
    page = run("man", "atlctl-exec", MANPAGER="cat", MANWIDTH="80")
    assert "atlctl exec" in page
    assert run("man", "-w", "-L", "zh_CN", "atlctl") == f"{environment}/share/man/zh_CN/man1/atlctl.1\n"


class Found(Shell):
    """A shell that was told where data lies, and not where the script is."""

    def __init__(self, shell: str, environment: Path) -> None:
        share = environment / "share"
        words, load = {
            # By the words of bash's manual, without the package that does it for all programs.
            "bash": (
                ["bash", "--norc", "--noprofile", "-i"],
                f"_load() {{ source {share}/bash-completion/completions/$1 && return 124; }}; complete -D -F _load",
            ),
            "bash-completion": (["bash", "--norc", "--noprofile", "-i"], f"source {BASH_COMPLETION}"),
            "zsh": (
                ["zsh", "-f", "-i"],
                f"fpath=({share}/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -D",
            ),
            "fish": (["fish", "-i"], "true"),
        }[shell]
        # Without it fish begins, on its first start, to read all man pages of the machine.
        Path(os.environ["XDG_DATA_HOME"], "fish/generated_completions").mkdir(parents=True)
        env = {**os.environ, "XDG_DATA_DIRS": f"{share}:/usr/share", "TERM": "xterm"}
        self.screen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, env)
        self.type(f"stty columns 200 rows 50; {load}; echo load''ed\r")
        self.expect("loaded")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.usefixtures("path")
def test_tab_finds_the_script(shell: str, environment: Path) -> None:
    opened = Found(shell, environment)
    try:
        opened.type("atlctl --vers\t\r")  # as it stands it is no option
        opened.expect(f"atlctl {__version__}")
    finally:
        opened.close()
