from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.cli.options import parse_duration, parse_timeout, stated_job
from atlctl.jobs.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("0.5h", 1800), ("1d", 86400)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "+1", "1 s", "1e3", "nan", "inf", "1x", "1ms", ".5", "1.", "１", "1_0"]
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_timeout_is_more_than_zero():
    assert parse_duration("0") == 0
    with pytest.raises(ValueError, match="more than 0"):
        parse_timeout("0s")


@settings(deadline=None, max_examples=100)
@given(st.text())
def test_any_text_is_a_finite_duration_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(text) < 1e18


def test_which_job_is_named():
    env = {"ATLCTL_JOB": "from-env"}
    assert stated_job("a", None, env) == "a"
    assert stated_job(None, "b", env) == "b"
    assert stated_job("a", "a", env) == "a"
    assert stated_job(None, None, env) == "from-env"
    assert stated_job(None, None, {}) is None
    assert stated_job(None, None, {"ATLCTL_JOB": ""}) is None


@pytest.mark.parametrize("pair", [("a", "b"), ("", None), (None, "")])
def test_contradicting_and_empty_names(pair):
    with pytest.raises(UsageError):
        stated_job(pair[0], pair[1], env={})
