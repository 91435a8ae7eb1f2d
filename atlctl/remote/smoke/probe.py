"""One rank of the smoke test, and everything that needs torch. A separate program: Python 3.8 and torch 1.13 only.

`atlctl smoke` sends it to workers, where a process imports it once and forks the ranks (`rank`). It also runs under
torchrun: with `torchrun --nnodes ... probe.py`, rank 0 prints a verdict.

All inputs come from a formula, so each rank knows what the others must have sent: a wrong bit identifies its sender.
Results are reported by `say(ev=..., ...)` and judged by the client.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import fcntl
import hashlib
import importlib
import json
import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore as _PrefixStore  # type: ignore[attr-defined]
from torch.distributed import TCPStore as _TCPStore  # type: ignore[attr-defined]
from torch.distributed import rendezvous as _rendezvous  # type: ignore[attr-defined]

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Say = Callable[..., None]
    Spec = dict[str, Any]

#: Maximum bytes used by a rank in addition to torch, and maximum share of a GPU's free memory.
CAP, SHARE = 64 << 20, 0.1
#: Micro-batches that each rank computes for the vote, starting with its own.
VOTES = 3
_OURS = "atlctl smoke"
_UNSUPPORTED = ("not support", "not implemented", "unsupported", "no backend type", "not available")


# Environment


def versions() -> Spec:
    """Versions of torch and of the libraries it was built with. Does not use a GPU."""
    cuda = torch.version.cuda
    nccl = None
    if cuda and dist.is_available() and dist.is_nccl_available():
        found: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        nccl = ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
    return {
        "torch": str(torch.__version__),
        "cuda": cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": nccl,
        "gloo": bool(dist.is_available() and getattr(dist, "is_gloo_available", lambda: True)()),
        "python": ".".join(map(str, sys.version_info[:3])),
        "file": os.path.dirname(str(torch.__file__)),
    }


def prepare(stage: str) -> None:
    """Import slow modules of `stage` before ranks are forked."""
    needs = {"ddp": "torch._dynamo", "fsdp": "torch.distributed.fsdp"}  # the constructor of DDP imports the first
    if stage in needs:
        with contextlib.suppress(ImportError):
            importlib.import_module(needs[stage])


def addresses() -> list[list[str]]:
    """[interface, address] pairs of this machine, loopback last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                packed = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
                found.append([name, socket.inet_ntoa(packed[20:24])])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        lines = [line.split() for line in file]
        six = [fields for fields in lines if fields[3] in ("00", "10")]  # global, host
        found += [[fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))] for fields in six]
    return sorted(found, key=lambda pair: (pair[1].startswith("127.") or pair[1] == "::1", ":" in pair[1]))


# A rank


class Rank:
    """One rank process of a stage. `say` reports to the client, `wait` returns its next command."""

    def __init__(self, spec: Spec, say: Say, wait: Callable[[], Spec]) -> None:
        self.spec, self.say, self.wait = spec, say, wait
        self.rank, self.world = 0, 1
        self.store: Any = None
        gpu = spec.get("gpu")
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", ordinal(spec))
        if gpu is not None:
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def sync(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def room(self) -> int:
        """The bytes that this rank may use: on a GPU at most a tenth of the free memory."""
        cap = int(self.spec.get("cap") or CAP)
        return min(cap, int(torch.cuda.mem_get_info(self.device)[0] * SHARE)) if self.on_gpu else cap

    def join(self) -> None:
        """Connect to the leader's store, wait for all ranks, and create the process group."""
        orders = self.wait()
        self.rank, self.world = int(orders["rank"]), int(orders["world"])
        seconds = dt.timedelta(seconds=float(orders["seconds"]))
        begun = time.monotonic()
        self.say(ev="step", step="store")
        if orders["lead"]:
            self.store, found = _open(seconds)
            self.say(ev="store", port=self.store.port, addresses=found)
        else:
            self.store, interface = _connect(orders["store"], self.world, seconds)
            _use(interface)
        self.say(ev="step", step="meeting")
        self._meet(begun + float(orders["seconds"]))
        if orders["lead"] and self.world > 1:
            used = self.store.get("via").decode()
            _use(next((name for name, address in found if address == used), None))
        self.say(ev="step", step="init")
        backend = "nccl" if self.on_gpu else "gloo"
        dist.init_process_group(
            backend, store=_PrefixStore("group", self.store), rank=self.rank, world_size=self.world, timeout=seconds
        )
        self.say(ev="joined", seconds=round(time.monotonic() - begun, 4))

    def _meet(self, until: float) -> None:
        """Wait for all ranks of the group at the store, over the network that the data will use."""
        self.store.set(f"here/{self.rank}", "1")
        self.store.add("count", 1)
        while self.store.add("count", 0) < self.world:
            if time.monotonic() > until:
                missing = [rank for rank in range(self.world) if not self.store.check([f"here/{rank}"])]
                numbers = ", ".join(map(str, missing))
                raise RankError("alone", "ranks [{numbers}] of the group did not come to the store", numbers=numbers)
            time.sleep(0.01)

    def leave(self) -> None:
        """Leave the store; its owner waits for the others."""
        self.store.add("bye", 1)
        end = time.monotonic() + 2
        while self.rank == 0 and self.store.add("bye", 0) < self.world and time.monotonic() < end:
            time.sleep(0.005)


class RankError(RuntimeError):
    """An error that the client can translate. `kind`: its type, for the client's decisions."""

    def __init__(self, kind: str, template: str, **values: Any) -> None:
        super().__init__(template.format(**values))
        self.kind, self.template, self.values = kind, template, values


def rank(spec: Spec, say: Say, wait: Callable[[], Spec]) -> None:
    """Run one rank for one stage, in a forked process."""
    torch.set_num_threads(1)
    say(ev="up", pid=os.getpid())
    own = Rank(spec, say, wait)
    stage, alone = STAGES[str(spec["stage"])]
    if alone:
        stage(own)
    else:
        own.join()
        stage(own)
    say(ev="done")
    if not alone:
        own.leave()


def ordinal(spec: Spec) -> int:
    """CUDA's number of the GPU that is `gpu` in nvidia-smi; CUDA_VISIBLE_DEVICES may hide some."""
    if "ordinal" in spec:
        return int(spec["ordinal"])
    gpu, visible = int(spec["gpu"]), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpu
    shown = [word.strip() for word in visible.split(",") if word.strip()]
    uuid = str(spec.get("uuid") or "")
    for place, word in enumerate(shown):
        if word == str(gpu) or (uuid and word.startswith("GPU-") and uuid.startswith(word)):
            return place
    raise RankError("hidden", "GPU {number} is hidden by CUDA_VISIBLE_DEVICES={visible}", number=gpu, visible=visible)


def _open(seconds: dt.timedelta) -> tuple[Any, list[list[str]]]:
    """Open a store on a free port of all interfaces; this process uses loopback if possible."""
    found = addresses()
    problem: Exception = RankError("no_address", "no interface has an address")
    for address in ["127.0.0.1", "::1", *(address for _, address in found)]:
        try:
            store = _TCPStore(address, 0, None, True, seconds, wait_for_workers=False)
        except (RuntimeError, ValueError) as error:
            problem = error
            continue
        store.set("whose", _OURS)
        return store, found
    raise problem


def _connect(place: Spec, world: int, seconds: dt.timedelta) -> tuple[Any, str | None]:
    """Connect to the leader's store at the first address that answers; returns it and the local interface."""
    problems = []
    for patience in (0.5, 3.0):
        for address in place["addresses"]:
            try:
                with socket.create_connection((address, place["port"]), patience) as trying:
                    own = str(trying.getsockname()[0])
                store = _TCPStore(address, place["port"], world, False, seconds, wait_for_workers=False)
                if store.check(["whose"]) and store.get("whose").decode() == _OURS:
                    store.set("via", address)
                    return store, next((name for name, found in addresses() if found == own), None)
                problems.append(f"{address}: another program answers")
            except (OSError, RuntimeError) as error:
                problems.append(f"{address}: {str(error).splitlines()[0][:120]}")
    raise RankError(
        "unreached",
        "the store of the leader cannot be reached on port {port}: {errors}",
        port=place["port"],
        errors="; ".join(problems),
    )


def _use(interface: str | None) -> None:
    """Set the interface for the libraries, in case the host's name has a wrong address; keeps the user's settings."""
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)


# Tensors


def raw(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes, without numpy, which may be missing."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(raw(tensor)).hexdigest()[:16]


def differs(got: torch.Tensor, want: torch.Tensor) -> list[Any]:
    """Empty if all bits are equal; else number of wrong values, position of the first, its value and the right one."""
    places = (got.view(torch.int32) != want.view(torch.int32)).nonzero().view(-1)
    if not len(places):
        return []
    first = int(places[0])
    return [len(places), first, repr(float(got[first])), repr(float(want[first]))]


def pattern(sender: int, length: int, device: torch.device) -> torch.Tensor:
    """The data of `sender`: small integers, so sums are exact in any order and can be compared bit by bit."""
    return ((torch.arange(length, device=device) * 31 + (sender + 1) * 17) % 251).to(torch.float32)


# The stage device


def device(own: Rank) -> None:
    """The stage `device`: check memory with patterns, and matrix products against fp64."""
    if own.on_gpu:
        free, total = torch.cuda.mem_get_info(own.device)
        own.say(ev="gpu", name=torch.cuda.get_device_name(own.device), free=free, total=total)
    own.say(ev="step", step="memory")
    own.say(ev="result", step="memory", **memory(own))
    for name in ("fp32", "bf16", "fp16"):
        own.say(ev="step", step="matmul " + name)
        try:
            found = matmul(own, name)
        except RuntimeError as error:
            if not _lacks(error):
                raise
            own.say(ev="skipped", step="matmul " + name, why=str(error)[:200])
            continue
        own.say(ev="result", step="matmul " + name, **found)


def memory(own: Rank) -> Spec:
    """Write and read back four patterns in the available memory; the fourth has a unique value for each position."""
    count = own.room() // (8 if own.on_gpu else 32)
    block = torch.empty(count, dtype=torch.int32, device=own.device)
    bad: list[Any] = []
    for value in (0x55555555, -0x55555556, 0):
        block.fill_(value)
        own.sync()
        bad += _places(block != value)
    torch.arange(count, dtype=torch.int32, out=block)
    own.sync()
    step = 1 << 20
    for begin in range(0, count, step):
        part = block[begin : begin + step]
        bad += [begin + place for place in _places(part != torch.arange(begin, begin + len(part), device=own.device))]
    return {"bytes": count * 4, "wrong": bad[:8]}


def _places(wrong: torch.Tensor) -> list[int]:
    return [int(place) for place in wrong.nonzero().view(-1)[:8]] if bool(wrong.any()) else []


#: Maximum difference from the fp64 product of the same inputs, relative to its greatest value.
TOLERANCES = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 4e-3}


def matmul(own: Rank, name: str) -> Spec:
    """Compare the first rows with the fp64 product on the CPU, and all rows by products with signs (Freivalds)."""
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    side = (1024 if own.on_gpu else 384) if name == "fp32" else (1024 if own.on_gpu else 96)
    random = torch.Generator().manual_seed(7)
    left, right = (torch.randn(side, side, generator=random).to(kind) for _ in range(2))
    there = left.to(own.device), right.to(own.device)
    product = there[0] @ there[1]
    own.sync()
    begun = time.monotonic()
    for _ in range(3):
        product = there[0] @ there[1]
    own.sync()
    seconds = (time.monotonic() - begun) / 3
    signs = torch.randint(0, 2, (side, 4), generator=random).double() * 2 - 1
    got, want = product.double().cpu(), left[:96].double() @ right.double()
    error = float((got[:96] - want).abs().max() / want.abs().max())
    # The sum of `side` rounding errors with random signs grows like the square root of `side`; NaN must not pass.
    rest = (got @ signs - left.double() @ (right.double() @ signs)).abs() / want.abs().max() / side**0.5
    return {
        "error": error if error == error else None,
        "rest": float(rest.max()) if bool((rest == rest).all()) else None,
        "at": int((got[:96] - want).abs().max(dim=1).values.argmax()),
        "limit": TOLERANCES[name],
        "seconds": seconds,
    }


def _lacks(error: Exception) -> bool:
    """Whether this torch version or backend does not support the operation."""
    return isinstance(error, NotImplementedError) or any(words in str(error).lower() for words in _UNSUPPORTED)


# The stage collectives


def collectives(own: Rank) -> None:
    """The stage `collectives`: run each collective once with exact integers, and compare every bit."""
    length = min(65536, own.room() // (4 * (2 * own.world + 8))) // own.world * own.world or own.world
    test = Collectives(own, length)
    for name in ("barrier", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"):
        if name == "send_recv" and own.world < 2:
            continue
        own.say(ev="step", step=name)
        test.before = test.inside = 0.0
        begun = time.monotonic()
        try:
            found = getattr(test, name)()
            own.sync()
        except (RuntimeError, NotImplementedError) as error:
            if not _lacks(error):
                raise
            own.say(ev="skipped", step=name, why=str(error)[:200])
            continue
        found.update(before=round(test.before, 4), inside=round(test.inside, 4))
        own.say(ev="result", step=name, seconds=round(time.monotonic() - begun, 5), **found)


class Collectives:
    """The collectives. `wrong` in their results: differences by sender, if it is known."""

    def __init__(self, own: Rank, length: int) -> None:
        self.own, self.length, self.part = own, length, length // own.world
        self.total = torch.zeros(length, device=own.device)
        for sender in range(own.world):
            self.total += self.expected(sender)
        #: Seconds of the current step: between the collectives without waiting for a CPU, and inside them.
        self.before = self.inside = 0.0
        self._ended: tuple[float, float] | None = None

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """One collective."""
        begun = time.monotonic()
        if self._ended is not None:
            self.before += max(0.0, begun - self._ended[0] - ((_waited() or 0.0) - self._ended[1]))
        yield
        self.own.sync()
        self._ended = time.monotonic(), _waited() or 0.0
        self.inside += self._ended[0] - begun

    def expected(self, sender: int) -> torch.Tensor:
        return pattern(sender, self.length, self.own.device)

    def sent(self) -> torch.Tensor:
        """The input of this rank."""
        return pattern(self.own.rank, self.length, self.own.device)

    def empty(self, length: int) -> torch.Tensor:
        return torch.full((length,), -1.0, device=self.own.device)

    def barrier(self) -> Spec:
        with self.timed():
            dist.barrier()
        return {"wrong": {}}

    def all_reduce(self) -> Spec:
        values = self.sent()
        with self.timed():
            dist.all_reduce(values)
        wrong = differs(values, self.total)
        return {"wrong": {}, "sum": wrong, "digest": digest(values)}

    def all_gather(self) -> Spec:
        values, sent = [self.empty(self.length) for _ in range(self.own.world)], self.sent()
        with self.timed():
            dist.all_gather(values, sent)
        return self._wrong({sender: (values[sender], self.expected(sender)) for sender in range(self.own.world)})

    def reduce_scatter(self) -> Spec:
        begin = self.own.rank * self.part
        values, sent = self.empty(self.part), self.sent()
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        with self.timed():
            scatter(values, sent)
        return {"wrong": {}, "sum": differs(values, self.total[begin : begin + self.part])}

    def broadcast(self) -> Spec:
        """Broadcast from the first and the last rank."""
        pairs = {}
        for sender in sorted({0, self.own.world - 1}):
            values = self.sent() if sender == self.own.rank else self.empty(self.length)
            with self.timed():
                dist.broadcast(values, sender)
            pairs[sender] = values, self.expected(sender)
        return self._wrong(pairs)

    def all_to_all(self) -> Spec:
        values, sent, part, begin = self.empty(self.length), self.sent(), self.part, self.own.rank * self.part
        with self.timed():
            dist.all_to_all_single(values, sent)
        return self._wrong(
            {
                sender: (values[sender * part : (sender + 1) * part], self.expected(sender)[begin : begin + part])
                for sender in range(self.own.world)
            }
        )

    def send_recv(self) -> Spec:
        """Send to the next rank of a ring."""
        after, before = (self.own.rank + 1) % self.own.world, (self.own.rank - 1) % self.own.world
        values = self.empty(self.length)
        both = [dist.P2POp(dist.isend, self.sent(), after), dist.P2POp(dist.irecv, values, before)]
        with self.timed():
            for work in dist.batch_isend_irecv(both):
                work.wait()
        return self._wrong({before: (values, self.expected(before))})

    def _wrong(self, pairs: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Spec:
        found = {sender: differs(got, want) for sender, (got, want) in pairs.items()}
        return {"wrong": {str(sender): what for sender, what in found.items() if what}, "seen": sorted(pairs)}


# The stage ddp


def model(kind: torch.dtype = torch.float32) -> torch.nn.Module:
    nn = torch.nn
    torch.manual_seed(11)
    layers = (nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 8))
    return nn.Sequential(*layers).to(kind)


def batch(sender: int, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The micro-batch of rank `sender`."""
    random = torch.Generator().manual_seed(1000 + sender + 7919 * step)
    return torch.randn(8, 64, generator=random), torch.randn(8, 8, generator=random)


def backward(module: torch.nn.Module, sender: int, device: torch.device, kind: torch.dtype = torch.float32) -> None:
    inputs, targets = (part.to(device=device, dtype=kind) for part in batch(sender))
    module.zero_grad(set_to_none=True)
    torch.nn.functional.mse_loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def gradient(sender: int, device: torch.device) -> torch.Tensor:
    """The gradient of one micro-batch, computed on the training's device."""
    module = model().to(device)
    backward(module, sender, device)
    return flat([parameter.grad for parameter in module.parameters() if parameter.grad is not None])


def reference(sender: int) -> torch.Tensor:
    """The same gradient, computed in fp64 on the CPU."""
    module = model(torch.float64)
    backward(module, sender, torch.device("cpu"), torch.float64)
    return flat([parameter.grad for parameter in module.parameters() if parameter.grad is not None])


def marks(values: torch.Tensor) -> list[float]:
    """A fingerprint of `values` that can be compared with a tolerance: the norm and sums with random signs."""
    there = values.double().cpu()
    random = torch.Generator().manual_seed(3)
    signs = [torch.randint(0, 2, (len(there),), generator=random).double() * 2 - 1 for _ in range(3)]
    return [float(f"{float(number):.10g}") for number in (there.norm(), *((there * sign).sum() for sign in signs))]


def ddp(own: Rank) -> None:
    """The stage `ddp`: gradients of three micro-batches for the vote, then one DDP step (inputs and results)."""
    own.say(ev="step", step="gradients")
    votes = {(own.rank + k) % own.world: None for k in range(min(VOTES, own.world))}
    voted = {str(sender): marks(gradient(sender, own.device)) for sender in votes}
    total = torch.zeros(0, dtype=torch.float64)
    for sender in range(own.world):
        one = reference(sender)
        total = one if sender == 0 else total + one
    wanted = total / own.world
    own.say(ev="result", step="gradients", votes=voted, reference=marks(reference(own.rank)))
    own.say(ev="step", step="sync")
    given: dict[int, torch.Tensor] = {}

    def sync(bucket: Any) -> Any:
        """DDP's default communication, with a copy of its input kept."""
        for parameter, values in zip(bucket.parameters(), bucket.gradients()):  # noqa: B905 - Python 3.8
            given[id(parameter)] = values.detach().clone()
        buffer = bucket.buffer().div_(own.world)
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    module = torch.nn.parallel.DistributedDataParallel(model().to(own.device))
    parameters = list(module.parameters())
    module.register_comm_hook(None, lambda _, bucket: sync(bucket))  # torch rejects string annotations
    backward(module, own.rank, own.device)
    own.sync()
    came = synced(module)
    off = (came.double().cpu() - wanted).abs()
    error = float(off.max() / wanted.abs().max())
    own.say(
        ev="result",
        step="sync",
        given=marks(flat([given[id(parameter)] for parameter in parameters])),
        error=error if error == error else None,
        at=int(off.argmax()),
        digest=digest(came),
    )
    own.say(ev="step", step="update")
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-0.05)
    own.say(ev="result", step="update", digest=digest(flat(parameters)))


def synced(module: torch.nn.Module) -> torch.Tensor:
    """The gradients in `module` after DDP's sync."""
    return flat([parameter.grad for parameter in module.parameters() if parameter.grad is not None])


# The stage fsdp


def fsdp(own: Rank) -> None:
    """The stage `fsdp`: one step with sharded parameters, compared with the same step in fp64 in one process."""
    own.say(ev="step", step="fsdp")
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel

        module = FullyShardedDataParallel(model().to(own.device), device_id=own.device)
    except (ImportError, RuntimeError, NotImplementedError, AssertionError, ValueError) as error:
        if own.on_gpu and not isinstance(error, ImportError) and not _lacks(error):
            raise
        own.say(ev="skipped", step="fsdp", why=f"torch {torch.__version__}: {str(error)[:200]}")
        return
    rate = 0.05
    backward(module, own.rank, own.device)
    torch.optim.SGD(module.parameters(), lr=rate).step()
    wanted = flat(model(torch.float64).parameters())
    for sender in range(own.world):
        wanted = wanted - rate * reference(sender) / own.world
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        came = flat(module.parameters())[: len(wanted)].clone()
    off = (came.double().cpu() - wanted).abs()
    error_share = float(off.max() / wanted.abs().max())
    own.say(
        ev="result",
        step="fsdp",
        error=error_share if error_share == error_share else None,
        at=int(off.argmax()),
        digest=digest(came),
    )


# The stages allreduce and pairs


def allreduce(own: Rank) -> None:
    """The stage `allreduce`: measure all_reduce for each size, and check the sums."""
    for size, times in own.spec["sizes"]:
        if size > own.room() and size > own.spec["sizes"][0][0]:
            own.say(ev="skipped", step=str(size), why="more memory than the test may use")
            continue
        own.say(ev="step", step=str(size))
        values = torch.empty(int(size) // 4, device=own.device)
        measured, wrong = [], 0
        for turn in range(int(times) + 1):
            values.fill_(own.rank + 1)
            dist.barrier()
            own.sync()
            begun = time.monotonic()
            dist.all_reduce(values)
            own.sync()
            if turn:  # the first one includes setup
                measured.append(time.monotonic() - begun)
            total = own.world * (own.world + 1) // 2
            wrong += int(bool((values != total).any()))
        measured.sort()
        own.say(
            ev="result", step=str(size), bytes=size, median=measured[len(measured) // 2], least=measured[0], wrong=wrong
        )


# The stages stragglers and sustained


def _waited() -> float | None:
    """Seconds for which this thread was runnable and waited for a CPU."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def work(own: Rank, units: int) -> None:
    """The measured work: products of matrices of a fixed size."""
    side, kind = (2048, torch.float16) if own.on_gpu else (256, torch.float32)
    values = torch.ones(side, side, dtype=kind, device=own.device)
    for _ in range(units):
        values = (values @ values) * (1.0 / side)
    own.sync()


def stragglers(own: Rank) -> None:
    """The stage `stragglers`: equal work on all ranks together; reports wall time, CPU time, time without a CPU."""
    units = 40 if own.on_gpu else 10
    work(own, units)
    own.wait()
    own.say(ev="step", step="work")
    rounds = []
    for _ in range(int(own.spec.get("rounds", 12))):
        waited, cpu, begun = _waited(), time.thread_time(), time.monotonic()
        work(own, units)
        after = _waited()
        starved = after - waited if after is not None and waited is not None else None
        rounds.append([time.monotonic() - begun, time.thread_time() - cpu, starved])
    own.say(ev="result", step="work", rounds=rounds)


def sustained(own: Rank) -> None:
    """The stage `sustained`: the same work for a long time, checked for wrong values and falling speed."""
    own.wait()
    own.say(ev="step", step="load")
    units = 40 if own.on_gpu else 10
    begun, rates, wrong = time.monotonic(), [], 0
    side = 1024 if own.on_gpu else 256
    random = torch.Generator().manual_seed(5)
    left, right = (torch.randint(-3, 4, (side, side), generator=random).float().to(own.device) for _ in range(2))
    exact = left @ right
    while time.monotonic() - begun < float(own.spec["duration"]):
        window, done, spent = time.monotonic(), 0, 0.0
        while time.monotonic() - window < 1.0:
            cpu = time.monotonic() if own.on_gpu else time.thread_time()
            work(own, units)
            spent += (time.monotonic() if own.on_gpu else time.thread_time()) - cpu
            done += units
            wrong += int(bool((left @ right != exact).any()))
        rates.append(done / max(spent, 1e-9))
        own.say(ev="step", step="load")
    # The fp64 reference shows whether the first product was right.
    wrong += int(bool((exact.double().cpu() != left.double().cpu() @ right.double().cpu()).any()))
    own.say(ev="result", step="load", rates=[float(f"{rate:.4g}") for rate in rates], wrong=wrong)


#: Stages by name; True if each rank runs alone, without a group.
STAGES: dict[str, tuple[Callable[[Rank], None], bool]] = {
    "device": (device, True),
    "collectives": (collectives, False),
    "ddp": (ddp, False),
    "fsdp": (fsdp, False),
    "allreduce": (allreduce, False),
    "pairs": (allreduce, False),
    "stragglers": (stragglers, True),
    "sustained": (sustained, True),
}


# Started by torchrun


def main() -> int:
    """Run the stages of the quick tier in one group. Exits with 1 if there is a fault."""
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    told: list[Spec] = []
    spec = {"gpu": local if on_gpu else None, "ordinal": local, "sizes": [[1 << 20, 5], [16 << 20, 3]]}
    own = Rank(spec, lambda **fields: told.append(fields), dict)
    patience = dt.timedelta(seconds=float(os.environ.get("ATLCTL_SMOKE_SECONDS", "60")))
    store = next(iter(_rendezvous("env://", timeout=patience)))[0]
    own.rank, own.world = number, world
    try:
        device(own)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=_PrefixStore("group", store),
            rank=number,
            world_size=world,
            timeout=patience,
        )
        for stage in (collectives, ddp, allreduce):
            stage(own)
    except Exception as error:  # noqa: BLE001 - rank 0 prints it
        told.append({"ev": "error", "error": f"{type(error).__name__}: {str(error)[:400]}"})
    steps = [event.get("step") for event in told if event["ev"] == "step"]
    store.set(f"told/{number}", json.dumps({"problems": problems(told), "told": told, "last": (steps or [""])[-1]}))
    bad = 0
    if number == 0:
        bad = _print(store, world, time.monotonic() + patience.total_seconds())
        store.set("printed", str(bad))
    else:
        store.wait(["printed"], patience * 2)
        bad = int(store.get("printed"))
    sys.stdout.flush()
    os._exit(1 if bad else 0)


def problems(told: list[Spec]) -> list[str]:
    """The faults found by one rank, as text."""
    found = []
    for event in told:
        step, wrong = event.get("step"), event.get("wrong")
        if event["ev"] == "error":
            found.append(str(event["error"]))
        if event["ev"] != "result":
            continue
        if step == "memory" and wrong:
            found.append(f"memory does not hold what was written, first at {wrong[0]}")
        if str(step).startswith("matmul"):
            error, rest = event["error"], event["rest"]
            if error is None or rest is None or error > event["limit"] or rest > 4 * event["limit"]:
                found.append(f"{step} differs from fp64 by {error}")
        if isinstance(wrong, dict):
            found += [f"{step}: wrong values from rank {sender}: {what}" for sender, what in wrong.items()]
        if event.get("sum"):
            found.append(f"{step}: a wrong sum: {event['sum']}")
        if step == "sync" and (event["error"] is None or event["error"] > 2e-5):
            found.append(f"ddp: gradients differ from the reference by {event['error']}")
        if "bytes" in event and isinstance(wrong, int) and wrong and step != "memory":
            found.append(f"allreduce of {step} bytes: {wrong} wrong results")
    return found


def _print(store: Any, world: int, until: float) -> int:
    """Print one line for each fault, and the verdict; returns the number of faults."""
    lines, digests = [], {}
    reports: dict[int, Spec] = {}
    for number in range(world):
        while not store.check([f"told/{number}"]) and time.monotonic() < until:
            time.sleep(0.05)
        if not store.check([f"told/{number}"]):
            lines.append(f"rank {number}: said nothing")
            continue
        reports[number] = json.loads(store.get(f"told/{number}"))
        lines += [f"rank {number}: {text}" for text in reports[number]["problems"]]
        for event in reports[number]["told"]:
            if event["ev"] == "result" and event.get("step") == "update":
                digests[number] = event["digest"]
    usual = max(digests.values(), key=list(digests.values()).count, default=None)
    lines += [
        f"rank {number}: its parameters differ from those of others" for number in digests if digests[number] != usual
    ]
    for event in reports.get(0, {"told": []})["told"]:
        if event["ev"] == "result" and "bytes" in event and "median" in event and world > 1:
            rate = event["bytes"] / event["median"] / 1e9 * 2 * (world - 1) / world
            sys.stdout.write(f"all_reduce of {event['bytes']} bytes: busbw {rate:.2f} GB/s\n")
        if event["ev"] == "skipped":
            sys.stdout.write(f"skipped: {event['step']}: {event['why']}\n")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{'FAIL' if lines else 'PASS'}: {world} ranks, torch {torch.__version__}\n")
    return len(lines)


if __name__ == "__main__":
    main()
