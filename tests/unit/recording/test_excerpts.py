from __future__ import annotations

import pytest

from atlctl.recording.excerpts import TRACE, around, versions
from atlctl.recording.recorder.store import StateChange, read_states


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "w.log"
    path.write_text("".join(f"line {number}\n" for number in range(1, 21)))
    return path


def test_lines_around(log):
    found = around(str(log), {number: number for number in (10, 1, 20, 99)})
    assert {number: (item.first, len(item.lines), item.lines[0]) for number, item in found.items()} == {
        10: (6, 8, "line 6"),
        1: (1, 4, "line 1"),
        20: (16, 5, "line 16"),
    }
    assert around(str(log), {}) == {}


def test_a_traceback_from_its_beginning(tmp_path):
    """Lines of the same process, without prefixes; if it is too long, its beginning is dropped."""
    path = tmp_path / "w.log"
    stamp = "2026-11-20T17:45:05.000000000Z "
    frames = [f"{stamp}[rank{at % 2}]:   File {at}" for at in range(10)]
    path.write_text("\n".join([f"{stamp}[rank1]: Traceback", *frames, f"{stamp}[rank1]: ValueError", "after"]) + "\n")
    (found,) = around(str(path), {12: 1}).values()
    assert (found.first, len(found.lines)) == (8, 6)
    odd = [(at + 2, f"  File {at}") for at in range(1, 10, 2)]
    assert found.trace == [(1, "Traceback"), *odd, (12, "ValueError")]
    path.write_text("".join(f"line {at}\n" for at in range(1, 1001)))
    (found,) = around(str(path), {900: 2}).values()
    assert (found.trace[0], found.trace[-1]) == ((900 - TRACE, f"line {900 - TRACE}"), (900, "line 900"))
    (found,) = around(str(path), {900: 898}).values()
    assert found.trace == []  # the passage contains everything


def test_long_lines_and_codes_of_terminals(tmp_path):
    path = tmp_path / "w.log"
    path.write_bytes(b"\x1b[31mred\x1b[0m\n" + b"x" * 200_000 + b"\nafter \xff\nlast")
    (found,) = around(str(path), {2: 2}).values()
    assert [len(line) for line in found.lines] == [3, 402, 7, 4]
    assert found.lines[0] == "red"


def test_links_are_not_followed(log, tmp_path):
    (tmp_path / "link").symlink_to(log)
    with pytest.raises(OSError, match="link"):
        around(str(tmp_path / "link"), {1: 1})
    with pytest.raises(OSError, match="link"):
        versions(str(tmp_path / "link"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("PyTorch version: 2.8.0+cu128", {"torch": "2.8.0+cu128"}),
        ("torch 2.4.1, loss 0.1", {"torch": "2.4.1"}),
        ("gpu-01:14:14 [0] NCCL INFO NCCL version 2.27.3+cuda12.8", {"NCCL": "2.27.3+cuda12.8"}),
        ("NCCL version 2.21.5+cuda12.4", {"NCCL": "2.21.5+cuda12.4"}),
        ("CUDA runtime version: 12.8", {"CUDA": "12.8"}),
        (
            "| NVIDIA-SMI 570.86.10    Driver Version: 570.86.10    CUDA Version: 12.8 |",
            {"driver": "570.86.10", "CUDA": "12.8"},
        ),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", {"GPU": "H100 80GB HBM3"}),
        ("Python 3.11.7 (main)", {"Python": "3.11.7"}),
        (
            "I1120 18:08:25.8 11 torch/launcher/api.py:254]   entrypoint               : train.py",
            {"command": "train.py"},
        ),
        ("+ torchrun --nnodes=2 train.py --lr 0.1", {"command": "torchrun --nnodes=2 train.py --lr 0.1"}),
        ("+ /opt/venv/bin/python3 -m x", {"command": "/opt/venv/bin/python3 -m x"}),
        ("+ echo torch", {}),
        ("step 2.5 of torch", {}),
    ],
)
def test_versions(tmp_path, line, found):
    path = tmp_path / "w.log"
    path.write_text(f"first\n2026-11-20T17:45:05.000000000Z {line}\n")
    assert versions(str(path)) == found


def test_states(tmp_path):
    assert read_states(str(tmp_path)) == []
    path = tmp_path / "states.jsonl"
    path.write_text(
        '{"time": 1.5, "worker": "w", "state": "Failed", "reason": null}\n'
        'not\n[]\n{"time": "x", "worker": "w"}\n{"time": 2}\n'
    )
    assert read_states(str(tmp_path)) == [StateChange(1.5, "w", "Failed")]
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert read_states(str(tmp_path)) == []
