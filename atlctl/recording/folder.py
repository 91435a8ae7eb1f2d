"""Lists the contents of an evidence folder: workers' logs, files of their processes, and the platform's data.

See docs/en/errors.md for its layout. The folder is not trusted: symbolic links are not followed, and counts are
bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from atlctl.i18n import Message
from atlctl.jobs.naming import natural_key
from atlctl.jobs.statedir import READ_FLAGS
from atlctl.recording.packed import unpacked_name

#: Tags of logs. Any other word is a tag only if `NAME.log` exists too, since host names contain dots.
_KNOWN_TAGS = ("ts", "previous", "stdout", "stderr")
#: Logs of one worker in reading order; then come the parts of a recorded log, then logs with other tags.
_ORDER = ("previous", "")
#: Endings of logs in a folder without any `.log`, as Slurm and Azure ML write them, with those that they count as.
_ENDINGS = {".out": ".stdout.log", ".err": ".stderr.log", ".txt": ".log"}
#: Segments of a recorded log: the second one is `NAME.part-2.ts.log`.
_PART = re.compile(r"part-([1-9]\d{0,8})")
_FILES = re.compile(r"(.+)_(?:tmp|elastic)")

#: torchelastic's log of one rank: `attempt_N/LOCAL_RANK/stdout.log`.
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
_LOCAL_RANK = re.compile(r"\d{1,4}")
_RANK_LOGS = ("stdout.log", "stderr.log")
#: A flight-recorder dump, by torch's default prefix or by its ending, which is the rank.
_DUMP = re.compile(r"(?:(?:nccl|comm_lib)_trace[\w-]{0,200}|[\w.-]{0,200}_rank_\d{1,7})(?:\.(?:json|pkl|pickle))?")
#: Keys at the start of a dump, whatever its name.
_DUMP_KEYS = (b"comm_lib_version", b"nccl_version", b"pg_config", b"pg_status", b"entries")
#: In place of a worker's name.
LOOSE = ""
_MANIFEST = "atlctl.json"
_EVENTS = "events.jsonl"

#: Bounds in one worker's folders: depth, entries scanned, files of one kind.
MAX_DEPTH = 12
MAX_ENTRIES = 100_000
MAX_ERROR_FILES = 4_096
#: Logs of one folder.
MAX_LOGS = 20_000


#: The hint for a folder that cannot be written to.
NEW_FOLDER = Message("name another folder with --out")


def cannot_write(path: str, error: OSError) -> Message:
    """The message for a folder that is not writable."""
    return Message("cannot write to {path}: {why}", path=path, why=error.strerror or error)


def opened(path: str) -> tuple[int, bool]:
    """A descriptor of the folder `path`, and whether it was created, with mode 0700. Raises OSError."""
    made = True
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        made = False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if made:
        os.fchmod(fd, 0o700)  # the umask may have removed bits that the owner needs
    return fd, made


@dataclass(frozen=True, slots=True)
class RankLogFile:
    """torchelastic's log of one rank's stdout or stderr, written with --redirects or --tee.

    With --tee the worker's log has the same lines. `attempt` counts the agent's restarts of the workers, from 0.
    """

    path: str
    attempt: int
    local_rank: int


@dataclass(slots=True)
class FolderContent:
    """Paths per worker. `logs` are in reading order: the previous instance comes first.

    `rank_logs` are sorted by attempt and local rank, `dumps` are flight-recorder dumps; under `LOOSE` those that lie
    beside the logs, and all of a folder without logs. `links` are symbolic links, which are skipped; `omitted` are
    workers with too many files; `unreadable` are folders that cannot be listed, with the reason.
    """

    logs: dict[str, list[str]] = field(default_factory=dict)
    error_files: dict[str, list[str]] = field(default_factory=dict)
    rank_logs: dict[str, list[RankLogFile]] = field(default_factory=dict)
    dumps: dict[str, list[str]] = field(default_factory=dict)
    manifest: str | None = None
    events: str | None = None
    links: list[str] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def note(self, error: OSError) -> None:
        """Notes a subfolder that cannot be listed."""
        self.unreadable.append((str(error.filename), error.strerror or Message("cannot be read")))


def is_tag(word: str) -> bool:
    """Whether a dot-separated word of a log's name is always a tag, never a part of the worker's name."""
    return word in _KNOWN_TAGS or _PART.fullmatch(word) is not None


def part_of(stem: str, file: str) -> int | None:
    """The segment number, from 1, of `file` in the recorded log of the worker `stem`; None if it is not one."""
    if file == f"{stem}.ts.log":
        return 1
    found = _PART.fullmatch(file[len(stem) + 1 : -len(".ts.log")])
    return int(found[1]) if found and file == f"{stem}.{found[0]}.ts.log" else None


def look(folder: str, *, error_files: bool) -> FolderContent:
    """The logs in `folder` and, unless `error_files` is false, everything else that is evidence. Raises OSError."""
    found = FolderContent()
    names: dict[str, str] = {}  # the names of the unpacked logs -> the files
    others: dict[str, str] = {}
    folders: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
            elif entry.name in (_MANIFEST, _EVENTS):
                if error_files:
                    _platform_file(entry, found)
            elif (name := log_name(entry.name)) is None:
                if error_files and _is_dump(entry.path):
                    found.dumps.setdefault(LOOSE, []).append(entry.path)
                elif (name := _counts_as(entry.name)) and entry.is_file(follow_symlinks=False):
                    others[name] = entry.name
            elif entry.is_symlink():
                found.links.append(entry.path)
            elif entry.is_file(follow_symlinks=False) and len(names) < MAX_LOGS:
                # Of a log and its compressed copy, the log is read.
                names[name] = min(entry.name, names.get(name, entry.name), key=len)
    names = names or dict([*others.items()][:MAX_LOGS])
    for name, files in group(list(names)).items():
        found.logs[name] = [os.path.join(folder, names[file]) for file in files]
    for name in sorted(folders - found.logs.keys(), key=natural_key):
        if wrapped := _wrapped(os.path.join(folder, name, "workers", name, "log"), found):
            found.logs[name] = wrapped
    if error_files:
        roots = [(name, os.path.join(folder, name)) for name in found.logs if name in folders]
        roots += _collected(os.path.join(folder, "files"), found) if "files" in folders else []
        for name, root in roots:
            if not _files_below(root, name, found):
                found.omitted.append(name)
        if not found.logs:
            for name in sorted(folders - {"files"}, key=natural_key):
                _dumps_below(os.path.join(folder, name), found)
    loose = found.dumps.get(LOOSE)
    if loose:
        found.dumps[LOOSE] = sorted(loose, key=natural_key)[:MAX_ERROR_FILES]
    return found


def _wrapped(folder: str, content: FolderContent) -> list[str]:
    """The files of the log of a worker of `atlctl run`, the oldest first; empty if the folder is not one."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        content.note(error)
        return []
    rotated = sorted(name for name in names if name.startswith("0.log."))
    return [os.path.join(folder, name) for name in (*rotated, *(["0.log"] if "0.log" in names else []))]


def log_name(name: str) -> str | None:
    """The name of a log, without an ending of compression; None if it does not end in `.log` then."""
    plain = unpacked_name(name)
    return plain if plain.endswith(".log") and plain != ".log" else None


def _counts_as(name: str) -> str | None:
    stem, ending = os.path.splitext(name)
    if not stem or ending not in _ENDINGS or (ending == ".txt" and "log" not in stem):
        return None
    return stem + _ENDINGS[ending]


def _is_dump(path: str) -> bool:
    """Whether it begins like a flight-recorder dump."""
    try:
        fd = os.open(path, READ_FLAGS)
    except OSError:
        return False
    try:
        start = os.read(fd, 4096)
    except OSError:
        return False
    finally:
        os.close(fd)
    return start[:1] in (b"\x80", b"{") and any(key in start for key in _DUMP_KEYS)


def _dumps_below(root: str, content: FolderContent) -> None:
    """Adds the dumps below a folder that belongs to no log."""
    seen = 0
    for path, folders, files in os.walk(root, onerror=content.note):
        seen += len(folders) + len(files)
        dumps = [full for name in files if _is_dump(full := os.path.join(path, name))]
        content.dumps.setdefault(LOOSE, []).extend(dumps)
        if seen > MAX_ENTRIES or path.count(os.sep) - root.count(os.sep) >= MAX_DEPTH:
            return


def _platform_file(entry: os.DirEntry[str], found: FolderContent) -> None:
    if entry.is_symlink():
        found.links.append(entry.path)
    elif entry.is_file(follow_symlinks=False):
        if entry.name == _MANIFEST:
            found.manifest = entry.path
        else:
            found.events = entry.path


def group(names: Sequence[str]) -> dict[str, list[str]]:
    """Log file names by worker, workers in natural order, files in reading order.

    `NAME.ts.log` is the same log as `NAME.log` with time stamps, and replaces it. `NAME.part-2.ts.log` continues it.
    """
    present = set(names)
    workers: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        worker, tags = _worker_of(name, present)
        instance = "previous" if "previous" in tags else next((tag for tag in tags if tag != "ts"), "")
        workers.setdefault(worker, {}).setdefault(instance, []).append(name)
    grouped = {}
    for worker in sorted(workers, key=natural_key):
        instances = workers[worker]
        order = sorted(instances, key=_reading_order)
        grouped[worker] = [_preferred(instances[instance]) for instance in order]
    return grouped


def _reading_order(tag: str) -> tuple[int, int, str]:
    if tag in _ORDER:
        return _ORDER.index(tag), 0, tag
    part = _PART.fullmatch(tag)
    return (len(_ORDER), int(part[1]), tag) if part else (len(_ORDER) + 1, 0, tag)


def _worker_of(name: str, present: set[str]) -> tuple[str, tuple[str, ...]]:
    """Worker and tags of a log: `w-0.previous.ts.log` gives `w-0` and both tags; host names may contain dots."""
    worker = name.removesuffix(".log")
    tags: list[str] = []
    while True:
        base, dot, tag = worker.rpartition(".")
        if not dot or not base or not (is_tag(tag) or f"{base}.log" in present):
            return worker, tuple(tags)
        worker = base
        tags.append(tag)


def _preferred(names: Sequence[str]) -> str:
    """The variant of a log with time stamps, if there is one."""
    return next((name for name in names if "ts" in name.split(".")[1:-1]), names[0])


def _collected(files: str, found: FolderContent) -> Iterator[tuple[str, str]]:
    """Worker names and paths of the folders `NAME_tmp` and `NAME_elastic` in `files`."""
    try:
        with os.scandir(files) as entries:
            folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        found.note(error)
        return
    for entry in sorted(folders, key=lambda entry: entry.name):
        if match := _FILES.fullmatch(entry.name):
            yield match[1], entry.path


def _files_below(root: str, worker: str, content: FolderContent) -> bool:
    """Adds the worker's files below `root`, sorted by path; False if a bound was reached."""
    errors: list[str] = []
    logs: list[RankLogFile] = []
    dumps: list[str] = []
    seen = 0
    depth_of_root = root.count(os.sep)
    whole = True
    for path, folders, files in os.walk(root, onerror=content.note):
        folders.sort(key=natural_key)
        seen += len(folders) + len(files)
        if path.count(os.sep) - depth_of_root >= MAX_DEPTH and folders:
            folders.clear()
            whole = False
        for name in sorted(files, key=natural_key):
            full = os.path.join(path, name)
            if (plain := unpacked_name(name)) != name and plain in files:
                continue
            log = _rank_log(path, name)
            is_error, is_dump = name.endswith("error.json"), _DUMP.fullmatch(name) is not None
            if not (log or is_error or is_dump) or os.path.islink(full) or not os.path.isfile(full):
                continue
            if log:
                logs.append(log)
            elif is_error:
                errors.append(full)
            else:
                dumps.append(full)
        if seen > MAX_ENTRIES or max(len(errors), len(logs), len(dumps)) > MAX_ERROR_FILES:
            whole = False
            break
    if errors:
        content.error_files.setdefault(worker, []).extend(errors[:MAX_ERROR_FILES])
    if logs:
        content.rank_logs.setdefault(worker, []).extend(logs[:MAX_ERROR_FILES])
    if dumps:
        content.dumps.setdefault(worker, []).extend(dumps[:MAX_ERROR_FILES])
    return whole


def _rank_log(folder: str, name: str) -> RankLogFile | None:
    """The rank log `name` in `folder`; None if it is not one."""
    if unpacked_name(name) not in _RANK_LOGS:
        return None
    above, local_rank = os.path.split(folder)
    attempt = _ATTEMPT.fullmatch(os.path.basename(above))
    if attempt is None or not _LOCAL_RANK.fullmatch(local_rank):
        return None
    return RankLogFile(os.path.join(folder, name), int(attempt[1]), int(local_rank))
