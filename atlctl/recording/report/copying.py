"""Copies saved evidence into a report's folder, with its secrets hidden, so that `errors --from` reads it alike."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from atlctl.diagnosis.errorfile import SIZE_LIMIT
from atlctl.diagnosis.recorder.dump import SIZE_LIMIT as DUMP_LIMIT
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.fields import parse_json
from atlctl.jobs.statedir import read_bytes, write_all
from atlctl.recording import manifest
from atlctl.recording.events import lines_within
from atlctl.recording.folder import FolderContent, group, look
from atlctl.recording.lines import not_text
from atlctl.recording.read import INPUT, STDIN, mapped
from atlctl.recording.recorder.happenings import EVENTS, STATES
from atlctl.recording.report.folder import CHUNK, ReportFolder, hidden, kept_name, skip_to
from atlctl.render.redact import redact_json, redact_json_bytes

#: Bytes of all logs. Of more, each gives its end, as much as is left for it.
LIMIT = 1 << 30
SMOKE = "smoke.json"
SMOKE_LIMIT = 32 << 20
_TOO_LARGE = "there are too many logs for more"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(slots=True)
class Copied:
    """`logs` that were copied. `missing`: what is not there or not whole, and why (hostile text)."""

    logs: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)

    def miss(self, what: str, error: OSError | AtlctlError) -> None:
        why = error.message if isinstance(error, AtlctlError) else error.strerror or str(error)
        self.missing.append((what, why))


def copy_folder(path: str, folder: ReportFolder, *, error_files: bool = True, limit: int = LIMIT) -> Copied:
    """The evidence in the folder `path`. Raises NothingMatched where no log or error file is there, AtlctlError."""
    try:
        content = look(path, error_files=error_files)
    except OSError as error:
        raise mapped(error, path) from error
    if not content.logs and not content.error_files and not content.rank_logs:
        raise NothingMatched(f"{path}: no logs in it", "a log there is named WORKER.log")
    done = Copied()
    done.missing += [(link, "a symbolic link, which is not followed") for link in content.links]
    done.missing += list(content.unreadable)
    done.missing += [(worker, "it has more files than are read") for worker in content.omitted]
    logs = [[(file, [_log_name(file, worker)]) for file in files] for worker, files in content.logs.items()]
    logs += [[(item.path, _below(path, item.path))] for items in content.rank_logs.values() for item in items]
    _copy_logs(logs, folder, done, limit)
    _copy_files(path, content, folder, done)
    if content.manifest is not None:
        try:
            _put_manifest(folder, read_bytes(content.manifest, manifest.SIZE_LIMIT))
        except (OSError, AtlctlError) as error:
            done.miss(content.manifest, error)
    wanted = ([EVENTS] if content.events is not None else []) + ([STATES] if error_files else [])
    for name in wanted:
        try:
            _put_lines(os.path.join(path, name), name, folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            done.miss(name, error)
    try:
        put_smoke(folder, read_smoke(os.path.join(path, SMOKE)))
    except FileNotFoundError:
        pass  # most have none
    except (OSError, AtlctlError) as error:
        done.miss(SMOKE, error)
    return done


def copy_files(paths: Sequence[str], folder: ReportFolder, *, stdin: int = 0, limit: int = LIMIT) -> Copied:
    """Single logs, and `-`. Each may hold many workers' lines, which the folder's `atlctl.json` says.

    Raises UsageError where two would have one name, or one is no log; AtlctlError where none can be read.
    """
    done = Copied()
    names: dict[str, str] = {}
    logs = [os.path.basename(path) for path in paths if path.endswith(".log")]
    chosen = {name for files in group(sorted(set(logs))).values() for name in files}
    for path in paths:
        base = os.path.basename(path)
        if base.endswith(".log") and base != ".log" and base not in chosen and len(paths) > 1:
            continue  # the same log without its time stamps
        name = f"{INPUT}.log" if len(paths) == 1 or path == STDIN else base if base.endswith(".log") else f"{base}.log"
        if name in names.values():
            raise UsageError(
                f"{path}: another log of this name is named, too", "copy them into one folder, and name that"
            )
        names[path] = kept_name(name)
    data = {"version": manifest.VERSION, "workers": [], "streams": list(names.values())}
    folder.put([manifest.NAME], json.dumps(data).encode() + b"\n")
    problems: list[AtlctlError] = []
    for path, name in names.items():
        try:
            _copy_stream(path, name, folder, done, stdin, limit // len(names))
        except OSError as error:
            problems.append(mapped(error, path))
            done.miss(path, error)
    if problems and not done.logs:
        raise problems[0]
    return done


def _copy_stream(path: str, name: str, folder: ReportFolder, done: Copied, stdin: int, limit: int) -> None:
    """One file that the user has named: a link, or a pipe, will do. Of a pipe the first part is kept, else the last.

    Raises UsageError where it is no log, OSError.
    """
    fd = stdin if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    shown = "standard input" if path == STDIN else path
    try:
        chunks = _chunks(fd, limit, shown, done)
        start = next(chunks, b"")
        if what := not_text(start):
            hint = what[1].format(path=path).replace("atlctl errors", "atlctl report")
            raise UsageError(f"{shown} is no log but {what[0]}", hint)
        out = folder.create_below([name])
        try:
            for piece in hidden(chain([start], chunks), folder.found):
                write_all(out, piece)
        finally:
            os.close(out)
        done.logs += 1
    finally:
        if path != STDIN:
            os.close(fd)


def _chunks(fd: int, limit: int, shown: str, done: Copied) -> Iterator[bytes]:
    found = os.fstat(fd)
    regular = stat.S_ISREG(found.st_mode)
    left = limit
    if regular and found.st_size - os.lseek(fd, 0, os.SEEK_CUR) > limit:
        yield os.read(fd, CHUNK).split(b"\n", 1)[0] + b"\n"  # what it is shows at its begin
        skip_to(fd, found.st_size - limit)
        done.missing.append((shown, f"only its last {limit >> 20} MiB"))
        left += CHUNK
    while data := os.read(fd, min(CHUNK, left)):
        left -= len(data)
        yield data
        if left <= 0:
            done.missing.append((shown, f"only its first {limit >> 20} MiB"))
            return


def _log_name(path: str, worker: str) -> str:
    return kept_name(worker) + os.path.basename(path)[len(worker) :]


def _copy_logs(
    logs: Sequence[Sequence[tuple[str, Sequence[str]]]], folder: ReportFolder, done: Copied, limit: int
) -> None:
    """Logs of which each may be in several files, in reading order. Each log gets the same room, for its last lines."""
    sizes = {path: _size(path) for log in logs for path, _ in log}
    room = fair([sum(sizes[path] for path, _ in log) for log in logs], limit)
    for log in logs:
        left = room
        for path, parts in reversed(log):
            skip = max(0, sizes[path] - left)
            left -= sizes[path] - skip
            if skip == sizes[path] > 0:
                done.missing.append((path, _TOO_LARGE))
                continue
            try:
                fd = os.open(path, _READ)
                try:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
                        raise OSError(errno.EINVAL, "is no regular file")
                    folder.put_log(parts, fd, skip)
                finally:
                    os.close(fd)
                done.logs += 1
                if skip:
                    done.missing.append((path, f"only its last {(sizes[path] - skip) / 2**20:.3g} MiB: {_TOO_LARGE}"))
            except OSError as error:
                done.miss(path, error)


def fair(sizes: Iterable[int], limit: int) -> int:
    """How much each may take at most, so that all together take no more than `limit`."""
    left, waiting = limit, sorted(sizes)
    while waiting:
        share = left // len(waiting)
        if waiting[0] > share:
            return share
        left -= waiting.pop(0)
    return limit


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _copy_files(root: str, content: FolderContent, folder: ReportFolder, done: Copied) -> None:
    """What the workers' processes left, under the same paths."""
    for path in [path for paths in content.error_files.values() for path in paths]:
        try:
            put_error_file(folder, _below(root, path), read_bytes(path, SIZE_LIMIT))
        except (OSError, AtlctlError) as error:
            done.miss(path, error)
    for path in [path for paths in content.dumps.values() for path in paths]:
        try:
            _put_dump(folder, _below(root, path), read_bytes(path, DUMP_LIMIT))
        except (OSError, AtlctlError) as error:
            done.miss(path, error)


def _below(root: str, path: str) -> list[str]:
    return os.path.relpath(path, root).split(os.sep)


def put_error_file(folder: ReportFolder, parts: Sequence[str], data: bytes) -> None:
    """Raises OSError."""
    folder.put(parts, redact_json_bytes(data, folder.found))


def _put_dump(folder: ReportFolder, parts: Sequence[str], data: bytes) -> None:
    """A pickle cannot be changed without harm: one in which something would be hidden is left out. Raises OSError."""
    if data[:1] in (b"{", b"["):
        folder.put(parts, redact_json_bytes(data, folder.found))
        return
    if b"".join(hidden(iter([data]), Counter())) != data:
        raise OSError(errno.EPERM, "left out: it holds what looks like a secret, and a pickle cannot be changed")
    folder.put(parts, data)


def _put_manifest(folder: ReportFolder, data: bytes) -> None:
    """Workers are called as their copies are. What is no manifest goes line by line. Raises OSError."""
    try:
        found = redact_json(json.loads(data), folder.found)
        for worker in found["workers"]:
            worker["name"] = kept_name(worker["name"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        folder.put([manifest.NAME], redact_json_bytes(data, folder.found))
    else:
        folder.put([manifest.NAME], json.dumps(found, indent=1).encode() + b"\n")


def _put_lines(path: str, name: str, folder: ReportFolder) -> None:
    """JSON lines, each by itself. Raises OSError."""
    with open(os.open(path, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        out = folder.create_below([name])
        try:
            for line in lines_within(file):
                write_all(out, redact_json_bytes(line.rstrip(b"\n"), folder.found) + b"\n")
        finally:
            os.close(out)


def put_smoke(folder: ReportFolder, data: Any) -> None:
    """What `smoke -o json` told. Raises OSError."""
    folder.put([SMOKE], json.dumps(redact_json(data, folder.found)).encode() + b"\n")


def read_smoke(path: str) -> dict[str, Any]:
    """The `data` of a document of `smoke -o json`. Raises UsageError where it is none, FileNotFoundError."""
    hint = "save one: atlctl smoke JOB -o json > smoke.json"
    try:
        found = parse_json(read_bytes(path, SMOKE_LIMIT))
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no JSON document", hint) from None
    data = found.get("data", found) if isinstance(found, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("checks"), list) or "tier" not in data:
        raise UsageError(f"{path} is no document of a smoke test", hint)
    return data
