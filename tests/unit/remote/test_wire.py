"""Bytes of the agent's pipes: complete lines, however they arrive."""

from __future__ import annotations

import json
import os
import threading

import pytest

from atlctl.remote.smoke import wire


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_lines_are_whole_however_they_are_torn(size: int) -> None:
    data, held, found = b'{"a":1}\n\n[2]\nrest', bytearray(), []
    for at in range(0, len(data), size):
        held += data[at : at + size]
        found += wire.cut(held)
    assert found == [b'{"a":1}', b"[2]"]
    assert held == b"rest"


def test_more_than_a_pipe_holds_comes_through_in_order() -> None:
    reads, writes = os.pipe()
    told = [{"number": number, "text": "x" * 300_000} for number in range(4)]

    def tell() -> None:
        for value in told:
            wire.tell(writes, value)
        os.close(writes)

    writer = threading.Thread(target=tell)
    writer.start()
    try:
        assert [json.loads(line) for line in wire.lines(reads)] == told
    finally:
        os.close(reads)
        writer.join()
