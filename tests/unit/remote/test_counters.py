"""Counters of the kernel: real ones of this process, made-up files, and answers of the kernel cut anywhere."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from atlctl.remote import counters


def put(root: Path, path: str, text: str) -> str:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(root)


def test_machine_counts_ticks_by_kind_and_pressure(tmp_path: Path) -> None:
    put(tmp_path, "proc/stat", "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1\n")
    for what in ("cpu", "memory", "io"):
        put(tmp_path, f"proc/pressure/{what}", "some avg10=0.00 avg60=0.00 avg300=0.00 total=70\n")
    found = counters.machine(str(tmp_path))
    assert found["ticks"] == {
        "user": 1,
        "nice": 2,
        "system": 3,
        "idle": 4,
        "iowait": 5,
        "irq": 6,
        "softirq": 7,
        "steal": 8,
    }
    assert found["pressure"] == {what: {"some": 70} for what in ("cpu", "memory", "io")}


def test_pressure_is_that_of_the_group_if_it_counts_it(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/pod\n")
    text = "some avg10=0.00 avg60=0.06 avg300=0.28 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    for what in ("cpu", "memory"):
        put(tmp_path, f"sys/fs/cgroup/pod/{what}.pressure", text)
        put(tmp_path, f"proc/pressure/{what}", text.replace("5", "9"))
    assert counters.machine(str(tmp_path)) == {
        "ticks": None, "pressure": {"cpu": {"some": 5, "full": 3}, "memory": {"some": 5, "full": 3}},
    }  # fmt: skip


def test_process_counts_faults_and_writes() -> None:
    before = counters.process(os.getpid())
    with open(os.devnull, "wb", buffering=0) as file:
        file.writelines([b"x" * 10] * 100)
    after = counters.process(os.getpid())
    assert after["syscw"] - before["syscw"] >= 100
    assert after["wchar"] - before["wchar"] >= 1000
    assert after["major_faults"] >= before["major_faults"]
    assert counters.process(1 << 30) == {
        "major_faults": None,
        "throttled_us": counters.process(1 << 30)["throttled_us"],
    }


def test_interfaces_and_ports(tmp_path: Path) -> None:
    head = "Inter-|   Receive\n face |bytes\n"
    rows = "    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 1 2 3 0 0 0 0 20 1 4 5 0 0 0 0\n  odd: x\n"
    put(tmp_path, "proc/self/net/dev", head + rows)
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "7\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "odd\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", "4\n")
    put(tmp_path, "proc/self/root/sys/class/net/eth0/carrier_changes", "6\n")
    assert counters.interfaces(root=str(tmp_path)) == {
        "eth0": {
            "rx_packets": 1, "rx_errors": 2, "rx_dropped": 3, "tx_packets": 1, "tx_errors": 4, "tx_dropped": 5,
            "carrier_changes": 6,
        },
        "mlx5_0/1": {"symbol_error": 7, "packet_seq_err": 4},
    }  # fmt: skip


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_network_counts_what_a_connection_carried(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listening, socket.socket(family) as client:
        listening.bind((host, 0))
        listening.listen()
        client.connect(listening.getsockname())
        server, _ = listening.accept()
        with server:
            ends = (host, client.getsockname()[1], host, listening.getsockname()[1])
            before, addresses = counters.network(os.getpid())
            client.sendall(b"x" * 5000)
            assert len(server.recv(5000, socket.MSG_WAITALL)) == 5000
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                found = counters.grown(before, counters.network(os.getpid())[0])
                (one,) = [
                    item for item in found if (item["host"], item["port"], item["peer"], item["peer_port"]) == ends
                ]
                if one["acked"] == 5000:
                    break
            assert (one["acked"], one["retransmitted"]) == (5000, 0)
            assert "127.0.0.1" in addresses


def test_network_of_a_process_that_is_gone() -> None:
    assert counters.network(1 << 30)[0] == []


def message(body: bytes, kind: int = 20) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def body(family: int = 2, info: bytes = bytes(232)) -> bytes:
    host, peer = socket.inet_aton("10.0.0.1").ljust(16, b"\0"), socket.inet_aton("10.0.0.2").ljust(16, b"\0")
    head = struct.pack(">BBBBHH16s16s", family, 1, 0, 0, 80, 81, host, peer) + bytes(12)
    attributes = struct.pack("=HH", 4 + 5, 9) + bytes(8) + struct.pack("=HH", 4 + len(info), 2) + info
    return head + struct.pack("=IIIII", 0, 0, 0, 0, 77) + attributes


def test_connections_of_an_answer() -> None:
    info = bytearray(232)
    struct.pack_into("=I", info, 100, 5)
    struct.pack_into("=Q", info, 120, 1 << 40)
    data = message(body(info=bytes(info))) + message(body(family=9)) + message(b"", 3)
    (one,), ended = counters.connections(data)
    assert ended
    assert (one["host"], one["port"], one["peer"], one["peer_port"], one["inode"]) == (
        "10.0.0.1",
        80,
        "10.0.0.2",
        81,
        77,
    )
    assert (one["retransmitted"], one["acked"]) == (5, 1 << 40)


def test_connections_of_an_old_kernel_have_fewer_counters() -> None:
    ((one,), _) = counters.connections(message(body(info=bytes(104))))
    assert "retransmitted" in one
    assert "acked" not in one
    (grown,) = counters.grown([one], [dict(one, retransmitted=3)])
    assert grown["retransmitted"] == 3


def test_connections_takes_any_bytes() -> None:
    data = message(body()) + message(body(10)) + message(b"", 3)
    for cut in range(len(data)):
        counters.connections(data[:cut])
        for byte in (0, 255):
            counters.connections(data[:cut] + bytes([byte]) + data[cut + 1 :])


def smi(tmp_path: Path, text: str) -> str:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + text)
    tool.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def looked() -> counters.GpuLooks:
    gpus = counters.GpuLooks()
    deadline = time.monotonic() + 20
    while not gpus.looks and not gpus.problem and time.monotonic() < deadline:
        gpus.poll()
        time.sleep(0.01)
    gpus.poll(last=True)
    return gpus


def test_gpus_are_queried_again_without_an_unknown_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, GPU-1, H100, 97, 1, 81559, 310.5, 92, 0, 840, 7"
    text = f'case $1 in *event_reasons*) exit 2;; *throttle*) echo "{row}, 0x40";; esac\n'
    monkeypatch.setenv("PATH", smi(tmp_path, text))
    gpus = looked()
    assert gpus.problem == ""
    (found,) = gpus.looks[0]
    assert found["ecc.errors.corrected.volatile.total"] == 7.0
    assert (found["slowed"], found["clocks.sm"], found["power.draw"], found["index"]) == (("heat",), 840.0, 310.5, 0)


@pytest.mark.parametrize("text", ["echo nonsense; exit 9\n", "exit 1\n", "exit 2\n", "head -c 300000 /dev/zero\n"])
def test_gpus_of_a_tool_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PATH", smi(tmp_path, text))
    gpus = looked()
    assert gpus.looks == []
    assert gpus.problem


def test_gpus_of_a_tool_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_QUERY", 0.2)
    monkeypatch.setenv("PATH", smi(tmp_path, "exec sleep 1000\n"))
    assert looked().problem == "nvidia-smi does not answer"


@pytest.mark.parametrize(
    ("visible", "local", "wanted"),
    [(None, 3, "3"), (b"4,5", 1, "5"), (b"GPU-7", 3, "GPU-7"), (b"4,5", 2, None), (b"", 0, None), (None, None, None)],
)
def test_gpu_of_a_rank(visible: bytes | None, local: int | None, wanted: str | None) -> None:
    environ = {} if visible is None else {b"CUDA_VISIBLE_DEVICES": visible}
    assert counters.gpu_of(environ, local) == wanted
