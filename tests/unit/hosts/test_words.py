"""Arguments sent to a supervisor keep their bytes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.hosts.execution import as_utf8


@given(st.binary(max_size=50))
def test_bytes_survive(raw: bytes) -> None:
    assert as_utf8(os.fsdecode(raw)).encode("utf-8", "surrogateescape") == raw


def test_a_word_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a GBK locale two bytes are one character; the supervisor's Python reads UTF-8."""
    monkeypatch.setattr(os, "fsencode", lambda word: word.encode("gbk"))
    assert as_utf8("显存").encode("utf-8", "surrogateescape") == "显存".encode("gbk")
