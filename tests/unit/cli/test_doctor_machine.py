"""How `doctor` judges this machine, whatever its faults."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atlctl.cli import hosts, runtime, target
from atlctl.cli.completion.scripts import SCRIPTS
from atlctl.cli.doctor import machine
from atlctl.cli.doctor.report import DoctorReport
from atlctl.cli.installing import install_line
from atlctl.cli.target import Choice, choice
from atlctl.jobs.errors import UsageError
from atlctl.render.streams import Streams


def made() -> DoctorReport:
    return DoctorReport(data={"machine": {}})


def status(report: DoctorReport) -> dict[str, str]:
    return {check.name: str(check.status) for check in report.checks}


def text(report: DoctorReport, name: str) -> str:
    (found,) = [check.text for check in report.checks if check.name == name]
    return found


def fix(report: DoctorReport) -> str | None:
    (check,) = report.checks
    return check.fix


@pytest.mark.parametrize(
    ("asked", "env", "chosen"),
    [
        ({"backend": "local"}, {"ATLCTL_BACKEND": "kubernetes"}, Choice("local", "option", "local")),
        ({"namespace": "x"}, {"ATLCTL_BACKEND": "local"}, Choice("kubernetes", "cluster_option", "--namespace")),
        ({}, {"ATLCTL_BACKEND": "kubernetes"}, Choice("kubernetes", "variable", "kubernetes")),
        ({}, {"ATLCTL_WORKER": "worker-1", "KUBECONFIG": __file__}, Choice("local", "worker", "worker-1")),
        ({}, {"KUBECONFIG": __file__}, Choice("kubernetes", "configured")),
        ({}, {"KUBECONFIG": __file__, "ATLCTL_JOB": "not-here"}, Choice("kubernetes", "configured")),
        ({}, {}, Choice("local", "no_cluster")),
        ({"hostfile": "x"}, {"ATLCTL_BACKEND": "local"}, Choice("ssh", "hostfile", "x")),
        ({"backend": "ssh"}, {}, Choice("ssh", "option", "ssh")),
        ({}, {"PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "2"}, Choice("ssh", "hosts")),
    ],
)
def test_why_a_backend_is_chosen(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], env: dict[str, str], chosen: Choice
) -> None:
    monkeypatch.setattr(target, "context", lambda: runtime.Context(**asked))  # type: ignore[arg-type]
    hosts.peers.cache_clear()
    hosts.configured.cache_clear()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert choice() == chosen
    report = made()
    machine.check_backend(report, chosen)
    assert text(report, "backend").startswith(f"{chosen.name}: ")
    assert report.data["backend"]["why"] == chosen.why


def test_a_job_on_hosts_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, isolated: Path) -> None:
    monkeypatch.setattr(target, "context", runtime.Context)
    hosts.configured.cache_clear()
    assert choice("lab") == Choice("local", "no_cluster")
    config = isolated / ".config/atlctl/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[ssh.jobs.lab]\nhosts = ["gpu1"]\n')
    hosts.configured.cache_clear()
    assert choice("lab") == Choice("ssh", "ssh_job", "lab")
    assert choice() == Choice("ssh", "hosts")
    monkeypatch.setenv("KUBECONFIG", __file__)
    assert choice("lab") == Choice("ssh", "ssh_job", "lab")
    assert choice("other") == Choice("kubernetes", "configured")
    record = isolated / ".local/state/atlctl/ssh/started/job.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert choice("started") == Choice("ssh", "ssh_job", "started")
    assert choice("../ssh/started") == Choice("kubernetes", "configured")
    # In a worker started by `ssh run`.
    monkeypatch.setenv("ATLCTL_WORKER", "gpu1")
    monkeypatch.setenv("ATLCTL_JOB", "started")
    assert choice() == Choice("ssh", "worker", "gpu1")


@pytest.mark.parametrize(
    ("asked", "env"),
    [
        ({"backend": "local", "context": "x"}, {}),
        ({"backend": "kubernetes", "hostfile": "x"}, {}),
        ({"namespace": "ml", "hostfile": "x"}, {}),
        ({}, {"ATLCTL_BACKEND": "slurm"}),
    ],
)
def test_a_choice_that_is_wrong(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], env: dict[str, str]) -> None:
    monkeypatch.setattr(target, "context", lambda: runtime.Context(**asked))  # type: ignore[arg-type]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError):
        choice()


def state(path: object, *, needed: bool = True) -> DoctorReport:
    report = made()
    machine.check_state(report, {"ATLCTL_STATE_DIR": str(path)}, needed=needed)
    return report


def test_the_folder_for_state(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert text(state(missing), "state").startswith(f"{missing} can be made, ")
    assert not (tmp_path / "a").exists()
    missing.mkdir(0o700, parents=True)
    report = state(missing)
    assert text(report, "state").startswith(f"{missing} can be written, ")
    found = report.data["machine"]["state"]
    assert (found["path"], found["mode"], found["free_bytes"] > 0) == (str(missing), "0700", True)
    assert list(missing.iterdir()) == []


def test_a_folder_for_state_that_is_no_good(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    private = tmp_path / "private"
    private.mkdir(0o700)
    (private / "local").symlink_to(tmp_path)
    for path in (tmp_path / "file", tmp_path / "file" / "below", shared, private, "relative"):
        report = state(path)
        assert (status(report), report.exit_code) == ({"state": "fail"}, 1), path
    assert status(state(shared, needed=False)) == {"state": "warn"}


def test_a_folder_that_others_may_look_into(tmp_path: Path) -> None:
    folder = tmp_path / "my state"
    folder.mkdir()
    folder.chmod(0o750)
    report = state(folder)
    assert (status(report), report.exit_code) == ({"state": "warn"}, 0)
    assert fix(report) == f"chmod 700 '{folder}'"
    folder.chmod(0o700)
    assert status(state(folder)) == {"state": "ok"}


@pytest.mark.parametrize("home", ["x/y", "x", "."])
def test_a_relative_home_is_looked_at_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """`dirname` of its first folder is empty, and so is that of an empty path."""
    monkeypatch.chdir(tmp_path)
    assert machine._room(os.path.join(home, ".local", "state", "atlctl")) > 0


def test_a_disk_with_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=10**9, f_bavail=50, f_frsize=1 << 20))
    report = state(tmp_path / "new")
    assert (status(report), text(report, "state")) == ({"state": "warn"}, f"{tmp_path}/new: only 50 MiB free")


def test_a_folder_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root can write everywhere, so the system's answers are mocked."""
    full = SimpleNamespace(f_blocks=1000, f_bavail=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        assert text(state(tmp_path / "new"), "state").startswith("no space left on the disk of ")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert text(state(tmp_path / "new"), "state") == f"{tmp_path}/new cannot be written"


def test_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(content: str) -> DoctorReport:
        file = tmp_path / "atlctl" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        report = made()
        machine.check_settings(report, {"XDG_CONFIG_HOME": str(tmp_path)})
        return report

    report = made()
    machine.check_settings(report, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert text(report, "settings") == "no configuration file"
    assert text(settings(""), "settings") == f"no mistake in {tmp_path}/atlctl/config.toml"
    assert settings("").data["machine"]["settings"] == [f"{tmp_path}/atlctl/config.toml"]
    assert status(settings("[wrong]\n")) == {"settings": "fail"}
    assert status(settings('[errors]\nsignatures = ["absent.toml"]\n')) == {"settings": "warn"}
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert text(settings(""), "settings") == "the working folder: No such file or directory"
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("tty", "env", "flag", "found", "says"),
    [
        (False, {}, "auto", "ok", "stdout is not a terminal: plain text, nothing is cut"),
        (
            False,
            {"FORCE_COLOR": "1"},
            "auto",
            "ok",
            "stdout is not a terminal: nothing is cut; with colours (FORCE_COLOR)",
        ),
        (True, {}, "auto", "warn", "TERM is dumb or not set; with colours"),
        (True, {"TERM": "dumb"}, "auto", "warn", "TERM is dumb or not set; without colours (TERM)"),
        (True, {"TERM": "xterm"}, "auto", "ok", "80 cells, TERM xterm, with colours"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "auto", "ok", "80 cells, TERM xterm, without colours (NO_COLOR)"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "always", "ok", "80 cells, TERM xterm, with colours (--color)"),
    ],
)
def test_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tty: bool, env: dict[str, str], flag: Any, found: str, says: str
) -> None:
    monkeypatch.setattr(machine, "_terminal_rows", lambda: None)
    report = made()
    machine.check_terminal(report, env, Streams(stdout_tty=tty), flag)
    assert (status(report), text(report, "terminal")) == ({"terminal": found}, says)
    assert report.data["machine"]["terminal"]["color"] == ("with colours" in says)


@pytest.mark.parametrize(
    ("env", "found", "language", "by"),
    [
        ({"LANG": "C.UTF-8"}, "ok", "en", "LANG"),
        ({"LC_ALL": "zh_CN.utf8", "LANG": "C"}, "ok", "zh", "LC_ALL"),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.UTF-8"}, "ok", "en", None),
        ({"LC_CTYPE": "C.UTF-8", "LC_MESSAGES": "zh_TW"}, "ok", "zh", "LC_MESSAGES"),
        ({"LC_ALL": "C", "LANG": "C.UTF-8"}, "warn", "en", "LC_ALL"),
        ({"LANG": "zh_CN.GB18030"}, "warn", "zh", "LANG"),
        ({}, "warn", "en", None),
    ],
)
def test_the_locale(env: dict[str, str], found: str, language: str, by: str | None) -> None:
    report = made()
    machine.check_locale(report, env)
    assert status(report) == {"locale": found}
    told = report.data["machine"]["locale"]
    assert (told["language"], told["language_by"]) == (language, by)
    assert ("Chinese (" in text(report, "locale")) == (language == "zh")
    if found == "warn":  # a fix keeps the language
        assert fix(report) == f"export LC_ALL={'zh_CN' if language == 'zh' else 'C'}.UTF-8"


def test_what_python_has_set_by_itself_is_no_locale(tmp_path: Path) -> None:
    beginning = tmp_path / "environ"
    env = {"LC_CTYPE": "C.UTF-8", "LANG": "C"}
    beginning.write_bytes(b"LANG=C\0HOME=/LC_CTYPE=x\0")
    assert machine.given_environment(env, str(beginning)) == {"LANG": "C"}
    beginning.write_bytes(b"LANG=C\0LC_CTYPE=C.UTF-8\0")
    assert machine.given_environment(env, str(beginning)) == env
    assert machine.given_environment(env, str(tmp_path / "absent")) == env


@pytest.mark.parametrize(
    ("hard", "found", "most"),
    [(resource.RLIM_INFINITY, "ok", None), (1 << 20, "ok", 262_032), (1024, "warn", 144), (64, "warn", 0)],
)
def test_the_limit_on_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, found: str, most: int | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, hard))
    report = made()
    machine.check_descriptors(report)
    assert status(report) == {"open-files": found}
    assert report.data["machine"]["open_files"]["most_workers"] == most
    if found == "warn":
        assert str(fix(report)).endswith(f"--batch {max(1, most or 0)}")


def test_a_clock_that_lags_behind_the_installation() -> None:
    installation = os.stat(machine.__file__).st_mtime
    for now, found in ((installation + 5, "ok"), (installation - 3600, "ok"), (installation - 90_000, "warn")):
        report = made()
        machine.check_clock(report, now)
        assert status(report) == {"clock": found}


def test_who_has_no_name_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    report = made()
    machine.check_user(report)
    assert text(report, "user") == "uid 4000000000, which has no name here"


# Installed packages


@pytest.mark.parametrize(
    ("version", "bounds", "good"),
    [
        ("0.29.2", ">=0.29,<0.30", True),
        ("0.30.0", ">=0.29,<0.30", False),
        ("0.30.0rc1", ">=0.29,<0.30", False),
        ("13.6", ">=13.7", False),
        ("6", ">=6.0", True),
        ("6.0.post1", ">=6", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("2.13.1", "!=2.13.1", False),
        ("1.2", "", True),
        ("1.2", "~=1.1", True),
        ("odd", ">=1", False),
    ],
)
def test_versions_within_bounds(version: str, bounds: str, good: bool) -> None:
    assert machine.fits(version, bounds) is good


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"typer": "0.31.0", "rich": "15.0.0", "asyncssh": "2.18.0"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    needed = ["typer<0.30,>=0.29", "rich>=13.7", "asyncssh[bcrypt]>=2.18", "gone>=1", 'torch>=2.2; extra == "smoke"']
    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    monkeypatch.setattr(metadata, "version", version)
    report = made()
    machine.check_packages(report)
    assert status(report) == {"packages": "warn"}
    assert text(report, "packages").endswith(": typer 0.31.0 (<0.30,>=0.29), gone - (>=1)")
    assert fix(report) == install_line("typer<0.30,>=0.29", "gone>=1")
    assert report.data["machine"]["packages"] == {**there, "gone": None}


def test_the_packages_of_this_checkout_fit() -> None:
    report = made()
    machine.check_packages(report)
    assert status(report) == {"packages": "ok"}
    assert len(report.data["machine"]["packages"]) >= 8


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    report = made()
    machine.check_packages(report)
    assert status(report) == {"packages": "skipped"}


def test_programs_that_nobody_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/python/bin/python3")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = made()
    machine.check_programs(report)
    assert (status(report), report.exit_code) == ({"programs": "skipped"}, 0)
    assert fix(report) == install_line("py-spy", "torch")
    assert report.data["machine"]["programs"] == {"py-spy": False, "torch": False}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_completion_script_that_is_there_old_or_absent(shell: str, tmp_path: Path) -> None:
    env = {"SHELL": f"/bin/{shell}", "XDG_DATA_HOME": str(tmp_path / "my data"), "XDG_CONFIG_HOME": str(tmp_path / "c")}

    def checked() -> DoctorReport:
        report = made()
        machine.check_completion(report, env)
        return report

    report = checked()
    assert status(report) == {"completion": "skipped"}
    place = (
        tmp_path
        / {"bash": "my data/bash-completion/completions/atlctl", "fish": "c/fish/completions/atlctl.fish"}[shell]
    )
    assert str(fix(report)).replace("'", "").endswith(f"atlctl completion {shell} > {place}")
    place.parent.mkdir(parents=True)
    place.write_text(SCRIPTS[shell])
    assert status(checked()) == {"completion": "ok"}
    place.write_text(SCRIPTS[shell] + "# old")
    assert status(checked()) == {"completion": "warn"}


@pytest.mark.parametrize("shell", ["/bin/zsh", "/bin/dash", ""])
def test_a_shell_whose_scripts_are_nobody_knows_where(shell: str) -> None:
    report = made()
    machine.check_completion(report, {"SHELL": shell})
    assert status(report) == {"completion": "skipped"}
