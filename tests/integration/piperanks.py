"""A rank without torch that dumps its flight recorder as torch does with NCCL: when a byte comes through a named pipe.

`piperanks.py SLOW`: rank SLOW has not joined collective 8, in which the others wait, and sleeps.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time

from tests.unit.diagnosis.flights import document, entry


def serve(number: int, slow: int) -> None:
    """Looks once in 0.1 s for what was written to the pipe; torch does it once a second."""
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{number}.pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    begun = time.time_ns()
    while True:
        if os.read(pipe, 128):
            entries = [entry(seq, time_created_ns=begun) for seq in range(1, 8)]
            entries += [] if number == slow else [entry(8, state="started", time_created_ns=begun)]
            data = pickle.dumps(document(entries), protocol=2)
            with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{number}", "wb", buffering=0) as file:
                file.write(data[:100])
                time.sleep(0.1)
                file.write(data[100:])
        time.sleep(0.1)


def main() -> None:
    number, slow = int(os.environ["RANK"]), int(sys.argv[1])
    threading.Thread(target=serve, args=(number, slow), daemon=True).start()
    if number == slow:
        time.sleep(10_000)
    threading.Event().wait()


if __name__ == "__main__":
    main()
