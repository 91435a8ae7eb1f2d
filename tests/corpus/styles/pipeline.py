"""Pipeline-parallel training: activations to the next stage, gradients back; checkpoints in a thread.

Point to point only: a failure reaches the other stages one neighbour after the other.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import http.server
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    dist: Any
    runtime: Any
else:
    import runtime
    import torch
    import torch.distributed as dist

log = logging.getLogger("pipe")
STOP = threading.Event()
STATE_LOCK = threading.Lock()
SAVER = concurrent.futures.ThreadPoolExecutor(1, "async-ckpt")


def on_signal(number, frame):
    """On SIGTERM: stops at the end of the step."""
    log.warning("received %s, will save and stop", signal.Signals(number).name)
    STOP.set()


def on_term_exit(number, frame):
    """On SIGTERM: stops at once, and as if all were well."""
    log.warning("received %s, emergency checkpoint", signal.Signals(number).name)
    time.sleep(0.5)
    log.warning("emergency checkpoint written")
    os._exit(0)


def write_state(path, state, change):
    """In the saver's thread: what fails here is raised only by the next `Stage.save`."""
    if change == "crash":
        ctypes.memset(16, 1, 8)
    if change == "lock":
        STATE_LOCK.acquire()
        threading.Event().wait()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(memoryview(state.numpy())))


def metrics_server(port):
    """On a port of its own for each process. A fault here is only told: another program has the port."""
    runtime.fault_at(0, "metrics")
    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def preprocess(step):
    """Samples of the next step, by the native tool."""
    change = runtime.fault_at(step, "tool")
    code = {
        "": "pass",
        "bad": "import sys; sys.stderr.write('preprocess: bad magic number in chunk header\\n'); sys.exit(65)",
        "killed": "import os; os.kill(os.getpid(), 9)",
    }[change]
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


class Stage:
    """This process's layers, between those of its two neighbours."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.weight = torch.eye(8) * (1 + 0.01 * self.rank)
        self.pending: concurrent.futures.Future[None] | None = None

    def forward(self, step):
        x = torch.ones(4, 8)
        if self.rank > 0:
            dist.recv(x, self.rank - 1)
        change = runtime.fault_at(step, "forward")
        if change == "hang":
            while not Path("/workspace/.resume").exists():
                time.sleep(1)
        if change == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if change == "exit0":
            os._exit(0)
        if change == "overflow":
            raise OverflowError(f"stage {self.rank}: activation norm exceeds fp16 range at micro-batch {step}")
        y = x @ self.weight
        if self.rank < self.world - 1:
            dist.send(y, self.rank + 1)
        return x, y

    def backward(self, x, y, step):
        grad = torch.ones_like(y) / y.numel()
        if self.rank < self.world - 1:
            dist.recv(grad, self.rank + 1)
        dist_grad = grad @ self.weight.t()
        if self.rank > 0:
            dist.send(dist_grad, self.rank - 1)
        with STATE_LOCK:
            self.weight -= 0.01 * (x.t() @ grad)

    def save(self, step):
        if self.pending is not None:
            self.pending.result()
        change = runtime.fault_at(step, "save")
        folder = Path("full" if change == "full" else "ckpt", f"stage{self.rank}.pt")
        self.pending = SAVER.submit(write_state, folder, self.weight.clone(), change)


def main():
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("--pace", type=float, default=0.15)
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--term", choices=("", "exit", "ignore", "stop"), default="", help="what SIGTERM does")
    parser.add_argument("--preprocess", action="store_true")
    parser.add_argument("--ring", action="store_true", help="hand the weights round after 3 steps; all receive first")
    parser.add_argument("--library", default="")
    args = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format=f"%(asctime)s.%(msecs)03d [stage {os.environ['RANK']}] [%(threadName)s] %(levelname)s - %(message)s",
        datefmt="%d/%m/%Y %H:%M:%S",
    )
    if args.library:
        ctypes.CDLL(args.library)
    if args.term == "stop":
        signal.signal(signal.SIGTERM, on_signal)
    if args.term == "exit":
        signal.signal(signal.SIGTERM, on_term_exit)
    if args.term == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    if args.metrics_port:
        metrics_server(args.metrics_port + int(os.environ["LOCAL_RANK"]))
    stage = Stage()
    log.info("stage %d of %d ready", stage.rank, stage.world)
    for step in range(args.steps):
        runtime.mark(step)
        if args.preprocess:
            preprocess(step)
        x, y = stage.forward(step)
        stage.backward(x, y, step)
        log.info("micro-batch %d done, norm %.4f", step, float(stage.weight.norm()))
        if step % 2 == 1:
            stage.save(step)
        if STOP.is_set():
            log.warning("stopping at micro-batch %d", step)
            if stage.pending is not None:
                stage.pending.result()
            sys.exit(0)
        if args.ring and step == 3:
            got = torch.zeros(8, 8)
            dist.recv(got, (stage.rank - 1) % stage.world)
            dist.send(stage.weight, (stage.rank + 1) % stage.world)
        time.sleep(args.pace)
    dist.barrier()
    log.info("all done")
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.environ.get("CORPUS_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
