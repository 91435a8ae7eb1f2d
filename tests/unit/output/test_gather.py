import pytest

from atlctl.backends.base import Stream
from atlctl.cli.sinks import GatherSink
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.jobs.errors import AtlctlError
from atlctl.render.palette import Tone, painted
from atlctl.render.streams import Streams
from atlctl.render.writer import Writer
from tests.unit.output.helpers import exited, run, worker

Part = tuple[Stream, bytes]


def gathered(
    runs: list[tuple[list[Part], Outcome]], streams: Streams | None = None, memory: int = 1 << 20, raw: bool = False
) -> str:
    async def scenario(writer: Writer) -> None:
        sink = GatherSink(writer, streams or Streams(), raw=raw, memory=memory)
        for parts, outcome in runs:
            await sink.started(outcome.worker)
            for stream, data in parts:
                await sink.output(outcome.worker, stream, data)
        for _, outcome in runs:
            await sink.finished(outcome)
        await sink.report()
        sink.close()

    out, err = run(scenario)
    assert err == b""
    return out.decode()


def out(data: bytes) -> list[Part]:
    return [("stdout", data)]


def test_equal_outputs_fold_and_others_show_their_diff() -> None:
    runs = [(out(b"driver 550\ncuda 12\n"), exited(i)) for i in range(3)]
    runs += [(out(b"driver 535\ncuda 12"), exited(10)), ([], exited(11, 3))]
    assert gathered(runs) == (
        "worker-[0-2] (3) ok\ndriver 550\ncuda 12\n"
        "worker-10 (1) ok\ndriver 535\ncuda 12\n"
        "diff of worker-[0-2] (3) and worker-10 (1)\n"
        "--- worker-[0-2] (3)\n+++ worker-10 (1)\n@@ -1,2 +1,2 @@\n"
        "-driver 550\n-cuda 12\n+driver 535\n+cuda 12\n\\ No newline at end of file\n"
        "worker-11 (1) exit 3, no output\n"
        "diff of worker-[0-2] (3) and worker-11 (1)\n"
        "--- worker-[0-2] (3)\n+++ worker-11 (1)\n@@ -1,2 +0,0 @@\n-driver 550\n-cuda 12\n"
    )


def test_without_a_majority_there_is_no_diff() -> None:
    text = gathered([(out(b"a\n"), exited(0)), (out(b"b\n"), exited(1))])
    assert text == "worker-0 (1) ok\na\nworker-1 (1) ok\nb\n"


def test_equal_output_with_another_outcome_is_another_group() -> None:
    runs = [(out(b"a\n"), exited(i)) for i in range(2)]
    runs.append((out(b"a\n"), Outcome(worker(2), EndKind.LOST, reason="reset\x1b", may_still_run=True)))
    assert gathered(runs) == "worker-[0-1] (2) ok\na\nworker-2 (1) lost: reset^[\na\n"


def test_interleaving_of_the_two_streams_splits_no_group() -> None:
    first: list[Part] = [("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")]
    second: list[Part] = [("stderr", b"b\n"), ("stdout", b"a\nc\n")]
    assert gathered([(first, exited(0)), (second, exited(1))]) == "worker-[0-1] (2) ok\na\nb\nc\n"
    swapped: list[Part] = [("stderr", b"a\nc\n"), ("stdout", b"b\n")]
    assert gathered([(first, exited(0)), (swapped, exited(1))]).count("(1) ok") == 2


@pytest.mark.parametrize("memory", [0, 100, 100_000])
def test_memory_is_bounded_and_what_is_on_disk_comes_back(memory: int) -> None:
    runs = []
    for index in range(6):
        data = f"{index % 2}".encode() * 40_000 + b"\n"
        parts: list[Part] = [("stdout", data[at : at + 7000]) for at in range(0, len(data), 7000)]
        runs.append((parts, exited(index)))
    text = gathered(runs, memory=memory)
    assert text == ("worker-[0,2,4] (3) ok\n" + "0" * 40_000 + "\nworker-[1,3,5] (3) ok\n" + "1" * 40_000 + "\n")


def test_memory_stays_below_its_limit() -> None:
    async def scenario(writer: Writer) -> None:
        sink = GatherSink(writer, Streams(), memory=10_000)
        for index in range(50):
            await sink.output(worker(index % 5), "stdout", b"x" * 900)
            assert sum(len(held.memory) for held in sink._held.values()) <= 10_000
            assert sink._in_memory == sum(len(held.memory) for held in sink._held.values())
        sink.close()

    run(scenario)


def test_large_outputs_are_not_compared() -> None:
    many = b"x\n" * 5000
    runs = [(out(many), exited(0)), (out(many), exited(1)), (out(b"y\n"), exited(2))]
    assert gathered(runs).endswith("worker-2 (1) ok\ny\nworker-[0-1] (2) and worker-2 (1): too large to diff\n")


def test_a_full_disk_cuts_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, data: object) -> None:
        raise AtlctlError("full")

    monkeypatch.setattr("atlctl.render.lines.Spill.append", full)
    parts: list[Part] = [("stdout", b"a" * 80), ("stdout", b"b" * 80), ("stdout", b"c")]
    text = gathered([(parts, exited(0))], memory=100)
    assert text == "worker-0 (1) ok, output truncated\n" + "a" * 80


def test_a_terminal_gets_harmless_text() -> None:
    tty = Streams(stdout_tty=True, stdout_color=True)
    hostile = b"\x1b[31mred\x1b[2J\n"
    runs = [(out(b"x\n"), exited(0)), (out(b"x\n"), exited(1)), (out(hostile), exited(2))]
    text = gathered(runs, tty)
    assert f"{painted('worker-[0-1] (2) ok', Tone.OK, True)}\n" in text
    assert "\n\x1b[31mred^[[2J\x1b[0m\n" in text
    assert "\x1b[2J" not in text
    assert "\x1b[2J" in gathered(runs, tty, raw=True)
