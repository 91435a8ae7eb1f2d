import asyncio
import os
import pty
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atlctl.render.lines import Spill
from atlctl.render.writer import Writer
from tests.support.pace import within


class Reader:
    """Reads a descriptor to its end in a thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.data = bytearray()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while chunk := os.read(self.fd, 1 << 16):
            self.data += chunk

    def start(self) -> None:
        self.thread.start()


class Pipes:
    """A writer on two pipes. Reading starts only when `read` is called."""

    def __init__(self, same: bool = False, limit: int = 1 << 20) -> None:
        self.out_read, self.out_write = os.pipe()
        self.err_read, self.err_write = os.pipe()
        self.calls: list[int] = []
        self.writer = Writer(
            self.out_write, self.out_write if same else self.err_write, limit, lambda: self.calls.append(1)
        )
        self.readers = [Reader(self.out_read), Reader(self.err_read)]
        self.started = False

    def read(self) -> None:
        self.started = True
        for reader in self.readers:
            reader.start()

    def end(self) -> tuple[bytes, bytes]:
        """All written output."""
        if not self.started:
            self.read()
        assert self.writer.close(10)
        os.close(self.out_write)
        os.close(self.err_write)
        for reader in self.readers:
            reader.thread.join()
        return bytes(self.readers[0].data), bytes(self.readers[1].data)


@contextmanager
def pipes(same: bool = False, limit: int = 1 << 20) -> Iterator[Pipes]:
    made = Pipes(same, limit)
    yield made
    made.writer.close(0)
    for fd in (made.out_read, made.err_read):
        os.close(fd)


def test_messages_without_an_event_loop() -> None:
    with pipes() as p:
        p.writer.put("stdout", b"out\n")
        p.writer.put("stderr", [b"err", memoryview(b"or\n")])
        assert p.end() == (b"out\n", b"error\n")


def test_an_unused_writer_starts_no_thread() -> None:
    before = threading.active_count()
    writer = Writer(1, 2)
    assert writer.close(1)
    assert threading.active_count() == before
    with pytest.raises(RuntimeError):
        writer.put("stdout", b"late")


@pytest.mark.parametrize("same", [False, True])
def test_much_output_arrives_in_order(same: bool) -> None:
    with pipes(same) as p:
        p.read()
        expected = bytearray()
        for number in range(3000):
            data = f"{number} ".encode() * 100
            p.writer.put("stdout", data)
            expected += data
            if same:
                p.writer.put("stderr", b"!")
                expected += b"!"
        assert p.end()[0] == bytes(expected)


def test_a_newline_is_put_only_between_owners() -> None:
    with pipes() as p:
        for owner, data in (("a", b"1"), ("a", b"2"), ("b", b"3\n"), ("c", b""), ("c", b"4"), (None, b"end\n")):
            p.writer.put("stdout", data, owner)
        p.writer.put("stderr", b"apart", "z")
        assert p.end() == (b"12\n3\n4\nend\n", b"apart")


def test_streams_that_are_one_file_share_the_rule() -> None:
    with pipes(same=True) as p:
        p.writer.put("stdout", b"no newline", "a")
        p.writer.put("stderr", b"summary\n", None)
        assert p.end()[0] == b"no newline\nsummary\n"


def test_a_spilled_line_comes_out_whole() -> None:
    with pipes() as p:
        spill = Spill()
        spill.append(b"x" * 3_000_000)
        p.writer.put("stdout", [b"a: ", spill, b"\n"], "a")
        p.writer.put("stdout", b"b: y\n", "b")
        assert p.writer.pending_bytes > 1_500_000  # The pipe holds up to 1 MiB of it by now.
        out, _ = p.end()
        assert out == b"a: " + b"x" * 3_000_000 + b"\nb: y\n"
        assert p.writer.pending_bytes == 0
        with pytest.raises(ValueError):
            spill._file.fileno()


def test_drain_waits_for_a_slow_reader_and_memory_is_bounded() -> None:
    async def scenario(p: Pipes) -> int:
        highest = 0

        async def produce(name: str) -> None:
            nonlocal highest
            for _ in range(100):
                await p.writer.drain()
                p.writer.put("stdout", b"x" * 65536, name)
                highest = max(highest, p.writer.pending_bytes)

        producers = [asyncio.create_task(produce(str(i))) for i in range(8)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in producers)
        p.read()
        await asyncio.gather(*producers)
        return highest

    with pipes() as p:
        assert asyncio.run(scenario(p)) < (1 << 20) + (1 << 17)
        assert p.end()[0].count(b"x") == 8 * 100 * 65536


def test_stderr_is_shown_while_nobody_reads_stdout() -> None:
    with pipes() as p:
        p.writer.put("stdout", b"x" * 5_000_000)
        time.sleep(0.05)
        p.writer.put("stderr", b"still running: worker-3\n")
        assert os.read(p.err_read, 100) == b"still running: worker-3\n"
        assert not p.writer.flush(0.01)
        assert len(p.end()[0]) == 5_000_000


def test_closing_does_not_wait_for_a_reader_that_stopped() -> None:
    before = set(threading.enumerate())
    with pipes() as p:
        p.writer.put("stdout", b"x" * 5_000_000)
        begin = time.monotonic()
        assert not p.writer.close(0.1)
        assert within(time.monotonic() - begin, 10)
        assert not any(thread.name == "atlctl-writer" for thread in set(threading.enumerate()) - before)


def test_a_reader_that_left() -> None:
    read, write = os.pipe()
    called = threading.Event()
    calls: list[int] = []

    def gone() -> None:
        calls.append(1)
        called.set()

    writer = Writer(write, 2, 1000, gone)
    os.close(read)
    writer.put("stdout", b"x" * 5000)
    assert called.wait(100)
    assert writer.broken
    spill = Spill()
    spill.append(b"dropped")
    writer.put("stdout", [b"more", spill])
    with pytest.raises(ValueError):
        spill._file.fileno()
    assert writer.error is None
    assert writer.flush(1)
    asyncio.run(asyncio.wait_for(writer.drain(), 1))
    assert writer.close(1)
    assert calls == [1]
    os.close(write)


def test_a_reader_that_leaves_wakes_who_waits() -> None:
    async def scenario(writer: Writer, read: int) -> None:
        writer.put("stdout", b"x" * 5_000_000)
        waiting = asyncio.create_task(writer.drain())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        os.close(read)
        await asyncio.wait_for(waiting, 100)

    read, write = os.pipe()
    writer = Writer(write, 2, 1000)
    asyncio.run(scenario(writer, read))
    assert writer.broken
    writer.close(1)
    os.close(write)


def test_a_full_disk_is_kept_as_error() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    called = threading.Event()
    writer = Writer(full, 2, on_broken=called.set)
    writer.put("stdout", b"data")
    assert called.wait(100)
    assert writer.error is not None
    assert writer.error.strerror == "No space left on device"
    assert not writer.broken
    assert writer.close(1)
    os.close(full)


def test_a_non_blocking_descriptor_loses_nothing(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Like without /proc: the inherited descriptor is used directly.
    monkeypatch.setattr("atlctl.render.writer._Target.open_private", lambda self: None)
    with pipes() as p:
        os.set_blocking(p.out_write, False)
        p.writer.put("stdout", b"x" * 3_000_000)
        time.sleep(0.05)
        assert len(p.end()[0]) == 3_000_000


def test_the_inherited_descriptor_keeps_blocking() -> None:
    with pipes() as p:
        p.writer.put("stdout", b"x")
        p.writer.flush(5)
        assert os.get_blocking(p.out_write)
        assert p.end()[0] == b"x"


def test_a_terminal() -> None:
    main, side = pty.openpty()
    writer = Writer(side, side)
    writer.put("stdout", b"a: 1", "a")
    writer.put("stderr", b"b: 2\n", "b")
    assert writer.flush(5)
    shown = b""
    while not shown.endswith(b"b: 2\r\n"):  # a terminal may deliver it in parts
        shown += os.read(main, 100)
    assert shown == b"a: 1\r\nb: 2\r\n"
    assert writer.close(5)
    assert os.get_blocking(side)
    os.close(main)
    os.close(side)


def test_output_erases_the_status_line_although_its_end_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arrive before the writer's thread runs."""
    for name in ("FIRST", "QUIET", "TICK"):
        monkeypatch.setattr(f"atlctl.render.writer.{name}", 0.01, raising=False)
    terminal, line = pty.openpty()
    writer = Writer(line, line)
    shown = b""
    for _ in range(10):
        writer.show(lambda columns: b"STATUS")
        deadline = time.monotonic() + 100
        while not writer.drawn and time.monotonic() < deadline:
            time.sleep(0.005)
        writer.put("stdout", b"output\n")
        writer.show(None)
        assert writer.flush(10)
        shown += os.read(terminal, 1 << 16)
    assert writer.close(10)
    os.close(line)
    os.close(terminal)
    assert b"STATUS" in shown
    assert b"STATUSoutput" not in shown
