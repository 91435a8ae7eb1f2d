"""Writes saved evidence to a report's folder or archive and redacts secrets before they reach the disk.

All files are created through the folder's descriptor; names from workers never choose a path. `errors --from` reads a
report like the original evidence. An incomplete report never gets its final name, and the same files give the same
archive.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import stat
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from tempfile import mkdtemp
from typing import Any

from atlctl.backends.base import LogLine, LogRequest
from atlctl.diagnosis.flightrecorder import DUMP_LIMIT
from atlctl.diagnosis.scanner import sieve_for
from atlctl.diagnosis.stepfile import STEPS
from atlctl.diagnosis.torchelastic import ERROR_FILE_LIMIT
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError, why_of
from atlctl.jobs.fields import parse_json
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import READ_FLAGS, lines_within, read_bytes, write_all
from atlctl.recording import manifest
from atlctl.recording.folder import NEW_FOLDER, FolderContent, cannot_write, group, log_name, look
from atlctl.recording.lines import STDIN, as_utf8, no_log, not_text
from atlctl.recording.packed import PlainBytes, unpacked_name
from atlctl.recording.read import INPUT, check_logs, mapped, shown_path
from atlctl.recording.recorder.store import EVENTS, STATES, regular
from atlctl.recording.save import EvidenceSource, Folder, closing
from atlctl.render.redact import HIDDEN, LITERALS, Kind, Redactor, redact_json, redact_json_bytes, redact_text
from atlctl.render.sanitize import clean

#: Bytes of all logs together. If they are larger, only the end of each is kept.
LIMIT = 1 << 30
SMOKE = "smoke.json"
SAVE_SMOKE = Message("save one: atlctl smoke JOB -o json > smoke.json")
SMOKE_LIMIT = 32 << 20
_TOO_LARGE = Message("the size limit of all logs is reached")
CHUNK = 256 * 1024
#: A longer line is redacted in pieces of this size.
_LINE = 1 << 20
SUFFIXES = (".tar.gz", ".tgz")
#: A manifest of no known workers.
_NO_WORKERS = {"version": manifest.VERSION, "workers": []}
_ELSEWHERE = Message("name a new folder, or a new file that ends in .tar.gz, with --out")


@dataclass(slots=True)
class Copied:
    """The number of copied `logs`. `missing`: missing or incomplete items and the reason (hostile text).

    `cut`: paths in the copy of logs that lack lines, since their files are cut or damaged.
    """

    logs: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    def miss(self, what: str, error: OSError | AtlctlError) -> None:
        self.missing.append((what, why_of(error)))


def copy_folder(path: str, folder: ReportFolder, *, error_files: bool = True, limit: int = LIMIT) -> Copied:
    """Copies the evidence in the folder `path`. Raises NothingMatched if it has no log or error file, AtlctlError."""
    try:
        content = look(path, error_files=error_files)
    except OSError as error:
        raise mapped(error, path) from error
    check_logs(content, path)
    done = Copied()
    done.missing += [(link, Message("a symbolic link, which is not followed")) for link in content.links]
    done.missing += list(content.unreadable)
    done.missing += [(worker, Message("it has too many files; not all were read")) for worker in content.omitted]
    logs = [
        [(file, [kept_name(worker) + unpacked_name(os.path.basename(file))[len(worker) :]]) for file in files]
        for worker, files in content.logs.items()
    ]
    logs += [
        [(item.path, _below(path, unpacked_name(item.path)))] for items in content.rank_logs.values() for item in items
    ]
    _copy_logs(logs, folder, done, limit)
    _copy_files(path, content, folder, done)
    if content.manifest is not None:
        try:
            _put_manifest(folder, read_bytes(content.manifest, manifest.SIZE_LIMIT), done.cut)
        except (OSError, AtlctlError) as error:
            done.miss(content.manifest, error)
    elif done.cut:
        _put_manifest(folder, json.dumps(_NO_WORKERS).encode(), done.cut)
    wanted = ([EVENTS] if content.events is not None else []) + ([STATES, STEPS] if error_files else [])
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
        pass  # optional
    except (OSError, AtlctlError) as error:
        done.miss(SMOKE, error)
    return done


def copy_files(paths: Sequence[str], folder: ReportFolder, *, stdin: int = 0, limit: int = LIMIT) -> Copied:
    """Copies single logs, and `-`. `atlctl.json` marks them as logs that may hold lines of several workers.

    Raises UsageError if two have the same name or one is not a log, AtlctlError if no log can be read.
    """
    done = Copied()
    names: dict[str, str] = {}
    logs = [name for path in paths if (name := log_name(os.path.basename(path)))]
    chosen = {name for files in group(sorted(set(logs))).values() for name in files}
    for path in paths:
        base = unpacked_name(os.path.basename(path))
        if base.endswith(".log") and base != ".log" and base not in chosen and len(paths) > 1:
            continue  # the same log without its time stamps
        name = f"{INPUT}.log" if len(paths) == 1 or path == STDIN else base if base.endswith(".log") else f"{base}.log"
        if name in names.values():
            raise UsageError(
                Message("{path}: two logs have this name", path=path),
                Message("copy them into one folder, and name that folder"),
            )
        names[path] = kept_name(name)
    problems: list[AtlctlError] = []
    for path, name in names.items():
        try:
            _copy_stream(path, name, folder, done, stdin, limit // len(names))
        except OSError as error:
            problems.append(mapped(error, path))
            done.miss(path, error)
    if problems and not done.logs:
        raise problems[0]
    data = {**_NO_WORKERS, "streams": list(names.values()), **({"cut": done.cut} if done.cut else {})}
    folder.put([manifest.NAME], json.dumps(data).encode() + b"\n")
    return done


def _copy_stream(path: str, name: str, folder: ReportFolder, done: Copied, stdin: int, limit: int) -> None:
    """Copies one file that the user named; links and pipes are allowed. Raises UsageError if it is not a log, OSError.

    Of a file larger than `limit` the end is kept, of a pipe the start.
    """
    fd = stdin if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = LogText(fd, path)
        chunks = _chunks_within(text, limit, done)
        start = next(chunks, b"")
        if what := not_text(start):
            raise no_log(what, text.shown, path, "report")
        out = folder.create_below([name])
        try:
            for piece in hidden(chain([start], chunks), folder.found):
                write_all(out, piece)
        finally:
            os.close(out)
        _note_damage(text, name, done)
        done.logs += 1
    finally:
        if path != STDIN:
            os.close(fd)


class LogText:
    """The text of a log, from where the open file `fd` is: unpacked, in UTF-8.

    Raises UsageError if a package is missing, OSError.
    """

    def __init__(self, fd: int, path: str) -> None:
        self.shown = shown_path(path)
        self._fd, self._path = fd, path
        self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._begin = os.lseek(fd, 0, os.SEEK_CUR) if self._regular else 0
        self._open()

    def size(self) -> int | None:
        """Bytes of the text; None for a pipe. Raises AtlctlError if it unpacks to too much, OSError."""
        if not self._regular:
            return None
        if self._same:
            return max(0, os.fstat(self._fd).st_size - self._begin)
        size = sum(map(len, self.chunks()))
        os.lseek(self._fd, self._begin, os.SEEK_SET)
        self._open()
        return size

    def _open(self) -> None:
        self._plain = PlainBytes(lambda size: os.read(self._fd, size), self.shown, self._path, "report")
        self._read, self._start = as_utf8(self._plain.read, self._plain.read(CHUNK))
        self._same = self._plain.unpacking is None and self._read == self._plain.read

    @property
    def wrong(self) -> Message | None:
        """Why lines are missing at its end, after its `chunks`."""
        return self._plain.unpacking.wrong if self._plain.unpacking else None

    def first_line(self) -> bytes:
        return self._start.partition(b"\n")[0]

    def chunks(self, skip: int = 0) -> Iterator[bytes]:
        """The text, without its first `skip` bytes and the rest of their line. Raises AtlctlError, OSError."""
        if skip and self._same:
            skip_to(self._fd, self._begin + skip)
            self._start, skip = self._read(CHUNK), 0
        left = skip - 1  # if `skip` bytes end with a newline, the next line is not skipped
        data = self._start
        while data:
            if left >= 0:
                end = data.find(b"\n", left) + 1
                left = max(0, left - len(data)) if not end else -1
                data = data[end:] if end else b""
            if data:
                yield data
            data = self._read(CHUNK)
        if self._plain.unpacking is not None and self._plain.unpacking.refused:
            raise AtlctlError(Message("{path} {problem}", path=self.shown, problem=self.wrong))


def _note_damage(text: LogText, name: str, done: Copied) -> None:
    """Notes a log, copied as `name`, whose file is cut or damaged."""
    if text.wrong is not None:
        done.cut.append(name)
        done.missing.append((text.shown, text.wrong))


def _chunks_within(text: LogText, limit: int, done: Copied) -> Iterator[bytes]:
    left, skip = limit, 0
    size = text.size()
    if size is not None and size > limit:
        yield text.first_line() + b"\n"  # it shows the format
        skip = size - limit
        done.missing.append((text.shown, Message("only its last {size} MiB", size=limit >> 20)))
        left += CHUNK
    for data in text.chunks(skip):
        yield data[:left]
        left -= len(data)
        if left <= 0:
            done.missing.append((text.shown, Message("only its first {size} MiB", size=limit >> 20)))
            return


def _copy_logs(
    logs: Sequence[Sequence[tuple[str, Sequence[str]]]], folder: ReportFolder, done: Copied, limit: int
) -> None:
    """Copies logs, each in one or more files in reading order. Of large logs the end is kept, up to an equal share."""
    sizes: dict[str, int] = {}
    problems: list[AtlctlError] = []
    for path in [path for log in logs for path, _ in log]:
        try:
            sizes[path] = _size(path)
        except AtlctlError as problem:
            done.miss(path, problem)
            problems.append(problem)
    logs = [[(path, parts) for path, parts in log if path in sizes] for log in logs]
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
                fd = regular(os.open(path, READ_FLAGS), path)
                try:
                    text = LogText(fd, path)
                    folder.put_log(parts, text.chunks(skip))
                finally:
                    os.close(fd)
                _note_damage(text, "/".join(parts), done)
                done.logs += 1
                if skip:
                    done.missing.append(
                        (
                            path,
                            Message(
                                "only its last {size:.3g} MiB: {why}",
                                size=(sizes[path] - skip) / 2**20,
                                why=_TOO_LARGE,
                            ),
                        )
                    )
            except OSError as error:
                done.miss(path, error)
    if problems and not done.logs:
        raise problems[0]


def fair(sizes: Iterable[int], limit: int) -> int:
    """The largest size for each item so that the total is at most `limit`."""
    left, waiting = limit, sorted(sizes)
    while waiting:
        share = left // len(waiting)
        if waiting[0] > share:
            return share
        left -= waiting.pop(0)
    return limit


def _size(path: str) -> int:
    """Bytes of the text of a log, 0 if it cannot be read. Raises AtlctlError."""
    try:
        fd = os.open(path, READ_FLAGS)
        try:
            return LogText(fd, path).size() or 0
        finally:
            os.close(fd)
    except OSError:
        return 0


def _copy_files(root: str, content: FolderContent, folder: ReportFolder, done: Copied) -> None:
    """Copies error files and flight-recorder dumps, with the same paths."""
    for path in [path for paths in content.error_files.values() for path in paths]:
        try:
            put_error_file(folder, _below(root, path), read_bytes(path, ERROR_FILE_LIMIT))
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
    """Writes an error file, redacted. Raises OSError."""
    folder.put(parts, redact_json_bytes(data, folder.found))


def _put_dump(folder: ReportFolder, parts: Sequence[str], data: bytes) -> None:
    """Writes a dump. A pickle cannot be redacted: one with a secret is rejected. Raises OSError."""
    if data[:1] in (b"{", b"["):
        folder.put(parts, redact_json_bytes(data, folder.found))
        return
    if b"".join(hidden(iter([data]), Counter())) != data:
        raise OSError(
            errno.EPERM, Message("not included: it may contain a secret, and a pickle file cannot be redacted")
        )
    folder.put(parts, data)


def _put_manifest(folder: ReportFolder, data: bytes, cut: Sequence[str]) -> None:
    """Writes the manifest, with workers named like their copies, and the logs that lack lines.

    An invalid one is redacted as text. Raises OSError.
    """
    try:
        found = redact_json(json.loads(data), folder.found)
        for worker in found["workers"]:
            worker["name"] = kept_name(worker["name"])
        if cut:
            found["cut"] = [*found.get("cut", ()), *cut]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        folder.put([manifest.NAME], redact_json_bytes(data, folder.found))
    else:
        folder.put([manifest.NAME], json.dumps(found, indent=1).encode() + b"\n")


def _put_lines(path: str, name: str, folder: ReportFolder) -> None:
    """Copies a file of JSON lines and redacts each line. Raises OSError."""
    with open(regular(os.open(path, READ_FLAGS), path), "rb") as file:
        out = folder.create_below([name])
        try:
            for line in lines_within(file):
                write_all(out, redact_json_bytes(line.rstrip(b"\n"), folder.found) + b"\n")
        finally:
            os.close(out)


def put_smoke(folder: ReportFolder, data: Any) -> None:
    """Writes the data of `smoke -o json`, redacted. Raises OSError."""
    folder.put([SMOKE], json.dumps(redact_json(data, folder.found)).encode() + b"\n")


def read_smoke(path: str) -> dict[str, Any]:
    """The `data` of a document of `smoke -o json`. Raises UsageError if it is not one, FileNotFoundError."""
    try:
        found = parse_json(read_bytes(path, SMOKE_LIMIT))
    except (ValueError, RecursionError):
        raise UsageError(Message("{path} is not a JSON document", path=path), SAVE_SMOKE) from None
    data = found.get("data", found) if isinstance(found, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("checks"), list) or "tier" not in data:
        raise UsageError(Message("{path} is not a document of a smoke test", path=path), SAVE_SMOKE)
    return data


class ReportFolder(Folder):
    """A new or empty report folder. Files are 0600, folders 0700. `found` counts the redacted secrets."""

    elsewhere = NEW_FOLDER

    def __init__(self, path: str) -> None:
        self.found: Counter[Kind] = Counter()
        super().__init__(path)

    def named(self, name: str) -> str:
        return kept_name(name)

    def put(self, parts: Sequence[str], data: bytes) -> None:
        """Writes a file of `data`, which must be redacted already. Raises OSError."""
        fd = self.create_below(parts)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def put_log(self, parts: Sequence[str], chunks: Iterator[bytes]) -> None:
        """Writes the lines of a log, redacted. Raises OSError, and what `chunks` raises."""
        fd = self.create_below(parts)
        try:
            for piece in hidden(chunks, self.found):
                write_all(fd, piece)
        finally:
            os.close(fd)

    def files(self) -> list[tuple[str, int]]:
        """Relative paths and sizes in bytes of all files, sorted. Raises OSError."""
        found = []
        for path, _, names, at in os.fwalk(".", dir_fd=self._fd):
            for name in names:
                full = name if path == "." else f"{path[2:]}/{name}"
                found.append((full, os.stat(name, dir_fd=at, follow_symlinks=False).st_size))
        return sorted(found)

    def places(self) -> int:
        """The number of redaction marks in the folder's files. Raises OSError."""
        mark, count = HIDDEN.encode(), 0
        for _, _, names, at in os.fwalk(".", dir_fd=self._fd):
            for name in names:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                try:
                    held = b""
                    for chunk in _chunks(fd):
                        held += chunk
                        count += held.count(mark)
                        held = held[held.rfind(mark) + len(mark) :] if mark in held else held
                        held = held[-len(mark) + 1 :]
                finally:
                    os.close(fd)
        return count


def kept_name(name: str) -> str:
    """A file's name, unchanged if it is safe to show and to unpack, else converted by `safe_file_name`.

    Workers are named after their logs, so as few names as possible should change.
    """
    fits = 0 < len(os.fsencode(name)) <= 255 and name not in (".", "..") and name[0] not in "-~ " and "/" not in name
    return name if fits and clean(name) == name and "\\" not in name else safe_file_name(name)


def hidden(chunks: Iterator[bytes], found: Counter[Kind]) -> Iterator[bytes]:
    """Redacts the secrets in the chunks of a log. Keeps the number of lines, with bounded memory."""
    holds = sieve_for(LITERALS)
    redactor = Redactor(holds, found, cut=True)
    rest = b""
    for chunk in chunks:
        held = rest + chunk
        cut = held.rfind(b"\n") + 1
        if not cut and len(held) >= _LINE:
            # Cut inside a line after a space, because secrets contain no spaces.
            cut = held.rfind(b" ", len(held) // 2) + 1 or len(held)
        whole, rest = held[:cut], held[cut:]
        if whole:
            yield _treated(whole, redactor, holds(whole))
    if rest:
        yield _treated(rest, redactor, True)


def _treated(data: bytes, redactor: Redactor, suspect: bool) -> bytes:
    if not suspect and redactor.quiet:
        return data
    return b"".join(map(redactor.line, data.splitlines(keepends=True) if b"\r" not in data else _lines(data)))


def _lines(data: bytes) -> list[bytes]:
    """Splits at newlines only: the carriage returns of a progress bar do not end a line."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _chunks(fd: int) -> Iterator[bytes]:
    while data := os.read(fd, CHUNK):
        yield data


def skip_to(fd: int, size: int) -> None:
    """Skips the first `size` bytes of an open file and the rest of their last line. Raises OSError."""
    os.lseek(fd, size - 1, os.SEEK_SET)
    while data := os.read(fd, CHUNK):
        end = data.find(b"\n")
        if end >= 0:
            os.lseek(fd, end + 1 - len(data), os.SEEK_CUR)
            return


class Redacted:
    """An evidence source for `save` that redacts `inner`. `found` counts the secrets; pass its `job` to `save`."""

    def __init__(self, inner: EvidenceSource, job: Job, found: Counter[Kind]) -> None:
        self._inner, self._job, self._found = inner, job, found
        self._workers = {worker.name: worker for worker in job.workers}
        self._holds = sieve_for(LITERALS)
        workers = [
            replace(worker, reason=redact_text(worker.reason, found), message=redact_text(worker.message, found))
            for worker in job.workers
        ]
        self.job = replace(job, workers=tuple(workers), command=redact_text(job.command, found))

    async def lines(
        self,
        job: Job,  # noqa: ARG002 - the redacted job; the source needs the original
        worker: Worker,
        request: LogRequest,
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Raises AtlctlError, as the source does."""
        redactor = Redactor(self._holds, self._found, cut=True)
        async with closing(self._inner.lines(self._job, self._workers[worker.name], request)) as batches:
            async for batch in batches:
                yield [_hidden(line, redactor) for line in batch]

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Raises AtlctlError, as the source does."""
        return [redact_json(event, self._found) for event in await self._inner.raw_events(self._job)]


def _hidden(line: LogLine, redactor: Redactor) -> LogLine:
    data = redactor.line(line.data)
    return line if data is line.data else replace(line, data=data)


def is_archive(path: str) -> bool:
    """Whether `path` names an archive rather than a folder."""
    return path.endswith(SUFFIXES)


@contextmanager
def staged(path: str) -> Iterator[str]:
    """A temporary folder, 0700, in the parent of `path`, the final path of the report; removed at the end.

    Raises UsageError if `path` exists or the folder cannot be made, NotAllowed without permission to make it.
    """
    path = path.rstrip("/")
    if not path or (os.path.lexists(path) and not (_empty(path) and not is_archive(path))):
        raise UsageError(Message("{path} already exists", path=path or "/"), _ELSEWHERE)
    parent = os.path.dirname(path) or "."
    try:
        folder = mkdtemp(prefix=".atlctl-report-", dir=parent)
    except PermissionError as error:
        raise NotAllowed(cannot_write(parent, error), _ELSEWHERE) from error
    except OSError as error:
        raise UsageError(cannot_write(parent, error), _ELSEWHERE) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _empty(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def move(folder: str, path: str) -> None:
    """Renames the finished folder to `path`. Raises UsageError if that fails, for example because `path` exists."""
    try:
        os.rename(folder, path.rstrip("/"))
    except OSError as error:
        raise UsageError(Message("cannot make {path}: {why}", path=path, why=error.strerror), _ELSEWHERE) from error


def pack(folder: str, path: str, now: float) -> int:
    """Packs the files of `folder` into the new archive `path` (0600), below a folder with the archive's name.

    `now`: the time of all members, seconds since the epoch. Returns its size in bytes. Raises UsageError if `path`
    exists, OSError. An incomplete archive is removed.
    """
    top = os.path.basename(path)
    top = next(top.removesuffix(suffix) for suffix in SUFFIXES if top.endswith(suffix)) or "report"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise UsageError(Message("{path} already exists", path=path), _ELSEWHERE) from error
    whole = False
    try:
        with open(fd, "wb") as out:
            os.fchmod(fd, 0o600)
            # No file name and no time in the gzip header: they would differ between runs.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=out, mtime=0) as packed:
                with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
                    _add(tar, folder, top, int(now))
            out.flush()
            size = os.fstat(fd).st_size
        whole = True
        return size
    finally:
        if not whole:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _add(tar: tarfile.TarFile, folder: str, top: str, now: int) -> None:
    for path, folders, files in os.walk(folder):
        folders.sort()
        below = os.path.relpath(path, folder)
        inside = top if below == "." else f"{top}/{below}"
        tar.addfile(_member(inside, tarfile.DIRTYPE, 0o700, now))
        for name in sorted(files):
            with open(os.path.join(path, name), "rb") as file:
                member = _member(f"{inside}/{name}", tarfile.REGTYPE, 0o600, now)
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)


def _member(name: str, kind: bytes, mode: int, now: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, mode, now
    return member
