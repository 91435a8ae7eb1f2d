"""GPU data of this worker from `nvidia-smi`; a timeout is a result, too."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import threading
import time

from atlctl.remote import proc
from atlctl.remote.gpus import FIELDS, FORMAT, REASONS, rows
from atlctl.remote.kmsg import messages
from atlctl.remote.sentences import Sentence

from . import children

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .wire import Say

#: Fields of the first query; drivers of the last ten years know all of them.
_BASE = (*FIELDS, "pci.bus_id")
#: Fields that only some drivers know: queried separately, because an unknown field makes a query fail.
_EXTRA = (
    ("remapped_rows.pending", "remapped_rows.failure"),
    ("retired_pages.pending",),
    ("ecc.errors.uncorrected.aggregate.total",),
    ("mig.mode.current",),
    ("driver_version", "pcie.link.width.current", "pcie.link.gen.max", "power.limit", "ecc.mode.current"),
)
#: The names of the fields in the answer.
_KEYS = {
    "pci.bus_id": "bus", "utilization.gpu": "utilisation", "memory.used": "memory_used", "memory.total": "memory_total",
    "power.draw": "power", "temperature.gpu": "temperature", "ecc.errors.uncorrected.volatile.total": "ecc",
    "ecc.errors.uncorrected.aggregate.total": "ecc_ever",
    "remapped_rows.pending": "remap_pending", "remapped_rows.failure": "remap_failure",
    "retired_pages.pending": "retire_pending", "mig.mode.current": "mig", "driver_version": "driver",
    "pcie.link.width.current": "pcie_width", "pcie.link.gen.max": "pcie_gen", "power.limit": "power_limit",
    "ecc.mode.current": "ecc_mode",
}  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+)(.{0,200})")
_LINES, _OUTPUT = 16, 4 << 20
#: Maximum age in seconds of kernel log lines.
_RECENT = 24 * 3600.0


def gpus(say: Say, request: dict[str, Any]) -> None:
    """The command `gpus`. `seconds_each`: timeout of a query. `more`: also NVLink, topology, Xids, optional fields."""
    say(ev="gpus", end=True, **look(float(request.get("seconds_each", 5.0)), bool(request.get("more"))))


def look(limit: float, more: bool) -> dict[str, Any]:
    """Query the GPUs. `gpus`: a list of GPUs. `tool`: whether nvidia-smi exists. `hung`: the query without an answer,
    and its process state. `odd`: lines that are not a GPU (untrusted text)."""
    found: dict[str, Any] = {"tool": bool(_tool()), "gpus": [], "odd": [], "hung": ""}
    found["devices"] = len([name for name in proc.names("/dev") if re.fullmatch(r"nvidia[0-9]+", name)])
    if not found["tool"]:
        found["gpus"] = [{"index": number, "name": None} for number in range(found["devices"])]
        return found
    code, output, hung = _query(_BASE, limit)
    if hung:
        return dict(found, hung=hung)
    found["gpus"], found["odd"], _ = _rows(_BASE, output)
    if code:
        found["problem"] = Sentence("nvidia-smi ended with {code}: {output}", code=code, output=output.strip()[:200])
        found["none"] = "no devices were found" in output.lower()
    if not found["gpus"]:
        return found
    works = {"apps": lambda: _apps(found, limit), "reasons": lambda: _reasons(found, limit)}
    if more:
        works.update(extra=lambda: _extra(found, limit), links=lambda: _links(found, limit), xids=lambda: _xids(found))
        works.update(heat=lambda: _slowdowns(found, limit))
    threads = [threading.Thread(target=work, daemon=True) for work in works.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit + 1)
    return found


def _rows(fields: Sequence[str], output: str) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Like `gpus.rows`, with the answer's field names, and texts cut to 100 characters."""
    found, odd, none = rows(fields, output.encode("utf-8", "replace"))
    named = [
        {_KEYS.get(field, field): value[:100] if isinstance(value, str) else value for field, value in row.items()}
        for row in found
    ]
    return named, odd, none


def parse_links(output: str) -> dict[int, dict[str, int]]:
    """The number of NVLinks of each GPU that are up and down, from `nvidia-smi nvlink --status`."""
    found: dict[int, dict[str, int]] = {}
    gpu: dict[str, int] | None = None
    for line in output.splitlines():
        head = re.match(r"GPU ([0-9]{1,4}):", line)
        if head:
            gpu = found.setdefault(int(head.group(1)), {"up": 0, "down": 0})
        elif gpu is not None and re.match(r"\s+Link [0-9]+:", line):
            up = re.search(r":\s*[0-9.]+ GB/s", line)
            gpu["up" if up else "down"] += 1
    return found


def parse_topology(output: str) -> dict[str, int]:
    """The number of GPU pairs for each kind of connection: `{"NV18": 28}`."""
    kinds: dict[str, int] = {}
    rows = [line.split("\t") for line in output.splitlines() if re.match(r"GPU[0-9]+\s", line)]
    for number, row in enumerate(rows):
        for word in row[number + 2 : len(rows) + 1]:
            kind = word.strip()
            if re.fullmatch(r"[A-Z]{2,4}[0-9]*", kind):
                kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def parse_xids(messages: Sequence[tuple[float, str]], now: float) -> list[dict[str, Any]]:
    """Xid messages of the last day in the kernel log: `bus`, `xid`, `age` in seconds, `text`."""
    found = []
    for when, text in messages:
        match, age = _XID.search(text), now - when
        if match and age <= _RECENT:
            found.append({"bus": match.group(1), "xid": int(match.group(2)), "age": round(age), "text": text[:300]})
    return found[-_LINES:]


def run(words: Sequence[str], limit: float) -> tuple[int, str, str]:
    """Exit code, output, and the timeout error (empty if it ended). A process that cannot be killed is abandoned."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, bufsize=0)
    except OSError as error:
        return 127, str(error), ""
    name = f"process {process.pid}"
    children.at_end(name, process.kill)
    assert process.stdout is not None
    poll, data, end = select.poll(), b"", time.monotonic() + limit
    poll.register(process.stdout, select.POLLIN)
    hung = ""
    while True:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            state = proc.text(f"/proc/{process.pid}/stat", 4096).rpartition(")")[2].split()[:1]
            hung = Sentence(
                "no answer in {seconds} s (process state {state})", seconds=f"{limit:g}", state="".join(state) or "?"
            )
            break
        got = os.read(process.stdout.fileno(), 1 << 16)
        data += got
        if not got or len(data) > _OUTPUT:
            break
    if hung:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    children.not_at_end(name)
    process.stdout.close()
    code = process.returncode
    return 0 if code is None else code, data.decode("utf-8", "backslashreplace"), hung


def _tool() -> str:
    """The path of nvidia-smi; empty if there is none. Folders on network mounts are skipped."""
    table = proc.mounts()
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        mount = proc.mount_of(folder, table)
        if folder and not (mount is not None and proc.is_shared(mount["fs"])):
            path = os.path.join(folder, "nvidia-smi")
            if os.access(path, os.X_OK):
                return path
    return ""


def _query(fields: Sequence[str], limit: float, what: str = "gpu") -> tuple[int, str, str]:
    return run([_tool(), f"--query-{what}={','.join(fields)}", FORMAT], limit)


def _apps(found: dict[str, Any], limit: float) -> None:
    """The number of compute processes on each GPU. Those of other containers may be invisible."""
    fields = ("gpu_uuid", "pid", "used_memory")
    code, output, hung = _query(fields, limit, "compute-apps")
    if hung or code:
        return
    uuids = [line.split(", ")[0].strip() for line in output.splitlines() if line.count(", ") == len(fields) - 1]
    for gpu in found["gpus"]:
        gpu["processes"] = uuids.count(str(gpu.get("uuid")))


def _reasons(found: dict[str, Any], limit: float) -> None:
    """Add `clock_reasons` (the driver's bits) to each GPU. A separate query, because an unknown field makes a query
    fail."""
    by_index = {gpu["index"]: gpu for gpu in found["gpus"]}
    for name in REASONS:
        code, output, hung = _query(("index", name), limit)
        if hung:
            return
        if code:
            continue
        for gpu in _rows(("index", name), output)[0]:
            if gpu[name] is not None:
                by_index.get(gpu["index"], {})["clock_reasons"] = gpu[name]
        return


def _extra(found: dict[str, Any], limit: float) -> None:
    by_index = {gpu["index"]: gpu for gpu in found["gpus"]}
    for fields in _EXTRA:
        code, output, hung = _query(("index", *fields), limit)
        if hung:
            return
        for gpu in _rows(("index", *fields), output)[0] if not code else []:
            by_index.get(gpu["index"], {}).update(gpu)


def _slowdowns(found: dict[str, Any], limit: float) -> None:
    """Add `slowdown` to each GPU: the temperature in degrees Celsius at which the driver slows its clocks."""
    code, output, hung = run([_tool(), "-q", "-d", "TEMPERATURE"], limit)
    if not hung and not code:
        degrees = parse_slowdowns(output)
        for gpu in found["gpus"]:
            gpu["slowdown"] = degrees.get(str(gpu.get("bus")).lower())


def parse_slowdowns(output: str) -> dict[str, float]:
    """Slowdown temperatures by PCI bus, from `nvidia-smi -q -d TEMPERATURE`. Newer GPUs report the distance to the
    limit instead (T.Limit), and the distance at which the slowdown begins."""
    found: dict[str, float] = {}
    bus = ""
    told: dict[str, float] = {}
    for line in output.splitlines():
        head = re.match(r"GPU ([0-9a-fA-F:.]+)\s*$", line)
        if head:
            bus, told = head.group(1).lower(), {}
            continue
        match = re.match(r"\s+GPU (.{1,40}?)\s*:\s*(-?[0-9]{1,4}) C\s*$", line)
        if match and bus:
            told[match.group(1)] = float(match.group(2))
            if "Slowdown Temp" in told:
                found[bus] = told["Slowdown Temp"]
            elif {"Current Temp", "T.Limit Temp", "Slowdown T.Limit Temp"} <= set(told):
                found[bus] = told["Current Temp"] + told["T.Limit Temp"] - told["Slowdown T.Limit Temp"]
    return found


def _links(found: dict[str, Any], limit: float) -> None:
    code, output, hung = run([_tool(), "nvlink", "--status"], limit)
    if not hung and not code:
        links = parse_links(output)
        for gpu in found["gpus"]:
            gpu["links"] = links.get(gpu["index"])
    if len(found["gpus"]) > 1:
        code, output, hung = run([_tool(), "topo", "-m"], limit)
        found["topology"] = parse_topology(output) if not hung and not code else None


def _xids(found: dict[str, Any]) -> None:
    """Add Xids, if the kernel log is readable. It covers all GPUs of the machine, including other containers' GPUs."""
    try:
        log = messages()
    except OSError as error:
        found["log"] = f"not readable: {error.strerror}"
        return
    found["xids"] = parse_xids(log, time.monotonic())
