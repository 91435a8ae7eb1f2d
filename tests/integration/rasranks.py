"""A rank without torch that waits as one with NCCL does: it uses a CPU, and a thread answers for all ranks as RAS does.

`rasranks.py FOLDER RANKS SLOW`: the ranks know each other by files in FOLDER; rank SLOW has launched less, and sleeps.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any


def member(number: int, pid: int, launched: int) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": launched}
    place = {"rank": number, "host": "127.0.0.1", "pid": pid, "cuda_dev": 0, "nvml_dev": 0}
    return {**place, "status": status, "collective_counts": counts}


def serve(listener: socket.socket, folder: Path, ranks: int, slow: int) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"CLIENT"):
                    connection.sendall(b"SERVER PROTOCOL 2\n")
                elif b"STATUS" not in line:
                    connection.sendall(b"OK\n")
                else:
                    pids = [int((folder / f"{number}").read_text()) for number in range(ranks)]
                    members = [member(number, pid, 40 + 2 * (number != slow)) for number, pid in enumerate(pids)]
                    whole = {"hash": "0x1", "secondary_hash": "0x2:0x3", "size": ranks, "ranks": members}
                    answer = {
                        "nccl_version": "2.28.9",
                        "communicators": [{**whole, "missing_ranks": []}],
                        "ras": {"timeouts_count": 0},
                    }
                    connection.sendall(json.dumps(answer, indent=2).encode() + b"\n")
                    break


def main() -> None:
    folder, ranks, slow = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", int(os.environ["NCCL_RAS_ADDR"].partition(":")[2])))
    listener.listen()
    number = int(os.environ["RANK"])
    (folder / f"{number}.new").write_text(str(os.getpid()))
    (folder / f"{number}.new").rename(folder / str(number))
    threading.Thread(target=serve, args=(listener, folder, ranks, slow), daemon=True).start()
    while number == slow:
        time.sleep(1)
    while True:
        pass


if __name__ == "__main__":
    main()
