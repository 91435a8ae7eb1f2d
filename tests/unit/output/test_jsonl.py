import base64
import json
import re
from typing import Any

from atlctl.cli.sinks import JsonSink
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.render.writer import Writer
from tests.unit.output.helpers import exited, run, worker


def objects(out: bytes) -> list[dict[str, Any]]:
    assert out.endswith(b"\n")
    return [json.loads(line) for line in out.decode().split("\n")[:-1]]


def payload(item: dict[str, Any]) -> bytes:
    return base64.b64decode(item["data_b64"]) if "data_b64" in item else item["data"].encode()


def test_lines_outcomes_and_summary() -> None:
    async def scenario(writer: Writer) -> None:
        sink = JsonSink(writer, 2)
        await sink.started(worker(0))
        await sink.output(worker(0), "stdout", b"one\ntw")
        await sink.output(worker(1), "stderr", "训\x9b\u202e\n".encode())
        await sink.output(worker(0), "stdout", b"o\nlast")
        await sink.finished(exited(0))
        await sink.finished(Outcome(worker(1), EndKind.LOST, reason="cut", guarded=False, may_still_run=True))
        sink.summary(255)

    out, err = run(scenario)
    assert err == b""
    assert b"\xc2\x9b" not in out
    items = objects(out)
    lines = [(i["worker"], i["stream"], i["data"]) for i in items if i["type"] == "output"]
    assert lines == [
        ("worker-0", "stdout", "one\n"),
        ("worker-1", "stderr", "训\x9b\u202e\n"),
        ("worker-0", "stdout", "two\n"),
        ("worker-0", "stdout", "last"),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", items[0]["time"])
    outcomes = [item for item in items if item["type"] == "outcome"]
    assert outcomes[0] == {
        "type": "outcome", "worker": "worker-0", "outcome": "exited", "exit_code": 0, "signal": None, "reason": "",
        "guarded": True, "may_still_run": False, "truncated": False,
    }  # fmt: skip
    assert (outcomes[1]["outcome"], outcomes[1]["reason"], outcomes[1]["may_still_run"]) == ("lost", "cut", True)
    assert items[-1] == {
        "type": "summary", "status": "partial", "exit_code": 255,
        "counts": {"ok": 1, "failed": 0, "failed_to_start": 0, "timeout": 0, "lost": 1, "cancelled": 0},
    }  # fmt: skip


def test_lines_that_are_no_utf8_are_lossless() -> None:
    gbk = "训练".encode("gbk") + b"\n"

    async def scenario(writer: Writer) -> None:
        sink = JsonSink(writer, 2)
        await sink.output(worker(0), "stdout", b"ok\n" + gbk + b"\0\n\n")
        await sink.output(worker(0), "stdout", "é".encode()[:1])
        await sink.output(worker(0), "stdout", "é".encode()[1:] + b"\n")

    items = objects(run(scenario)[0])
    assert [payload(item) for item in items] == [b"ok\n", gbk, b"\0\n", b"\n", "é\n".encode()]
    assert ["data_b64" in item for item in items] == [False, True, False, False, False]


def test_long_lines_are_one_object() -> None:
    text = ('"训"\x1b\x9b' * 300_000).encode()
    binary = b"\xff" + text

    async def scenario(writer: Writer) -> None:
        sink = JsonSink(writer, 1000)
        for data in (text, binary):
            for start in range(0, len(data), 50_001):
                await sink.output(worker(0), "stdout", data[start : start + 50_001])
            await sink.output(worker(0), "stdout", b"!\nnext\n")
        await sink.output(worker(0), "stderr", text)
        await sink.finished(exited(0))

    items = objects(run(scenario)[0])
    assert [payload(i) for i in items[:-1]] == [text + b"!\n", b"next\n", binary + b"!\n", b"next\n", text]
    assert "data_b64" in items[2]


def test_status() -> None:
    def status(codes: list[int], exit_code: int) -> str:
        async def scenario(writer: Writer) -> None:
            sink = JsonSink(writer, len(codes))
            for index, code in enumerate(codes):
                await sink.finished(exited(index, code))
            sink.summary(exit_code)

        return str(objects(run(scenario)[0])[-1]["status"])

    assert status([0, 0], 0) == "success"
    assert status([0, 3], 3) == "partial"
    assert status([3], 3) == "error"
    assert status([0], 130) == "partial"
