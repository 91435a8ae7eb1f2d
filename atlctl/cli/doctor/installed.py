"""What is installed around `atlctl`: Python, the packages that it needs, programs that it can use, completion."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata

from atlctl import __version__
from atlctl.cli.completion.scripts import SCRIPTS
from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.installing import install_line

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]++)(?:\[[^\]]*\])?\s*+\(?([<>=!~0-9.,\s]*+)\)?\s*+")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)")
#: Where completion scripts of a shell are looked up, and where `completion --help` says to put one. zsh has no fixed
#: place: what its FPATH holds a child is not told.
_SCRIPTS = {
    "bash": (
        "~/.local/share/bash-completion/completions/atlctl",
        "/etc/bash_completion.d/atlctl",
        "/usr/share/bash-completion/completions/atlctl",
        "/usr/local/share/bash-completion/completions/atlctl",
    ),
    "fish": (
        "~/.config/fish/completions/atlctl.fish",
        "/etc/fish/completions/atlctl.fish",
        "/usr/share/fish/vendor_completions.d/atlctl.fish",
    ),
}


def check_python(report: Report, words: Words) -> None:
    """Which interpreter runs this."""
    version = platform.python_version()
    report.data["machine"]["python"] = {"version": version, "executable": sys.executable, "atlctl": __version__}
    report.ok("python", words("python_ok", version=version, path=sys.executable, atlctl=__version__))


def check_packages(report: Report, words: Words) -> None:
    """Whether the packages that are needed are of the versions that were asked for at the installation."""
    try:
        needed = metadata.requires("atlctl") or []
    except metadata.PackageNotFoundError:
        report.skip("packages", words("packages_unknown"))
        return
    found: dict[str, str | None] = {}
    wrong = []
    for requirement in needed:
        match = _REQUIREMENT.match(requirement)
        if match is None or ";" in requirement:  # an extra's
            continue
        name, bounds = match[1], match[2].strip()
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
        if found[name] is None or not fits(found[name] or "", bounds):
            wrong.append((name, bounds))
    report.data["machine"]["packages"] = found
    if wrong:
        names = ", ".join(f"{name} {found[name] or '-'} ({bounds})" for name, bounds in wrong)
        fix = install_line(*(f"{name}{''.join(bounds.split())}" for name, bounds in wrong))
        report.warn("packages", words("packages_wrong", names=names), fix)
    else:
        report.ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def fits(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds like `>=0.29,<0.30`; what is no plain comparison says nothing."""
    own = _numbers(version)
    compared = {
        ">=": own.__ge__,
        "<=": own.__le__,
        "<": own.__lt__,
        ">": own.__gt__,
        "!=": own.__ne__,
        "==": own.__eq__,
    }
    return all(compared[operator](_numbers(bound)) is not False for operator, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, without zeros at its end: 1.2.0rc1 is (1, 2)."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def check_programs(report: Report, words: Words) -> None:
    """What single commands can use, and nobody needs."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    there = {
        "py-spy": beside if os.path.exists(beside) else shutil.which("py-spy"),
        "torch": "torch" if importlib.util.find_spec("torch") is not None else None,
    }
    report.data["machine"]["programs"] = {name: bool(found) for name, found in there.items()}
    told = {"py-spy": words("program_pyspy"), "torch": words("program_torch")}
    absent = [name for name, found in there.items() if not found]
    if absent:
        text = words("programs_absent", names=", ".join(told[name] for name in absent))
        report.skip("programs", text, install_line(*absent))
    else:
        report.ok("programs", ", ".join(told.values()))


def check_completion(report: Report, words: Words, env: Mapping[str, str]) -> None:
    """Whether the shell's completion script is there and of this version, as far as its place can be told."""
    shell = os.path.basename(env.get("SHELL", ""))
    if shell not in _SCRIPTS:
        key = "completion_elsewhere" if shell in SCRIPTS else "completion_shell"
        report.skip("completion", words(key, name=shell), "atlctl completion --help")
        return
    places = [_expanded(path, env) for path in _SCRIPTS[shell]]
    path = next(filter(os.path.isfile, places), None)
    target = path or places[0]
    install = f"mkdir -p {shlex.quote(os.path.dirname(target))} && atlctl completion {shell} > {shlex.quote(target)}"
    if path is None:
        report.skip("completion", words("completion_none", name=shell), install)
    elif _text(path) != SCRIPTS[shell]:
        report.warn("completion", words("completion_old", path=path), install)
    else:
        report.ok("completion", f"{shell}: {path}")


def _expanded(path: str, env: Mapping[str, str]) -> str:
    data, config = env.get("XDG_DATA_HOME"), env.get("XDG_CONFIG_HOME")
    if data and path.startswith("~/.local/share/"):
        path = os.path.join(data, path.removeprefix("~/.local/share/"))
    elif config and path.startswith("~/.config/"):
        path = os.path.join(config, path.removeprefix("~/.config/"))
    return os.path.expanduser(path)


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None
