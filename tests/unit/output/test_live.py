import asyncio

from atlctl.cli.sinks import LiveSink, line_limit
from atlctl.render.streams import Streams
from atlctl.render.writer import Writer
from tests.unit.output.helpers import exited, run, worker

PIPE = Streams()
TTY = Streams(stdout_tty=True, stderr_tty=True, stdout_color=True, stderr_color=True)
PLAIN_TTY = Streams(stdout_tty=True, stderr_tty=True)
HOSTILE = b"\x1b]52;c;x\x07\0" + "训".encode("gbk") + b"\r\n"


def test_whole_lines_with_prefix_each_to_its_stream() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PIPE, 2)
        await sink.started(worker(0))
        await sink.output(worker(0), "stdout", b"a\nhal")
        await sink.output(worker(1), "stdout", b"b\nend")
        await sink.output(worker(1), "stderr", b"warn\n")
        await sink.output(worker(0), "stdout", b"f\n" + HOSTILE)
        await sink.finished(exited(1))
        await sink.finished(exited(0))

    out, err = run(scenario)
    assert out == b"worker-0: a\nworker-1: b\nworker-0: half\nworker-0: " + HOSTILE + b"worker-1: end"
    assert err == b"worker-1: warn\n"


def test_one_worker_passes_untouched() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PIPE, 1)
        await sink.output(worker(0), "stdout", HOSTILE + b"no newline")
        await sink.output(worker(0), "stderr", b"\x1b[2J")
        await sink.finished(exited(0))

    assert run(scenario) == (HOSTILE + b"no newline", b"\x1b[2J")


def test_one_worker_on_a_terminal_is_sanitised_and_does_not_wait_for_newlines() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, TTY, 1)
        await sink.output(worker(0), "stdout", b"\x1b[31mpassword: \x1b[2J")
        await sink.finished(exited(0))

    assert run(scenario)[0] == b"\x1b[31mpassword: ^[[2J\x1b[0m"


def test_many_workers_on_a_terminal() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PLAIN_TTY, 2)
        await sink.output(worker(0), "stdout", b"\x1b[31mred\nworker-1: forged\rx\n")
        await sink.finished(exited(0))

    assert run(scenario)[0] == b"worker-0: red\nworker-0: worker-1: forged^Mx\n"


def test_raw_keeps_the_prefix() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PLAIN_TTY, 2, raw=True)
        await sink.output(worker(0), "stdout", HOSTILE)

    assert run(scenario)[0] == b"worker-0: " + HOSTILE


def test_colour_of_the_prefix_leaves_the_payload_alone() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, Streams(stdout_color=True), 2)
        await sink.output(worker(0), "stdout", HOSTILE)

    out, _ = run(scenario)
    assert out.startswith(b"\x1b[38;5;")
    assert out.endswith(b"mworker-0:\x1b[0m " + HOSTILE)


def test_no_prefix_keeps_lines_whole_and_apart() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PIPE, 2, prefix=False)
        await sink.output(worker(0), "stdout", b"a")
        await sink.output(worker(1), "stdout", b"b\n")
        await sink.finished(exited(0))
        await sink.finished(exited(1))
        await sink.output(worker(1), "stdout", b"late\n")

    assert run(scenario)[0] == b"b\na\nlate\n"


def test_a_ten_megabyte_line_stays_whole_beside_another_worker() -> None:
    async def scenario(writer: Writer) -> None:
        sink = LiveSink(writer, PIPE, 2)

        async def long() -> None:
            for _ in range(160):
                await sink.output(worker(0), "stdout", b"x" * 65536)
                await asyncio.sleep(0)
            await sink.output(worker(0), "stdout", b"\n")

        async def short() -> None:
            for _ in range(500):
                await sink.output(worker(1), "stdout", b"y\n")
                await asyncio.sleep(0)

        await asyncio.gather(long(), short())

    out, _ = run(scenario, limit=1 << 16)
    lines = out.split(b"\n")
    assert lines.count(b"worker-1: y") == 500
    assert lines.count(b"worker-0: " + b"x" * 160 * 65536) == 1
    assert len(lines) == 502


def test_memory_for_unfinished_lines() -> None:
    assert line_limit(1) == 1 << 20
    assert line_limit(1000) == (48 << 20) // 2000
    assert line_limit(100_000) == 4096
