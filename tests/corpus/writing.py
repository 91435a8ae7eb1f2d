"""From a finished run to the files of a case: texts without this machine's paths and names, and the truth."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tests.corpus.case import Case
from tests.corpus.running import Run, Unfinished

_ROOT = Path(__file__).parents[2]
_SOURCE = "written by the failing process just before it failed, or by the action from outside; never read from a log"


def write(run: Run, target: Path) -> None:
    """Writes the case into `target`, which is replaced. Raises Unfinished where the run is not what was planned."""
    truth = tell_truth(run)
    check(run)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name, lines in run.lines.items():
        clean = cleaner(run, name)
        cleaned = [(moment, clean(line)) for moment, line in lines]
        (target / f"{name}.log").write_bytes(b"".join(line for _, line in cleaned))
        (target / f"{name}.ts.log").write_bytes(b"".join(stamp(moment) + line for moment, line in cleaned))
    files = _copy_files(run, target)
    text = json.dumps(_document(run, truth, files), indent=1, ensure_ascii=False)
    (target / "case.json").write_text(text + "\n", encoding="utf-8")


def tell_truth(run: Run) -> dict[str, Any]:
    """The truth as the score test reads it, completed by what really happened."""
    case = run.case
    truth: dict[str, Any] = {"kind": case.kind, "category": case.category}
    if case.kind == "rank":
        events = [_process(event) for event in run.events if event["id"] in case.culprits]
        if case.outside:
            events = list(map(_target, run.actions))
        if len(events) != 1:
            raise Unfinished(f"{case.name}: {len(events)} processes failed as planned, not one")
        truth |= events[0]
    elif case.kind == "ranks":
        truth["any_of"] = [_process(event) for event in run.events if event["id"] in case.culprits]
        if case.outside:
            truth["any_of"] = list(map(_target, run.actions))
        if len(truth["any_of"]) < 2:
            raise Unfinished(f"{case.name}: fewer than two processes failed as planned")
    elif case.kind == "undecided":
        truth["done_by"] = [_process(event) for event in run.events]
    elif case.at_fault is not None:
        truth["node"] = case.workers()[case.at_fault]
    if case.also_right:
        truth["also_right"] = [{"verdict": verdict, "node": case.workers()[at]} for verdict, at in case.also_right]
    return truth


def check(run: Run) -> None:
    """Whether the run failed, or succeeded, for the planned reason as far as a program can tell."""
    case = run.case
    text = b"".join(line for lines in run.lines.values() for _, line in lines).decode(errors="replace")
    if case.shows not in text:
        raise Unfinished(f"{case.name}: no log shows {case.shows!r}\n{text[-3000:]}")
    leavers = {case.workers()[index] for index in case.leavers}
    codes = [code for name, code in run.exit_codes.items() if name not in leavers]
    if (case.kind == "none") != all(code == 0 for code in codes):
        raise Unfinished(f"{case.name}: exit codes {run.exit_codes} for a truth of kind {case.kind}")


def cleaner(run: Run, worker: str) -> Callable[[bytes], bytes]:
    """Replaces the paths of this machine and its host names in what `worker` printed."""
    pairs = {
        str(run.workspace(worker)): "/workspace",
        str(run.temporary(worker)): "/tmp",
        str(run.elastic(worker)): "/logs",
        sys.prefix: "/opt/venv",
        os.path.realpath(sys.prefix): "/opt/venv",
        sys.base_prefix: "/usr/local",
        os.path.realpath(sys.base_prefix): "/usr/local",
        str(_ROOT): "/workspace",
    }
    return replacing(pairs, {socket.gethostname(), socket.getfqdn()} - set(run.case.workers()), worker)


def replacing(pairs: Mapping[str, str], hosts: Collection[str], worker: str) -> Callable[[bytes], bytes]:
    """Replaces each path of `pairs` by its other name, and each of `hosts` by the worker's name."""
    longest = sorted(pairs, key=len, reverse=True)
    paths = re.compile(b"(?:" + b"|".join(re.escape(os.fsencode(path)) for path in longest) + b")(?![\\w-])")
    words = b"|".join(re.escape(os.fsencode(host)) for host in sorted(hosts, key=len, reverse=True))
    names = re.compile(rb"(?<![\w.-])(?:" + words + rb")(?![\w.-])")

    def clean(text: bytes) -> bytes:
        text = paths.sub(lambda match: os.fsencode(pairs[os.fsdecode(match[0])]), text)
        return names.sub(os.fsencode(worker), text)

    return clean


def stamp(moment: int) -> bytes:
    """A node's stamp, as `kubectl logs --timestamps` puts it in front of a line. `moment`: ns since the epoch."""
    seconds, fraction = divmod(moment, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z ".encode()


def _process(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": event["node"],
        "local_rank": event["local_rank"],
        "global_rank": event["rank"],
        "attempt": event["attempt"],
        "at_true_unix": event["at_true"],
    }


def _target(action: dict[str, Any]) -> dict[str, Any]:
    return {"node": action["node"], "local_rank": action["local_rank"], "global_rank": action["rank"]}


def _copy_files(run: Run, target: Path) -> list[str]:
    """torchelastic's folders, without empty files. Paths of the error files in the case."""
    copied = []
    for worker in run.started:
        clean = cleaner(run, worker)
        for folder, tag in ((run.temporary(worker), "tmp"), (run.elastic(worker), "elastic")):
            for path in sorted(folder.rglob("*")):
                if path.suffix in (".json", ".log") and path.stat().st_size:
                    place = Path("files", f"{worker}_{tag}", path.relative_to(folder))
                    (target / place).parent.mkdir(parents=True, exist_ok=True)
                    (target / place).write_bytes(clean(path.read_bytes()))
                    copied.append(str(place))
    return [path for path in copied if path.endswith("error.json")]


def _document(run: Run, truth: dict[str, Any], files: list[str]) -> dict[str, Any]:
    case = run.case
    places = dict(zip(case.workers(), run.places, strict=True))
    command = {name: cleaner(run, name)(os.fsencode(" ".join(words))).decode() for name, words in run.commands.items()}
    return {
        "name": case.name,
        "what": case.what,
        "nodes": list(case.workers()),
        "nodes_started": run.started,
        "nproc_per_node": list(case.processes),
        "pod_ip": {name: place.address for name, place in places.items()},
        "command": command,
        "environment": dict(case.environment),
        **_of_one(case),
        "record": case.record,
        "torch": importlib.metadata.version("torch"),
        "backend": "gloo",
        "exit_code": run.exit_codes,
        "ended_by": "itself",
        "seconds": round(run.seconds, 1),
        "truth": truth,
        "injected_events": run.events,
        "outside_actions": run.actions,
        "error_files": files,
        "truth_source": _SOURCE,
    }


def _of_one(case: Case) -> dict[str, Any]:
    """What only some workers have, by the worker's name; nothing where all are alike."""
    names = case.workers()
    special = {
        "environment_of": case.environments,
        "prepared_by": case.prepare,
        "clock_ahead_s": case.skew,
        "started_late_s": case.late,
    }
    return {key: {names[index]: value for index, value in of.items()} for key, of in special.items() if of}
