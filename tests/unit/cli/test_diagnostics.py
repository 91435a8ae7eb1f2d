from __future__ import annotations

import logging

import pytest

from atlctl.cli import diagnostics


@pytest.fixture
def _loggers():
    root, own = logging.getLogger(), logging.getLogger("atlctl")
    saved = (root.handlers, root.level, own.handlers, own.level)
    yield
    root.handlers, level, own.handlers, own_level = saved
    root.setLevel(level)
    own.setLevel(own_level)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer CANARY",
        "authorization: basic CANARY",
        "{'Authorization': 'Bearer CANARY'}",
        '"authorization": "CANARY"',
        "bearer CANARY",
        "https://h/api?token=CANARY&x=1",
        "password=CANARY",
        "password: CANARY",
        "HF_TOKEN=CANARY python3 train.py",
        "AWS_SECRET_ACCESS_KEY=CANARY",
        "WANDB_API_KEY='CANARY'",
        "env {'GITHUB_TOKEN': 'CANARY'}",
        "https://user:CANARY@proxy:3128/",
        "api-key: CANARY",
        "password='two words CANARY'",
        "login --token CANARY --verbose",
        "login --api-key=CANARY",
    ],
)
def test_secrets_are_hidden(text):
    assert "CANARY" not in diagnostics.redact(text)
    assert "[redacted]" in diagnostics.redact(text)


@pytest.mark.parametrize(
    "text", ["worker-3 exited with 1", "RANK=3 WORLD_SIZE=8", "http://host:29500/x", "tokens are counted", "key=3"]
)
def test_the_rest_stays(text):
    assert diagnostics.redact(text) == text


@pytest.mark.parametrize(
    ("verbose", "debug", "expected"),
    [
        (0, False, ["own warning"]),
        (1, False, ["own warning", "own info"]),
        (2, False, ["own warning", "own info", "own debug"]),
        (0, True, ["own warning", "own info", "own debug", "library warning", "library debug"]),
    ],
)
@pytest.mark.usefixtures("_loggers")
def test_levels(verbose, debug, expected, capfd):
    diagnostics.set_up(verbose, debug)
    own, library = logging.getLogger("atlctl.x"), logging.getLogger("asyncssh")
    for level in ("warning", "info", "debug"):
        getattr(own, level)("own %s", level)
    library.warning("library warning")
    library.debug("library debug")
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.partition(": ")[2] for line in err.splitlines()] == expected


@pytest.mark.usefixtures("_loggers")
def test_records_are_harmless(capfd):
    diagnostics.set_up(1, False)
    logging.getLogger("atlctl").info("got %s", "Bearer CANARY \x1b[2J")
    assert capfd.readouterr().err == "INFO atlctl: got Bearer [redacted] ^[[2J\n"
