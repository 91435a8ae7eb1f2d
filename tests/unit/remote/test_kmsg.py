"""The kernel's messages: records of /dev/kmsg, and the system call if that cannot be opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atlctl.remote import kmsg


def test_messages_of_records(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(
        b"6,1,1500000,-;pci 0000:3b:00.0: \xff link\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        b"3,2,2000000,-;a; b\nnonsense\n"
    )
    assert kmsg.messages(str(log)) == [(1.5, "pci 0000:3b:00.0: \\xff link"), (2.0, "a; b")]


def test_messages_of_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["<6>[    1.500000] first", "<3>[17515.773425] br0: port 4", "nonsense"]
    monkeypatch.setattr(kmsg, "_called", lambda: lines)
    assert kmsg.messages(str(tmp_path / "none")) == [(1.5, "first"), (17515.773425, "br0: port 4")]


def test_messages_of_this_machine(tmp_path: Path) -> None:
    """By both ways, if they are allowed: the same, as the ring may move on meanwhile."""
    try:
        called = kmsg.messages(str(tmp_path / "none"))
    except OSError as error:
        pytest.skip(f"not allowed: {os.strerror(error.errno or 0)}")
    found = {round(when, 3): text for when, text in kmsg.messages()}
    same = [found[round(when, 3)] == text for when, text in called[-50:] if round(when, 3) in found]
    assert not called or any(same)
