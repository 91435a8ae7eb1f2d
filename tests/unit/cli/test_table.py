from __future__ import annotations

import os
import re
import subprocess

from atlctl.cli import table
from atlctl.cli.completion.scripts import FILES, SCRIPTS


def test_generated_files_are_up_to_date():
    """Regenerate with: python -m atlctl.cli.table --write"""
    assert table.stale() == []


def test_stale_files_are_found_and_written(isolated):
    assert set(table.stale(str(isolated))) == set(table.generated())
    assert set(table.write(str(isolated))) == set(table.generated())
    assert table.stale(str(isolated)) == []
    (isolated / "docs" / "en" / "commands" / "ps.md").write_text("old")
    assert table.write(str(isolated)) == ["docs/en/commands/ps.md"]


def test_completion_prints_the_packaged_scripts(capfdbinary):
    from atlctl.cli import app

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    for shell, name in FILES.items():
        assert app.run(["completion", shell]) == 0
        out, err = capfdbinary.readouterr()
        assert (out, err) == (SCRIPTS[shell].encode(), b"")
        with open(os.path.join(root, "completions", name), "rb") as file:
            assert file.read() == out


def test_an_unknown_shell_is_refused(capfd):
    from atlctl.cli import app

    assert app.run(["completion", "tcsh"]) == 2
    assert capfd.readouterr().err == "error: invalid value 'tcsh' for 'SHELL': one of bash, zsh, fish is needed\n"


def test_no_script_evaluates_an_answer():
    for shell, text in SCRIPTS.items():
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert "eval" not in code, shell
    # compgen gets the user's input, and its option -W, which would expand an answer, is not used.
    bash = SCRIPTS["bash"]
    assert bash.count("compgen ") == bash.count('compgen "$2" -- "$current"') == 1
    kinds = re.findall(r"^ +.* __atlctl_else (.*) ;;$", bash, re.MULTILINE)
    assert kinds == ["default -f", "dirnames -d", "filenames -c"]
    subprocess.run(["bash", "-n"], input=SCRIPTS["bash"].encode(), check=True)
