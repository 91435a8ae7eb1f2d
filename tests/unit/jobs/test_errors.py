"""Errors in the user's language: English for programs, with translated parts in translated messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.backends.hosts import hostfile
from atlctl.i18n import translated
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import names_by_reason
from atlctl.jobs.selection import parse_numbers


def test_an_error_in_chinese() -> None:
    with pytest.raises(UsageError) as caught:
        parse_numbers("5-2")
    assert str(caught.value) == "the range '5-2' ends before it starts"
    assert translated(caught.value.message, "zh") == "范围 '5-2' 的起止颠倒"
    assert translated(caught.value.hint or "", "zh") == "写作 2-5"


def test_an_error_within_another_in_chinese(tmp_path: Path) -> None:
    file = tmp_path / "atlctl" / "config.toml"
    file.parent.mkdir()
    file.write_text("[ssh.jobs.'a!']\nhosts = ['gpu1']\n")
    with pytest.raises(UsageError) as caught:
        load_config({"XDG_CONFIG_HOME": str(tmp_path)}, str(tmp_path))
    assert translated(caught.value.message, "zh") == f"配置文件 {file}：ssh.jobs：作业名 'a!' 含有不允许的字符：'!'"


def test_equal_reasons_are_one() -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            hostfile.parse("gpu[5-2]", "hosts")
        errors.append(caught.value.message)
    folded = names_by_reason(zip(("worker-0", "worker-1"), errors, strict=True))
    assert folded == {"hosts, line 1: '5-2' is not a range": ["worker-0", "worker-1"]}
    assert translated(next(iter(folded)), "zh") == "hosts 第 1 行：'5-2' 不是范围"
