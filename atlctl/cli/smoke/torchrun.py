"""`atlctl smoke --print-torchrun`: the command that each worker's environment asks for."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlctl.backends.base import Executor
from atlctl.cli import say
from atlctl.i18n import Message
from atlctl.jobs.errors import ExitCode
from atlctl.jobs.fields import mapping
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.render.sanitize import clean
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import gather
from atlctl.smoke.findings import Report
from atlctl.smoke.run import PATIENCE, ROLL_CALL_MOST, nobody
from atlctl.smoke.session import Session, words_of


async def told(executor: Executor, job: Job, workers: Sequence[Worker], timeout: float, output: str) -> int:
    """Prints the lines; returns the exit code. Raises AtlctlError where no worker answers."""
    config = {"seconds": int(timeout) + 30, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
    session = Session(executor, workers, config)
    async with session:
        silent = await session.roll_call(min(PATIENCE, timeout), min(ROLL_CALL_MOST, timeout))
        if not session.living():
            raise nobody(session)
        run = Run(session, tuple(workers), Options(net_only=True, timeout=timeout), Report("quick"))
        await gather(run)
    lines = {name: line(fact) for name, fact in run.facts.items()}
    lines |= {name: ("", [why]) for name, why in silent.items()}
    if output == "json":
        found = [{"worker": name, "command": text or None, "notes": notes} for name, (text, notes) in lines.items()]
        say.document({"job": job.name, "uid": job.uid, "workers": found})
    else:
        _print(lines)
    if silent:
        return int(ExitCode.UNREACHABLE)
    return int(ExitCode.FAILED if any(not text for text, _ in lines.values()) else ExitCode.OK)


def line(fact: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The torchrun command for a worker with these facts, and remarks about it."""
    if "problem" in fact:
        return "", [words_of(fact["problem"])]
    environ = {key: value for key, value in mapping(fact.get("place")).items() if isinstance(value, str)}
    gpus, smi = fact.get("gpus"), mapping(fact.get("smi"))
    unsure = "problem" in smi or bool(smi.get("hung"))
    return torchrun_line(environ, None if unsure or not isinstance(gpus, list) else len(gpus))


def _print(lines: Mapping[str, tuple[str, list[str]]]) -> None:
    commands = names_by_reason((name, text) for name, (text, _) in lines.items() if text)
    for text, names in commands.items():
        # One worker's line is there to be copied.
        lead = f"{clean(fold_names(names))}: " if len(lines) > 1 else ""
        say.out(f"{lead}{clean(text)}\n")
    say.about((name, (not text, note)) for name, (text, said) in lines.items() for note in said)


# The torchrun command that a worker's environment asks for: a pure function of that environment.
#
# torchrun reads `PET_*` itself and nothing else. The meaning of WORLD_SIZE differs: most platforms count workers,
# PyTorchJob counts processes, and inside a process of torchrun it counts processes, too.

_PORT = "29500"


@dataclass(slots=True)
class _Line:
    """The parts of the command line. None if torchrun reads the value from `PET_*`, or does not need it."""

    nodes: int | None = None
    node_rank: int | None = None
    processes: str | None = None
    address: str = ""
    port: str = ""
    standalone: bool = False
    program: str = "torchrun"
    notes: list[str] = field(default_factory=list)

    def words(self, script: str) -> str:
        words = [self.program]
        if self.standalone:
            words.append("--standalone")
        if self.nodes is not None:
            words.append(f"--nnodes={self.nodes}")
        if self.node_rank is not None:
            words.append(f"--node-rank={self.node_rank}")
        if self.processes is not None:
            words.append(f"--nproc-per-node={self.processes}")
        if self.address:
            words += [f"--master-addr={self.address}", f"--master-port={self.port or _PORT}"]
        return shlex.join([*words, script])


def torchrun_line(environ: Mapping[str, str], gpus: int | None, script: str = "train.py") -> tuple[str, list[str]]:
    """The command, and what to know of it. An empty command: it cannot be decided, and the notes say why.

    `environ`: that of the worker, not of one of its ranks. `gpus`: how many were counted there, None if they were not.
    """
    env = {name: value for name, value in environ.items() if value != ""}
    if "LOCAL_RANK" in env and "RANK" in env:
        line = _inside(env)
    elif any(name in env for name in ("PET_NNODES", "PET_RDZV_ENDPOINT", "PET_STANDALONE")):
        line = _pet(env, gpus)
    elif "DLROVER_MASTER_ADDR" in env and "MASTER_ADDR" not in env:
        line = _dlrover(env)
    elif "LWS_LEADER_ADDRESS" in env and "MASTER_ADDR" not in env:
        line = _leader(env)
    elif "MASTER_ADDR" in env or "WORLD_SIZE" in env or "NODE_RANK" in env:
        line = _contract(env)
    else:
        line = _alone(env)
    if isinstance(line, str):
        return "", [line]
    _count(line, env, gpus)
    return line.words(script), line.notes


def _inside(env: Mapping[str, str]) -> _Line | str:
    """Of a process that torchrun started: its own words for the workers, not RANK and WORLD_SIZE."""
    nodes, rank, processes = (_int(env, n) for n in ("GROUP_WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE"))
    if nodes is None or rank is None or processes is None or rank >= nodes:
        return Message(
            "this is the environment of a rank (LOCAL_RANK is set), where RANK and WORLD_SIZE count processes: "
            "ask in the worker's own environment"
        )
    line = _Line(processes=str(processes))
    line.notes.append(
        Message("this is the environment of a rank that torchrun started: RANK and WORLD_SIZE count processes here")
    )
    if nodes == 1:
        line.standalone = True
        return line
    if "MASTER_ADDR" not in env:
        return Message(
            "this is the environment of a rank, and MASTER_ADDR is not set: the rendezvous address is unknown"
        )
    line.nodes, line.node_rank, line.address, line.port = nodes, rank, env["MASTER_ADDR"], env.get("MASTER_PORT", "")
    line.notes.append(Message("port {port} is in use as long as that training runs", port=line.port or _PORT))
    return line


def _pet(env: Mapping[str, str], gpus: int | None) -> _Line | str:
    """torchrun reads these itself: only missing options are added."""
    line = _Line()
    line.notes.append(Message("torchrun reads PET_* itself: they need no options, and an option would win over them"))
    nnodes, backend = env.get("PET_NNODES", "1:1"), env.get("PET_RDZV_BACKEND", "static")
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", nnodes)
    if match is None:
        return Message("PET_NNODES={nnodes} is neither a number nor MIN:MAX: torchrun will refuse it", nnodes=nnodes)
    most = int(match.group(2) or match.group(1))
    processes = env.get("PET_NPROC_PER_NODE")
    rank, stated = _int(env, "RANK"), _int(env, "WORLD_SIZE")
    if most > 1 and backend == "static" and env.get("PET_STANDALONE", "0") in ("0", ""):
        if "PET_NODE_RANK" not in env:
            if rank is None or rank >= most:
                return Message(
                    "PET_NNODES asks for several workers, and nothing says which of them this one is: PET_NODE_RANK"
                )
            line.node_rank = rank
            line.notes.append(Message("PET_NODE_RANK is not set: without --node-rank every worker would be the first"))
        elif rank is not None and env["PET_NODE_RANK"] != str(rank):
            note = Message("PET_NODE_RANK={stated} and RANK={rank} differ: torchrun goes by the former")
            line.notes.append(note.filled(stated=env["PET_NODE_RANK"], rank=rank))
        if "PET_MASTER_ADDR" not in env and "PET_RDZV_ENDPOINT" not in env:
            if "MASTER_ADDR" not in env:
                return Message("PET_NNODES asks for several workers, and nothing says where they meet: PET_MASTER_ADDR")
            line.address, line.port = env["MASTER_ADDR"], env.get("PET_MASTER_PORT") or env.get("MASTER_PORT", "")
            line.notes.append(
                Message("PET_MASTER_ADDR is not set: without --master-addr every worker would wait for itself")
            )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        own = env.get(f"PET_{name}")
        if own is not None and name in env and env[name] != own:
            note = Message("PET_{name}={own} and {name}={other} differ: torchrun goes by the former")
            line.notes.append(note.filled(name=name, own=own, other=env[name]))
    if stated is not None and stated != most:
        each = int(processes) if processes is not None and processes.isdigit() else None
        note = Message("WORLD_SIZE={stated} does not agree with PET_NNODES={nnodes}: torchrun goes by the latter")
        if each is not None and stated == most * each:
            note = Message(
                "WORLD_SIZE={stated} counts processes here ({most} x {each}), as in a PyTorchJob: it cannot "
                "be used for --nnodes"
            )
        line.notes.append(note.filled(stated=stated, nnodes=nnodes, most=most, each=each))
    if processes is None and gpus:
        line.notes.append(Message("PET_NPROC_PER_NODE is not set: torchrun would start one process"))
    return line


def _dlrover(env: Mapping[str, str]) -> _Line | str:
    nodes = _int(env, "NODE_NUM") or _int(env, "WORLD_SIZE")
    if nodes is None:
        return Message(
            "the environment names DLRover's master, but neither NODE_NUM nor WORLD_SIZE gives the number of workers"
        )
    line = _Line(nodes=nodes, program="dlrover-run")
    line.notes.append(
        Message(
            "DLRover: workers meet at its master and their ranks come from there, which dlrover-run does; "
            "torchrun alone has no address to meet at"
        )
    )
    return line


def _leader(env: Mapping[str, str]) -> _Line | str:
    nodes, rank = _int(env, "LWS_GROUP_SIZE"), _int(env, "LWS_WORKER_INDEX")
    if nodes is None or rank is None or rank >= nodes:
        return Message(
            "LWS_LEADER_ADDRESS is set, and LWS_GROUP_SIZE and LWS_WORKER_INDEX do not say which worker this is"
        )
    line = _Line(nodes, rank, address=env["LWS_LEADER_ADDRESS"])
    line.notes.append(Message("LeaderWorkerSet names no port: torchrun's own, {port}", port=_PORT))
    return line


def _contract(env: Mapping[str, str]) -> _Line | str:
    """MASTER_ADDR, MASTER_PORT, WORLD_SIZE (workers) and RANK (of this one); NODE_NUM and NODE_RANK if they are set."""
    nodes, rank = _int(env, "NODE_NUM"), _int(env, "NODE_RANK")
    by = "NODE_NUM, NODE_RANK"
    if nodes is None or rank is None:
        nodes, rank, by = _int(env, "WORLD_SIZE"), _int(env, "RANK"), "WORLD_SIZE, RANK"
    if nodes is None or rank is None:
        lacking = [name for name in ("WORLD_SIZE", "RANK") if _int(env, name) is None]
        text = Message("MASTER_ADDR is set, but {names} is not a number: the number of workers is unknown")
        return text.filled(names=" and ".join(lacking))
    if rank >= nodes:
        return Message("{by}: worker {rank} of {nodes} cannot be", by=by, rank=rank, nodes=nodes)
    line = _Line()
    if nodes == 1:
        line.standalone = True
        return line
    if "MASTER_ADDR" not in env:
        return Message("{nodes} workers, and MASTER_ADDR is not set: the rendezvous address is unknown", nodes=nodes)
    line.nodes, line.node_rank, line.address, line.port = nodes, rank, env["MASTER_ADDR"], env.get("MASTER_PORT", "")
    line.notes.append(Message("WORLD_SIZE and RANK are taken for workers, not for processes ({by})", by=by))
    counted = _volcano(env)
    if counted and counted != nodes:
        note = Message("Volcano's VC_*_NUM give {counted} workers, {by} gives {nodes}: check which is right")
        line.notes.append(note.filled(counted=counted, by=by, nodes=nodes))
    elif not counted and re.search(r"-master-0$", env["MASTER_ADDR"]) and "NODE_NUM" not in env:
        line.notes.append(
            Message(
                "PyTorchJob counts WORLD_SIZE in processes where its nprocPerNode is a number: "
                "divide --nnodes by that number then"
            )
        )
    if "MASTER_PORT" not in env:
        line.notes.append(Message("MASTER_PORT is not set: torchrun's own, {port}", port=_PORT))
    return line


def _alone(env: Mapping[str, str]) -> _Line | str:
    index = next((name for name in ("SLURM_NNODES", "OMPI_COMM_WORLD_SIZE") if (_int(env, name) or 1) > 1), None)
    if index is not None:
        text = Message(
            "{index}={value}, and nothing says where they meet: set MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK"
        )
        return text.filled(index=index, value=env[index])
    if "JOB_COMPLETION_INDEX" in env and env["JOB_COMPLETION_INDEX"] != "0":
        return Message(
            "this is one of several pods of an indexed job, and nothing says where they meet: set MASTER_ADDR"
        )
    line = _Line(standalone=True)
    line.notes.append(Message("no platform's variables are set: this worker alone"))
    return line


def _count(line: _Line, env: Mapping[str, str], gpus: int | None) -> None:
    """The number of processes: as configured, else one for each GPU."""
    told = env.get("PET_NPROC_PER_NODE")
    if told is None and line.processes is None:
        told = env.get("NPROC_PER_NODE")
        line.processes = told if told is not None and told.isdigit() else None
    if told is not None and told.isdigit() and gpus is not None and gpus != int(told):
        name = "PET_NPROC_PER_NODE" if "PET_NPROC_PER_NODE" in env else "NPROC_PER_NODE"
        line.notes.append(Message("{name}={value}, but {gpus} GPUs were counted", name=name, value=told, gpus=gpus))
    if line.processes is not None or "PET_NPROC_PER_NODE" in env:
        return
    if gpus is None:
        line.processes = "gpu"
        line.notes.append(Message("GPUs were not counted: as many processes as torch finds GPUs"))
    else:
        line.processes = str(max(1, gpus))
        if gpus == 0:
            line.notes.append(Message("no GPU was found: one process"))


def _volcano(env: Mapping[str, str]) -> int:
    """The number of workers according to Volcano: those of the tasks that train."""
    counts = {name: _int(env, name) for name in env if re.fullmatch(r"VC_(MASTER|WORKER)_NUM", name)}
    return sum(count or 0 for count in counts.values())


def _int(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name, "")
    return int(value) if re.fullmatch(r"[0-9]{1,6}", value, re.ASCII) else None
