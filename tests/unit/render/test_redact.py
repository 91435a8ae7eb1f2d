from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.scanner import sieve_for
from atlctl.render.redact import HIDDEN, LITERALS, Redactor, is_secret_name, redact_json, redact_json_bytes, redact_text
from tests.support.pace import within

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkNBTkFSWSJ9.eyJpc3MiOiJDQU5BUlkifQ.CANARY-CANARY_CANARY"
SECRETS = [
    "Authorization: Bearer CANARY-CANARY",
    "authorization: basic CANARY",
    "{'Authorization': 'Bearer CANARY-CANARY'}",
    '"authorization": "CANARY"',
    "got bearer CANARY-CANARY",
    "Cookie: session=CANARY; other=CANARY",
    "password=CANARY",
    "password: CANARY",
    "passwd = 'two words CANARY'",
    "HF_TOKEN=CANARY-CANARY python3 train.py",
    "HF_TOKEN='CANARY-CANARY'",
    "HF_TOKEN=CANARY",
    "hf_token: CANARY-CANARY",
    "AWS_SECRET_ACCESS_KEY=CANARY",
    "WANDB_API_KEY=CANARY",
    "SOME_KEY=CANARY",
    "DB_PWD=CANARY",
    "env {'GITHUB_TOKEN': 'CANARY-CANARY'}",
    'os.environ["HF_TOKEN"] = "CANARY-CANARY"',
    "Namespace(api_key='CANARY', lr=0.1)",
    '{"password": "CANARY"}',
    '{"apiKey":"CANARY"}',
    r'"{\"client_secret\": \"CANARY\"}"',
    "x-api-key: CANARY",
    "login --token CANARY-CANARY --verbose",
    "login --password CANARY",
    "https://user:CANARY@proxy:3128/",
    "https://CANARYCANARYCANARYCANARY@github.com/a/b",
    "https://h/x?access_token=CANARY-CANARY&y=1",
    "https://s3/x?X-Amz-Credential=CANARYCANARY/20261120&X-Amz-Expires=9",
    "https://a.blob/x?sv=1&sig=CANARYCANARYCANARY%3D",
    f"token {JWT}",
    "hf_CANARYCANARYCANARYCANARY",
    "ghp_CANARYCANARYCANARYCANARY",
    "github_pat_CANARYCANARYCANARY_CANARY",
    "glpat-CANARYCANARYCANARY",
    "sk-proj-CANARYCANARYCANARYCANARY",
    "sk-" + "CANARY" * 8,
    "AKIACANARYCANARYCANA",
    "xoxb-CANARYCANARY",
    r"-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = [
    "worker-3 exited with 1",
    "RANK=3 WORLD_SIZE=8 MASTER_ADDR=10.0.0.1",
    "http://host:29500/x tcp://[fe80::1%eth0]:29500",
    "KeyError: 'token'",
    "KeyError: 'HF_TOKEN'",
    "KeyError: 'password'",
    "eos_token='</s>' pad_token: <pad> unk_token=[UNK]",
    "tokens: 512, max_tokens=512, num_tokens: 733, token: 5, token=12,345",
    "sort_key=length",
    'MountVolume.SetUp failed for volume "x" : secret "train-secrets" not found',
    "Secret: not found",
    "ValueError: tokenizer: unknown",
    "pod sk-llama-finetune-20250101-worker-0 is gone",
    "ssh user@host: Connection refused",
    "Bearer token is missing",
    "CUDA error: uncorrectable ECC error encountered",
    "step 12/60 loss=0.1234 tokens/s: 12345.6",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_hidden(text):
    hidden = redact_text(text)
    assert "CANARY" not in hidden
    assert HIDDEN in hidden
    assert redact_text(hidden) == hidden


@pytest.mark.parametrize("text", HARMLESS)
def test_the_rest_stays(text):
    assert redact_text(text) == text


@pytest.mark.parametrize("text", SECRETS)
def test_what_is_hidden_is_seen_by_the_sieve(text):
    assert sieve_for(LITERALS)(text.encode())


@pytest.mark.parametrize(
    "text",
    ['{"password": "CANARY", "x": 1}', '{"a": "token=CANARY-CANARY"}', '{"log": "{\\"api_key\\": \\"CANARY\\"}"}'],
)
def test_a_line_of_json_remains_one(text):
    hidden = redact_text(text)
    assert "CANARY" not in hidden
    assert list(json.loads(hidden)) == list(json.loads(text))


def lines_of(data: bytes, **options) -> bytes:
    redactor = Redactor(**options)
    return b"\n".join(redactor.line(line) for line in data.split(b"\n"))


KEY = b"""starts
-----BEGIN OPENSSH PRIVATE KEY-----
Q0FOQVJZQ0FOQVJZQ0FOQVJZQ0FOQVJZQ0FOQVJZQ0FOQVJZQ0FOQVJZQ0FOQVJZQ0FO
RuntimeError: another rank said this in between
2026-11-20T17:45:05.123456789Z [rank0]: Q0FOQVJZQ0FOQVJZ
Q0FO
-----END OPENSSH PRIVATE KEY-----
Q0FO is a word"""


def test_a_private_key_over_several_lines_is_hidden_and_what_stands_between_stays():
    assert lines_of(KEY).split(b"\n") == [
        b"starts",
        b"-----BEGIN OPENSSH PRIVATE KEY-----",
        b"[redacted]",
        b"RuntimeError: another rank said this in between",
        b"2026-11-20T17:45:05.123456789Z [rank0]: [redacted]",
        b"[redacted]",
        b"-----END OPENSSH PRIVATE KEY-----",
        b"Q0FO is a word",
    ]


def test_a_log_that_begins_in_the_middle_of_a_key():
    line = b"Q0FO" * 16
    assert lines_of(line) == line  # a separate text, not a log's
    assert lines_of(line + b"\n" + line + b"\n-----END RSA PRIVATE KEY-----\nstep " + line, cut=True) == (
        b"[redacted]\n[redacted]\n-----END RSA PRIVATE KEY-----\nstep " + line
    )


PIECES = [*SECRETS, *HARMLESS, KEY.decode(), "\r", "中文", "\x1b[31m", "\x00", '"', "'", "\\", "=", ":", " "]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.integers(0, 10))
def test_any_mixture_keeps_its_lines_and_the_sieve_changes_nothing(pieces, seed):
    random.Random(seed).shuffle(pieces)
    data = "".join(pieces).encode()
    hidden = lines_of(data)
    assert hidden.count(b"\n") == data.count(b"\n")
    assert lines_of(data, holds=sieve_for(LITERALS)) == hidden


@given(st.binary(max_size=300))
def test_any_bytes(data):
    assert lines_of(data).count(b"\n") == data.count(b"\n")


@given(st.lists(st.sampled_from(PIECES), max_size=4), st.integers(0, 10**6))
def test_lines_that_differ_in_digits_are_treated_alike_and_each_is_looked_at(pieces, seed):
    """Cached results of one line never let another line's secret pass."""
    line = "".join(pieces).replace("\n", " ").encode()
    chance = random.Random(seed)
    other = bytes(chance.choice(b"0123456789") if 0x30 <= code <= 0x39 else code for code in line)
    both = Redactor()
    assert [both.line(b"first"), both.line(other), both.line(line)][1:] == [
        lines_of(b"x\n" + one)[2:] for one in (other, line)
    ]


@pytest.mark.parametrize(
    "piece",
    [
        "-",
        "--a",
        "a",
        "a://",
        "a://b:",
        "password=",
        'password="',
        "token=",
        "eyJ",
        "sk-",
        "Cookie:",
        "a@",
        "A_KEY",
        " ",
        "\\",
    ],
)
def test_no_line_takes_long(piece):
    """200 KB of one text, with an end that makes every pattern run."""
    line = (piece * (200_000 // len(piece)) + " @ key= token= ookie: uthorization: earer x --").encode()
    begin = time.monotonic()
    Redactor().line(line)
    assert within(time.monotonic() - begin, 5)


def test_json_by_names_and_pairs():
    value = {
        "uid": "1",
        "spec": {
            "env": [{"name": "HF_TOKEN", "value": "x"}, {"name": "RANK", "value": "3"}],
            "password": "y",
            "keys": 4,
        },
        "message": "token=CANARY-CANARY",
    }
    assert redact_json(value) == {
        "uid": "1",
        "spec": {
            "env": [{"name": "HF_TOKEN", "value": HIDDEN}, {"name": "RANK", "value": "3"}],
            "password": HIDDEN,
            "keys": 4,
        },
        "message": f"token={HIDDEN}",
    }


def test_a_json_document_keeps_its_bytes_where_nothing_is_hidden_and_its_lines_else():
    plain = b'{\n "a": 1\n}\n'
    assert redact_json_bytes(plain) is plain
    hidden = redact_json_bytes(b'{\n "password": "CANARY"\n}\n')
    assert (json.loads(hidden), hidden.count(b"\n")) == ({"password": HIDDEN}, 3)
    assert redact_json_bytes(b'{"password": "CANARY",\n cut') == b'{"password": "[redacted]",\n cut'


def test_nesting_has_an_end():
    deep: object = "password=CANARY"
    for _ in range(200):
        deep = [deep]
    assert "CANARY" not in json.dumps(redact_json(deep))
    assert b"CANARY" not in redact_json_bytes(b"[" * 100_000 + b'"password=CANARY"')


@pytest.mark.parametrize(
    ("name", "secret"), [("HF_TOKEN", True), ("db.password", True), ("apiKey", True), ("uid", False), ("tokens", False)]
)
def test_names(name, secret):
    assert is_secret_name(name) is secret
