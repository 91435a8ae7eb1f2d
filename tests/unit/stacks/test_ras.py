"""Answers of NCCL's RAS service: recorded ones, and services with faults. The data's README says where it is from."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote.proc import listening
from atlctl.remote.stacks import ras

DATA = Path(__file__).parent / "data/ras"


def answer(name: str) -> ras.RasStatus:
    data = (DATA / name).read_bytes()
    return ras.of_json(iter([data])) if name.endswith("json") else ras.of_text(data)


def compared(name: str, second: str | None = None) -> dict[str, Any]:
    return ras.compared(answer(name), answer(second or name))


def behind(found: dict[str, Any]) -> dict[int, dict[int, tuple[Any, Any]]]:
    """Of each communicator, by its size: the ranks that lag, with their counts and what they launched instead."""
    return {
        item["size"]: {rank: (lacks, leads) for rank, _, _, lacks, leads in item["behind"]}
        for item in found["communicators"]
    }


def faults(found: dict[str, Any]) -> dict[int, dict[int, str]]:
    return {item["size"]: {rank: fault for rank, _, _, fault in item["faulty"]} for item in found["communicators"]}


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_sleeping_rank_is_behind_in_both_communicators(form: str) -> None:
    found = compared(f"sleep-a.{form}")
    assert found["version"] == "2.28.9"
    assert behind(found) == {4: {2: ({"all_reduce": [22, 24]}, [])}, 2: {0: ({"all_gather": [11, 12]}, [])}}
    assert [item["ahead_count"] for item in found["communicators"]] == [3, 1]
    if form == "json":
        assert found["communicators"][0]["behind"] == [[2, "127.0.0.1", 3430, {"all_reduce": [22, 24]}, []]]
        assert (found["processes"], found["moved"]) == (4, False)


def test_another_operation_is_told_by_what_was_launched_instead() -> None:
    assert behind(compared("gather-a.json"))[4] == {
        2: ({"all_reduce": [22, 24]}, ["all_gather"]),
        **dict.fromkeys((0, 1, 3), ({"all_gather": [0, 1]}, ["all_reduce"])),
    }
    assert behind(compared("gather-a.text"))[4] == {2: ({"all_reduce": [22, 24]}, ["all_gather"])}


@pytest.mark.parametrize("form", ["json", "text"])
def test_ranks_that_do_not_answer(form: str) -> None:
    found = compared(f"stop-a.{form}")["communicators"]
    assert [item["faulty"] for item in found] == [
        [[2, "127.0.0.1", 514, "unresponsive"]],
        [[0, "127.0.0.1", 514, "unresponsive"]],
    ]
    if form == "json":
        assert faults(compared("stop-c.json")) == {4: {2: "dead"}, 2: {0: "dead"}}
        assert [item["ahead_count"] for item in compared("stop-a.json")["communicators"]] == [3, 1]


def test_a_killed_rank_is_lost_and_its_peers_report_its_error() -> None:
    assert faults(compared("kill-a.json"))[4] == {2: "unresponsive", 1: "remote_error", 3: "remote_error"}
    assert compared("kill-c.text")["lost"] == [
        ["127.0.0.1", 541, "unresponsive"],
        ["127.0.0.1", 543, "unresponsive"],
        ["127.0.0.1", 542, "dead"],
    ]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_rank_without_the_communicator_is_absent_and_proves_no_wait(form: str) -> None:
    (item,) = [item for item in compared(f"teardown-a.{form}")["communicators"] if item["size"] == 4]
    assert [2, "127.0.0.1", 6422, "absent"] in item["faulty"]
    assert (item["ahead"], item["ahead_count"]) == ([], 0)


def test_what_moves_is_not_behind() -> None:
    """The second of two answers of a healthy job, in which two ranks happen to have launched two collectives less."""
    found = compared("none-a.json", "none-b.json")
    assert (found["communicators"], found["moved"]) == ([], True)
    # Asked twice within the same moment, they do lag.
    assert list(behind(compared("none-b.json"))[4]) == [2, 3]


def test_equal_counts_say_nothing() -> None:
    """Sizes that differ, and communicators that are being created."""
    assert compared("size-a.json")["communicators"] == []
    assert behind(compared("init-a.json")) == {}


def test_json_with_the_comma_and_on_one_line() -> None:
    data = (DATA / "stop-a.json").read_bytes()
    mended = re.sub(rb'("nvml_dev": 0)\n(\s+"status": \{\n\s+"unresp)', rb"\1,\n\2", data)
    assert mended != data
    for text in (mended, b"{" + re.sub(rb"\s+", b" ", mended) + b"\n"):
        found = ras.of_json(iter([text]))
        assert faults(ras.compared(found, found)) == {4: {2: "unresponsive"}, 2: {0: "unresponsive"}}


#: NCCL 2.24 names no operation, and lists the members of small sets below their count (its user guide).
OLD = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  29 ranks have launched up to operation 6650
  3 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 6) managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210

"""


def test_the_text_of_the_first_version() -> None:
    found = ras.of_text(OLD.encode())
    (item,) = ras.compared(found, found)["communicators"]
    assert (item["size"], item["ahead_count"], item["behind_count"]) == (32, 29, 3)
    assert item["behind"][1] == [2, "172.16.64.210", 483074, {"collective": [6649, 6650]}, []]


@pytest.mark.parametrize("name", ["sleep-a.json", "sleep-a.text"])
def test_a_cut_answer_is_none(name: str) -> None:
    data = (DATA / name).read_bytes()
    read: Callable[[bytes], object] = ras.of_text
    if name.endswith("json"):

        def read(part: bytes) -> object:
            return ras.of_json(iter([part]))

    end = data.index(b"Warnings\n") if read is ras.of_text else data.index(b'"timeouts_count"')
    for at in random.Random(1).sample(range(end), 60):
        with pytest.raises(ValueError):
            read(data[:at])


def test_any_bytes_are_read_without_an_error() -> None:
    chance = random.Random(2)
    for path in sorted(DATA.glob("*.[jt]*")):
        data = path.read_bytes()
        for _ in range(20):
            spoilt = bytearray(data)
            for _ in range(chance.randrange(1, 40)):
                spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
            try:
                found = ras.of_json(iter([bytes(spoilt)])) if path.suffix == ".json" else ras.of_text(bytes(spoilt))
            except ValueError:
                continue
            ras.compared(found, found)


def test_a_json_in_any_pieces() -> None:
    data = (DATA / "gather-a.json").read_bytes()
    whole = ras.compared(answer("gather-a.json"), answer("gather-a.json"))
    chance = random.Random(3)
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(data)), 30))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        found = ras.of_json(iter(pieces))
        assert ras.compared(found, found) == whole


@contextmanager
def service(serve: Callable[[socket.socket], None], port: int = 0) -> Iterator[int]:
    """A service of this process on a port that others may share, as NCCL's."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        number = listener.getsockname()[1]

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        threading.Thread(target=run, daemon=True).start()
        yield number
        listener.shutdown(socket.SHUT_RDWR)


def speaks(json: bool = True, name: str = "sleep-a", cut: int | None = None) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        for line in lines:
            word = line.strip().upper()
            if word.startswith(b"CLIENT PROTOCOL"):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif word.startswith(b"TIMEOUT "):
                connection.sendall(b"OK\n")
            elif word == b"SET FORMAT JSON":
                connection.sendall(b"OK\n" if json else b"ERROR: Unknown command SET FORMAT json\n")
            elif word == b"VERBOSE STATUS":
                connection.sendall((DATA / f"{name}.{'json' if json else 'text'}").read_bytes()[:cut])
                return

    return serve


def asked(port: int, seconds: float = 5.0) -> dict[str, Any] | None:
    environ = {b"NCCL_RAS_ADDR": b"localhost:%d" % port}
    asked = ras.Ras({os.getpid(): environ}, time.monotonic() + seconds)
    asked.begin()
    return asked.facts()


def status(*groups: dict[int, int], text: bool = False) -> ras.RasStatus:
    """An answer with communicators, each of launches by pid."""
    found = ras.RasStatus()
    found.text = text
    for number, group in enumerate(groups):
        communicator = found.communicators.setdefault(str(number), ras.Communicator())
        for rank, (pid, count) in enumerate(group.items()):
            member = communicator.members[rank] = ras.Member(rank)
            member.host, member.pid, member.counts = "h", pid, {"all_reduce": count}
    return found


def test_a_late_process_lacks_at_the_second_answer_what_another_had_at_the_first() -> None:
    def late(first: ras.RasStatus, second: ras.RasStatus) -> list[int] | None:
        found = ras.late_processes(first, second)
        return None if found is None else sorted(pid for _, pid in found)

    assert late(status({1: 7, 2: 7, 3: 5}), status({1: 7, 2: 7, 3: 5})) == [3]
    # All went on in between; ranks that answered a moment earlier are not late.
    assert late(status({1: 7, 2: 6, 3: 5}), status({1: 9, 2: 8, 3: 7})) == []
    assert late(status({1: 7, 2: 7}), status({1: 7, 2: 7})) == []
    # Tensor parallel groups (1, 2) and (3, 4), data parallel ones (1, 3) and (2, 4): all wait for 4.
    groups = ({1: 9, 2: 9}, {3: 9, 4: 8}, {1: 5, 3: 4}, {2: 5, 4: 4})
    assert late(status(*groups), status(*groups)) == [4]
    assert late(status(*groups, text=True), status(*groups, text=True)) is None
    assert late(status({1: 1}), status()) == []


def test_late_processes_are_counted_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_PAUSE", 0.01)
    with service(speaks()) as port:
        environ = {b"NCCL_RAS_ADDR": b"localhost:%d" % port}
        found = ras.Ras({os.getpid(): environ}, time.monotonic() + 60).lags(2)
        assert found is not None
        assert found["looks"] > 1
        assert [count for _, _, count in found["late"]] == [found["looks"]]
        assert ras.Ras({os.getpid(): environ}, time.monotonic() - 1).lags(2) is None
    assert ras.Ras({}, time.monotonic() + 60).lags(2) is None


@pytest.mark.parametrize("json", [True, False])
def test_asked_as_the_program_of_nccl_does(json: bool) -> None:
    with service(speaks(json)) as port:
        found = asked(port)
    assert found is not None
    assert behind(found)[4] == {2: ({"all_reduce": [22, 24]}, [])}


def test_a_stopped_rank_behind_the_shared_port_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_GREETING", 0.1)
    monkeypatch.setattr(ras, "_TRIES", 40)
    with service(speaks()) as port, socket.socket() as stopped:
        stopped.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stopped.bind(("127.0.0.1", port))
        stopped.listen()
        for _ in range(3):
            found = asked(port, 10)
            assert found is not None
            assert found["problem"] is None


def test_a_service_that_says_nothing_or_half_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_GREETING", 0.05)
    with service(lambda connection: time.sleep(0.2)) as port:
        found = asked(port, 0.4)
    assert found is not None
    assert found["problem"] == "NCCL's RAS service does not answer"
    with service(speaks(cut=900)) as port:
        found = asked(port)
    assert found is not None
    assert found["problem"] == "NCCL's RAS service does not answer"


def test_the_service_of_another_process_is_not_asked() -> None:
    with service(speaks()) as port:
        assert asked(port) is not None
        environ = {b"NCCL_RAS_ADDR": b"localhost:%d" % port}
        assert list(ras.services({os.getppid(): environ})) == []
        assert list(ras.services({os.getpid(): {**environ, b"NCCL_RAS_ENABLE": b"0"}})) == []
        assert list(ras.services({os.getpid(): {}})) == []


def test_own_listening_sockets_of_both_families() -> None:
    with socket.socket() as four, socket.socket(socket.AF_INET6) as six:
        four.bind(("127.0.0.1", 0))
        four.listen()
        six.bind(("::", 0))
        six.listen()
        found = listening(os.getpid())
        assert {("127.0.0.1", four.getsockname()[1]), ("::", six.getsockname()[1])} <= set(found)
