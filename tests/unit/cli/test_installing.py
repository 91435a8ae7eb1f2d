"""The hint for adding a package fits the way in which atlctl was installed."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from atlctl.cli.installing import install_line


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python3")


def test_with_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert install_line("torch", "gone>=1") == "'/opt/my python/bin/python3' -m pip install torch 'gone>=1'"


def test_in_an_environment_of_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert install_line("torch") == "uv pip install --python '/opt/my python/bin/python3' torch"


def test_in_the_one_executable_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "flags", SimpleNamespace(no_site=1))
    assert install_line("torch", "py-spy").endswith(
        "in a checkout: python3 -m venv ENV && ENV/bin/pip install . torch py-spy"
    )
