"""The package follows the house rules, and each rule detects a violation."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import budget, rules, style
from tests.support.rules import Module

ROOT = Path(__file__).parents[2]
PACKAGE = rules.load(ROOT / "atlctl")
TESTS = rules.load(ROOT / "tests")

EACH_FILE = (
    rules.layers,
    rules.alone,
    rules.third_party,
    rules.prints,
    rules.swallowed,
    rules.evaluated,
    rules.untranslated,
    rules.too_long,
)


@pytest.mark.parametrize("rule", EACH_FILE, ids=lambda rule: rule.__name__)
def test_package_keeps(rule: Callable[[Module], list[str]]) -> None:
    assert [breach for module in PACKAGE for breach in rule(module)] == []


def test_package_is_seen() -> None:
    assert {"jobs.model", "backends.base", "fanout.outcome", "cli.demo_job.train"} <= {m.name for m in PACKAGE}


def test_imports_are_declared() -> None:
    assert rules.undeclared(PACKAGE, (ROOT / "pyproject.toml").read_text()) == []


def test_one_place_starts_the_event_loop() -> None:
    assert rules.event_loops(PACKAGE) == []


#: Remaining decisions that depend on a text, by module: none may be added, and removed ones leave the list.
DECIDED_BY_TEXT = {
    "backends.hosts.keys": 1,  # the library uses one exception for a passphrase and for a malformed key
}


def test_no_decision_hangs_on_the_text_of_a_message() -> None:
    found = {module.name: rules.decided_by_text(module) for module in PACKAGE}
    assert {name: len(breaches) for name, breaches in found.items() if breaches} == DECIDED_BY_TEXT, found


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    f()\nexcept OSError as error:\n    if 'gone' in str(error):\n        g()",
        "if 'gone' in error.message:\n    g()",
        "x = finding.evidence == 'no answer'",
        "x = error.message.startswith('no')",
        "x = error.hint.removeprefix('see: ')",
        "x = re.search('no', error.message)",
    ],
)
def test_decided_by_text_can_fail(text: str) -> None:
    assert breach(rules.decided_by_text, "cli.app", text)
    assert not breach(rules.decided_by_text, "diagnosis.reader", text)
    assert not breach(rules.decided_by_text, "cli.app", "x = f(error.message)\ny = 'no' in text\nz = str(x)")


@pytest.mark.parametrize("text", ["raise UsageError('not a file', hint)", "x = Lost(f'gone from {place}')"])
def test_untranslated_can_fail(text: str) -> None:
    assert breach(rules.untranslated, "jobs.config", text)
    assert not breach(rules.untranslated, "remote.cgroups", text)
    assert not breach(rules.untranslated, "jobs.config", "raise UsageError(Message('not a file'), f'atlctl ps {job}')")


def test_the_package_does_not_grow_unsaid() -> None:
    allowed = tomllib.loads(budget.FILE.read_text())
    counts = budget.counts(ROOT / "atlctl", PACKAGE)
    grown = {name: (count, allowed[name]) for name, count in counts.items() if count > allowed[name]}
    assert grown == {}, "(now, budget): see the head of tests/budget.toml"


def test_the_style_gets_no_worse() -> None:
    allowed = tomllib.loads(style.FILE.read_text())
    worse = {
        (area, name): (count, allowed[area].get(name, 0))
        for area, counts in style.counts(PACKAGE).items()
        for name, count in counts.items()
        if count > allowed[area].get(name, 0)
    }
    assert worse == {}, "(now, allowed): see the head of tests/style.toml, and write the other words"


@pytest.mark.parametrize(
    ("count", "clean", "breach"),
    [
        (budget.one_importer, {"a": "", "b": "import p.a", "c": "from p import a"}, {"a": "", "b": "from p import a"}),
        (
            budget.classes_twice,
            {"a": "class A: pass", "b": "class B: pass"},
            {"a": "class A: pass", "b": "class A: pass"},
        ),
        (
            budget.sentences_twice,
            {"a": "'no such file there'", "b": "'no such file here'"},
            {"a": "f'no answer from {x} there'", "b": "x = f'no answer from {y} there'"},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_budget_counts(
    count: Callable[[list[Module]], list[str]], clean: dict[str, str], breach: dict[str, str]
) -> None:
    assert count([Module("p", name, text) for name, text in clean.items()]) == []
    assert len(count([Module("p", name, text) for name, text in breach.items()])) == 1


def test_test_files_are_short_too() -> None:
    assert [breach for module in TESTS for breach in rules.too_long(module)] == []


def breach(rule: Callable[[Module], list[str]], name: str, text: str, is_package: bool = False) -> bool:
    return bool(rule(Module("atlctl", name, text, is_package)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.model", "import atlctl.backends.base"),
        ("jobs.model", "from atlctl import render"),
        ("jobs.model", "from ..render import table"),
        ("jobs.model", "def f():\n    from atlctl.cli import app"),
        ("backends.base", "from atlctl.fanout import run"),
        ("backends.base", "from atlctl.backends.hosts import registry"),
        ("backends.hosts.exec", "from atlctl.backends.kubernetes import client"),
        ("diagnosis.parse", "from atlctl.backends.base import Stream"),
        ("diagnosis.parse", "from atlctl.render.text import sanitize"),
        ("fanout.run", "from atlctl.backends.hosts.local import LocalExecutor"),
        ("fanout.run", "from atlctl.backends import hosts"),
        ("fanout.run", "from atlctl.render.text import sanitize"),
        ("render.table", "from atlctl.fanout.outcome import Outcome"),
        ("smoke.plan", "from atlctl.recording import folder"),
        ("smoke.plan", "from atlctl.backends.kubernetes import client"),
        ("recording.recorder", "from atlctl.cli import app"),
        ("__main__", "import atlctl.backends.hosts"),
        ("helpers.things", ""),
    ],
)
def test_layers_can_fail(name: str, text: str) -> None:
    assert breach(rules.layers, name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.model", "from atlctl.jobs.errors import UsageError\nfrom atlctl import __version__"),
        ("backends.hosts.exec", "from atlctl.backends.base import Argv\nfrom .registry import entry\nimport os"),
        ("backends.hosts.exec", "from atlctl.backends.lifeline import wrap"),
        ("fanout.run", "from atlctl.backends.base import Argv\nfrom atlctl.jobs import model"),
        ("recording.recorder", "from atlctl.diagnosis import rank\nfrom atlctl.render.text import sanitize"),
        ("cli.app", "from atlctl.backends import hosts\nfrom atlctl.smoke import plan\nfrom . import table"),
        ("__main__", "from atlctl.cli import app"),
    ],
)
def test_layers_grant(name: str, text: str) -> None:
    assert not breach(rules.layers, name, text)


def test_alone_can_fail() -> None:
    for text in (
        "from atlctl.jobs import model",
        "from ...base import Argv",
        "import atlctl.jobs",
    ):
        assert breach(rules.alone, "remote.supervisor.loop", text)
    assert breach(rules.alone, "remote.smoke.probe", "from atlctl.smoke import plan")
    assert breach(rules.alone, "remote.smoke.probe", "from .. import proc")
    assert breach(rules.alone, "cli.demo_job.train", "from atlctl.jobs import model")
    assert not breach(rules.alone, "remote.supervisor.loop", "from . import files\nfrom .files import write\nimport os")
    assert not breach(rules.alone, "remote.supervisor.loop", "from atlctl.remote.proc import Stat")
    assert not breach(rules.alone, "remote.supervisor", "from .files import write", is_package=True)


@pytest.mark.parametrize("library", rules.KNOWS)
def test_third_party_can_fail(library: str) -> None:
    assert breach(rules.third_party, "jobs.model", f"import {library}")
    assert breach(rules.third_party, "fanout.run", f"def f():\n    from {library}.x import y")
    assert breach(rules.third_party, "remote.supervisor.loop", f"import {library}")
    for scope in rules.KNOWS[library]:
        assert not breach(rules.third_party, scope, f"import {library}")


def test_third_party_knows_no_other_library() -> None:
    assert breach(rules.third_party, "cli.app", "import requests")
    assert breach(rules.third_party, "smoke.plan", "import torch")
    assert breach(rules.third_party, "cli.demo", "import torch")


def test_undeclared_can_fail() -> None:
    modules = [
        Module("atlctl", "render.x", "import rich.text, yaml, os, atlctl.jobs"),
        Module("atlctl", "remote.smoke.probe", "import torch"),
    ]
    head = "[project]\ndependencies = ['rich>=13']\n"
    missing = "yaml is imported and not declared"
    assert rules.undeclared(modules, head) == ["torch is imported and not declared", missing]
    extra = "[project.optional-dependencies]\nsmoke = ['torch>=2']\n"
    assert rules.undeclared(modules, head + extra) == [missing]
    assert rules.undeclared(modules, head.replace("'rich>=13'", "'rich', 'PyYAML~=6.0'") + extra) == []


def test_prints_can_fail() -> None:
    assert breach(rules.prints, "cli.app", "print('x')")
    assert breach(rules.prints, "render.text", "import rich\nrich.print('x')")
    assert breach(rules.prints, "render.text", "from rich import print")
    assert not breach(rules.prints, "render.text", "print('x')")


def test_swallowed_can_fail() -> None:
    for caught in ("", " Exception", " BaseException as e", " (OSError, Exception)"):
        for body in ("pass", "...", "continue"):
            text = f"while x:\n    try:\n        f()\n    except{caught}:\n        {body}\n"
            assert breach(rules.swallowed, "cli.app", text)
    assert not breach(rules.swallowed, "cli.app", "try:\n    f()\nexcept OSError:\n    pass\n")
    assert not breach(rules.swallowed, "cli.app", "try:\n    f()\nexcept Exception:\n    raise X from None\n")


@pytest.mark.parametrize(
    "text",
    [
        "eval('1')",
        "exec('1')",
        "os.system('ls')",
        "os.popen('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "asyncio.create_subprocess_shell('ls')",
    ],
)
def test_evaluated_can_fail(text: str) -> None:
    assert breach(rules.evaluated, "cli.app", text)
    assert not breach(rules.evaluated, "cli.app", "subprocess.run(['ls'])\nre.compile('x')\nresult = self.exec(1)")


def test_too_long_can_fail() -> None:
    assert breach(rules.too_long, "cli.app", "x = 1\n" * (rules.MAX_LINES + 1))
    assert not breach(rules.too_long, "cli.app", "x = 1\n" * rules.MAX_LINES)


def test_event_loops_can_fail() -> None:
    one = Module("atlctl", "cli.app", "asyncio.run(main())")
    other = Module("atlctl", "cli.exec", "with asyncio.Runner() as runner: ...")
    assert rules.event_loops([one]) == []
    assert len(rules.event_loops([one, other])) == 2
