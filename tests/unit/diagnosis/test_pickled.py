from __future__ import annotations

import contextlib
import os
import pickle
import resource
import time
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis import flightrecorder
from atlctl.diagnosis.flightrecorder import NotPlain, load_plain
from tests.support.pace import within

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_values_come_back(value, protocol):
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("size", [0, 3, 300])
def test_bytes_come_back(size):
    value = os.urandom(size)
    assert [load_plain(pickle.dumps(value, protocol)) for protocol in (3, 4, 5)] == [value] * 3
    with pytest.raises(NotPlain):  # protocol 2 has no bytes and calls a function instead
        load_plain(pickle.dumps(value, 2))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_are_refused(data):
    for start in (b"", b"\x80\x04", b"\x80\x02}(X\x01\x00\x00\x00a"):
        with contextlib.suppress(NotPlain):
            load_plain(start + data)


@given(PLAIN, st.data())
def test_a_cut_pickle_is_refused(value, data):
    whole = pickle.dumps(value, 4)
    with pytest.raises(NotPlain, match="cut off"):
        load_plain(whole[: data.draw(st.integers(0, len(whole) - 1))])


#: Opcodes that a dump of torch has, and tuples in the memo, which it has not.
TOKENS = [bytes([op]) for op in b"]}(euas)N\x86"]
TOKENS += [b"K\x01", b"M\0\x01", b"\x8a\x01\x05", b"X\x01\0\0\0a"]
TOKENS += [b"h\0", b"h\x01", b"q\0", b"q\x01", b"r\x01\0\0\0", b"h\0h\x01\x86", b"h\0h\x01\x86q\0"]


@given(st.lists(st.sampled_from(TOKENS), max_size=40))
def test_any_opcodes_give_the_same_by_both_readers(tokens):
    data = b"\x80\x02" + b"".join(tokens) + b"."
    if not flightrecorder._harmless(data):
        return
    with contextlib.suppress(NotPlain):
        with patch.object(flightrecorder, "_harmless", return_value=False):
            ours = load_plain(data)
        assert kinds(load_plain(data)) == kinds(ours)


def kinds(value, depth=4):
    """The value without what is deep in it: it may contain itself."""
    if depth == 0 or not isinstance(value, list | tuple | dict):
        return type(value) if isinstance(value, list | tuple | dict) else value
    if isinstance(value, dict):
        return {str(key): kinds(item, depth - 1) for key, item in value.items()}
    return type(value), [kinds(item, depth - 1) for item in value]


def test_what_pythons_reader_cannot_bear_is_left_to_ours(monkeypatch):
    """Shared tuples as a key hash forever, nested ones overflow the C stack, a large memo takes gigabytes."""
    monkeypatch.setattr(flightrecorder, "MAX_OPERATIONS", 500_000)
    shared = b"\x80\x02)q\0" + b"".join(b"h" + bytes([n, 104, n]) + b"\x86q" + bytes([n + 1]) for n in range(99))
    for data in (
        shared + b"}h\x63Ns.",
        b"\x80\x02}N" + b"N\x86" * 50_000 + b"Ns.",
        b"\x80\x02}N" + b"Jh\0h\0\x86" * 50_000 + b"Ns.",
        b"\x80\x02N\x85(eq\0.",
        b"\x80\x02Nr\0\0\x10\0.",
        b"\x80\x02X\xff\xff\xff\xffa.",
        b"\x80\x02]" + b"N" * flightrecorder.MAX_OPERATIONS + b".",
    ):
        assert not flightrecorder._harmless(data), data[:20]
        with contextlib.suppress(NotPlain):
            load_plain(data)


class Command:
    """An attack: a call made by the unpickler."""

    def __reduce__(self):
        return os.mkdir, ("made-by-the-pickle",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [Command(), {"entries": [Command()]}, {1, 2}, range(3), 1 << 70, os.mkdir, 1j])
def test_nothing_is_called_or_imported(value, protocol):
    with pytest.raises(NotPlain):
        load_plain(pickle.dumps(value, protocol))
    assert not os.path.exists("made-by-the-pickle")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.",
        b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x82\x01.",  # a name from copyreg's table
        b"\x80\x04Pfile\n.",  # a persistent id
        b"\x80\x04\x97.",  # an external buffer
        b"\x80\x04}}b.",  # an object's state
        b"\x80\x01N.",
        b"\x80\x06N.",
    ],
)
def test_opcodes_that_do_more_are_refused(data):
    with pytest.raises(NotPlain):
        load_plain(data)


def shared_tuples(depth):
    """`depth` tuples, each with the previous one twice: hashing takes 2**depth steps."""
    data = b"\x80\x04)\x94"
    for number in range(depth):
        data += b"h" + bytes([number]) + b"h" + bytes([number]) + b"\x86\x94"
    return data, b"h" + bytes([depth])


def test_bombs_of_few_bytes_cost_nothing():
    tuples, last = shared_tuples(100)
    bombs = {
        "key": tuples + b"}" + last + b"Ns.",
        "memo": b"\x80\x02Nr\x00\x00\x00\x10.",
        "length": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.",
        "frame": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",
        "number": b"\x80\x04\x8b" + (2**30).to_bytes(4, "little") + b"1.",
        "marks": b"\x80\x04" + b"(" * 100_000 + b".",
    }
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refused = set()
    for name, data in bombs.items():
        try:
            load_plain(data)
        except NotPlain:
            refused.add(name)
    assert refused == bombs.keys() - {"memo", "frame"}  # only numbers
    assert within(time.process_time() - start, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_nesting_is_bounded():
    inner: list[object] = []
    for _ in range(200):
        inner = [inner, 1]
    with pytest.raises(NotPlain, match="nested too deeply"):
        load_plain(pickle.dumps(inner, 4))


def test_operations_are_bounded(monkeypatch):
    monkeypatch.setattr(flightrecorder, "MAX_OPERATIONS", 1_000)
    assert load_plain(b"\x80\x04" + b"}" * 900 + b".") == {}
    with pytest.raises(NotPlain, match="operations"):
        load_plain(b"\x80\x04" + b"}" * 1_000 + b".")


def test_values_may_hold_themselves():
    value: list[object] = []
    value.append(value)
    found = load_plain(pickle.dumps(value, 4))
    assert isinstance(found, list)
    assert found[0] is found


def test_keys_become_text():
    assert load_plain(pickle.dumps({0: "a", "1": "b"}, 4)) == {"0": "a", "1": "b"}
    with pytest.raises(NotPlain, match="key"):
        load_plain(pickle.dumps({None: 1}, 4))
