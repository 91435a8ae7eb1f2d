"""The command that puts a package beside this very atlctl, for hints."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys

from atlctl.i18n import Message


def install_line(*requirements: str) -> str:
    """What to type so that `requirements` are found here: with pip, or with uv where the environment has no pip."""
    words = " ".join(map(shlex.quote, requirements))
    if sys.flags.no_site:  # the one executable file: its tree takes no more packages
        # atlctl itself comes from a checkout: no package index has it.
        return Message(
            "this one file takes no more packages; in a checkout: "
            "python3 -m venv ENV && ENV/bin/pip install . {packages}",
            packages=words,
        )
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(os.path.abspath(sys.executable))} {words}"
    return f"{shlex.quote(sys.executable)} -m pip install {words}"
