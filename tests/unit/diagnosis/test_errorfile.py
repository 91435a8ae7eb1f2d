import json

import pytest

from atlctl.diagnosis.errorfile import SIZE_LIMIT, TEXT_LIMIT, parse_error_file

from .samples import STACK


def read(document):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    record, reason = parse_error_file(data)
    assert (record is None) == bool(reason)
    return record


def reason_of(data: bytes) -> str:
    record, reason = parse_error_file(data)
    assert record is None
    return reason


def test_torchs_own_form():
    record = read(
        {
            "message": {
                "message": "ValueError: bad magic in shard 3",
                "extraInfo": {"py_callstack": STACK, "timestamp": "1763660699"},
            }
        }
    )
    assert (record.message, record.exception, record.time) == (
        "ValueError: bad magic in shard 3",
        "ValueError",
        1763660699,
    )
    assert (record.traceback, record.frame.path, record.exit_code) == (STACK.rstrip(), "/work/train.py", None)


def test_torchruns_copy_has_an_exit_code():
    assert read({"message": {"message": "E: x", "errorCode": -11, "extraInfo": {"timestamp": "5"}}}).exit_code == -11


def test_a_qualified_name_comes_from_the_call_stack():
    stack = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n"
    record = read(
        {"message": {"message": "OutOfMemoryError: CUDA out of memory", "extraInfo": {"py_callstack": stack}}}
    )
    assert record.exception == "torch.OutOfMemoryError"


@pytest.mark.parametrize(
    ("document", "message", "exception", "time"),
    [
        ({"message": "plain words", "timestamp": 123}, "plain words", None, 123),
        ({"message": "RuntimeError: x\nmore"}, "RuntimeError: x", "RuntimeError", None),
        ({"message": STACK, "timestamp": "77"}, "ValueError: bad magic in shard 3", "ValueError", 77),
        ({"message": "x", "extraInfo": {"py_callstack": "KeyError: 2", "timestamp": 9}}, "KeyError: 2", "KeyError", 9),
        ({"message": {"message": "KeyError: 1"}}, "KeyError: 1", "KeyError", None),
        ({"message": {"extraInfo": {"py_callstack": STACK}}}, "ValueError: bad magic in shard 3", "ValueError", None),
        ({"message": {"message": "x", "extraInfo": [1]}, "timestamp": True}, "x", None, None),
    ],
)  # fmt: skip
def test_other_writers(document, message, exception, time):
    record = read(document)
    assert (record.message, record.exception, record.time) == (message, exception, time)


@pytest.mark.parametrize("value", [0, "0", -5, "soon", None, [1], {}, True, 1e300, "nan", "inf", 10**400, "9" * 5000])
def test_timestamps_that_are_none(value):
    assert read({"message": "x", "timestamp": value}).time is None


@pytest.mark.parametrize("value", ["1", True, 1.5, None, 10**30])
def test_exit_codes_that_are_none(value):
    assert read({"message": {"message": "x", "errorCode": value}}).exit_code is None


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"message": {"message": "ValueErr', "JSON"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b"{}", "message"),
        (b'{"message": {}}', "message"),
        (b'{"message": 5}', "message"),
        (b'{"message": " \\n"}', "message"),
        (b'{"message": ' + b"[" * 200_000, "deeply"),
        (b'{"timestamp": ' + b"9" * 10_000 + b"}", "no message"),
        (b" " * (SIZE_LIMIT + 1), "larger"),
    ],
)
def test_what_cannot_be_read_has_a_reason(data, word):
    assert word in reason_of(data)


def test_hostile_content_stays_text_of_bounded_length():
    record = read(
        {
            "message": {
                "message": "ValueError: \ud800\x1b]0;x\x07" + "A" * 100_000,
                "extraInfo": {"py_callstack": "B\n" * 100_000},
            }
        }
    )
    record.message.encode()
    assert len(record.message) <= TEXT_LIMIT
    assert len(record.traceback) <= TEXT_LIMIT


def test_gbk():
    assert read('{"message": "ValueError: 分片损坏"}'.encode("gbk")).message == "ValueError: 分片损坏"
