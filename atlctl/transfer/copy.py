"""Copy files to or from many workers at once, as a command that the fan-out runs.

The executors here wrap another executor: they answer the worker's greeting and handle the stream. `Copy` holds the kind
of the source, the target and whether the copy is complete, which the exit code does not show.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Execution,
    Executor,
    Exited,
    Output,
    Script,
    Stream,
    as_argv,
)
from atlctl.fanout.engine import FanOut, Limits
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.fanout.sessions import ExecutionAround, ExecutorAround
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import AtlctlError, ExitCode, UsageError, by_signal
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import and_more, safe_file_name
from atlctl.transfer.tar import BadStreamError, LocalSource, SourceError, TarEntry, TarReader, archive, own_name, plain
from atlctl.transfer.unpack import FileTaker, FolderTaker, PlaceError, Tally, make_folder, open_folder

#: Bytes of a worker's stderr that are kept: its first lines have the cause of a failure.
_STDERR = 4096
#: Bytes processed before yielding to the event loop: a worker that sends without pause must not delay Ctrl-C.
_TURN = 1 << 20
#: Seconds from SIGTERM to SIGKILL if a copy is aborted, also for its tasks in this process.
_GRACE = 1.0
#: GNU tar's warnings (exit code 1) if a file changed during the copy.
_CHANGED = (b": file changed as we read it", b": File removed before we read it")
_log = logging.getLogger(__name__)
#: Mode of a file that has none in the stream.
_PRIVATE = 0o600
_MAX_SIZE_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Remote:
    """A path on workers. `worker`: the text before the colon, empty for the selected workers.

    `path` begins with `/` or `./`, so that no program takes it for an option. `slash`: the argument ended with a slash
    and means a folder.
    """

    worker: str
    path: str
    slash: bool

    @property
    def name(self) -> str:
        """The last part of the path; empty if that is not a name (`/`, `.`, `x/..`)."""
        return own_name(self.path)


@dataclass(frozen=True, slots=True)
class CopySpec:
    """Source and target of a copy; exactly one is remote. `upload`: from this machine to workers."""

    remote: Remote
    local: str
    upload: bool


def parse(source: str, target: str) -> CopySpec:
    """Parse the two arguments of a copy. `WORKER:PATH` and `:PATH` are remote; a colon after a slash belongs to a name.

    Raises UsageError unless exactly one side is remote and both paths are not empty.
    """
    sides = [_remote(source), _remote(target)]
    for text in (source, target):
        if not text:
            raise UsageError(Message("a path is empty"), "atlctl cp worker-0:/logs ./logs")
    if None not in sides:
        raise UsageError(
            Message("both sides are on workers, but one side of a copy must be local"),
            Message("in two steps, as: atlctl cp worker-0:/file ./file && atlctl cp --all ./file :/file"),
        )
    there, back = sides
    if there is None and back is not None:
        return CopySpec(back, source, upload=True)
    if there is not None:
        return CopySpec(there, target, upload=False)
    raise UsageError(
        Message("neither side is on a worker"),
        Message("write WORKER:PATH, or :PATH for the selected workers, as SRC or as DST"),
    )


def _remote(text: str) -> Remote | None:
    worker, colon, path = text.partition(":")
    if not colon or "/" in worker:
        return None
    if not path:
        raise UsageError(
            Message("no path follows '{text}'", text=text),
            Message("write '{text}.' for the worker's working folder, './{text}' for a local file", text=text),
        )
    whole = path.rstrip("/") or "/"
    return Remote(worker, whole if whole.startswith("/") else f"./{whole}", path.endswith("/"))


@dataclass(slots=True)
class CopyProgress:
    """The progress of copies. `done` and `total` count workers."""

    total: int
    done: int = 0
    copies: list[Copy] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(copy.tally.bytes for copy in self.copies)

    @property
    def files(self) -> int:
        return sum(copy.tally.files for copy in self.copies)


class _Silent:
    """The sink of the fan-out: it receives no output."""

    def __init__(self, progress: CopyProgress) -> None:
        self._progress = progress

    async def started(self, worker: Worker) -> None:
        """Ignore it."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """Never called: the executions consume all output."""

    async def finished(self, outcome: Outcome) -> None:  # noqa: ARG002 - a part of the protocol
        self._progress.done += 1


class Copying:
    """A prepared copy: `fan_out` runs it, then `results` returns its results. Use both once."""

    def __init__(self, fan_out: FanOut, copies: dict[str, Copy], progress: CopyProgress) -> None:
        self.fan_out = fan_out
        self.progress = progress
        self._copies = copies

    def results(self, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Copy]]:
        """Map each outcome to its result: only `exited` with 0, or with a `changed` copy, is a success; any other exit
        becomes 1.

        `timeout`, `lost`, `cancelled` and unreachable workers are unchanged.
        """
        pairs = [(outcome, self._copies[outcome.worker.name]) for outcome in outcomes]
        return [(_judged(outcome, copy), copy) for outcome, copy in pairs]


def _unclear() -> BadStreamError:
    return BadStreamError(Message("the worker did not report what it sends"))


def download(
    executor: Executor, workers: Sequence[Worker], remote: Remote, path: str, each: bool, limits: Limits
) -> Copying:
    """Copy `remote` on `workers` to `path`. `each`: into a folder for each worker; otherwise there is one worker."""
    receivers = {
        worker.name: Receiver(EachTarget(path, worker.name, remote.name) if each else OneTarget(path, remote.name))
        for worker in workers
    }
    copies = {name: Copy(receiver.path, receiver.tally) for name, receiver in receivers.items()}

    def around(worker: Worker, execution: Execution) -> Execution:
        return _Down(execution, copies[worker.name], receivers[worker.name])

    return _set_up(ExecutorAround(executor, around), workers, send_request(remote.path), copies, limits)


def upload(
    executor: Executor, workers: Sequence[Worker], source: LocalSource, remote: Remote, limits: Limits
) -> Copying:
    """Copy `source` to `remote` on `workers`."""
    copies = {worker.name: Copy(remote.path, Tally(skipped=source.skipped)) for worker in workers}

    def request(_: Worker) -> ExecRequest:
        # Workers may share a disk: each uses a different temporary name.
        tag = secrets.token_hex(8)
        return take_request(remote.path, source.name, source.kind, remote.slash, tag, source.size, source.mode)

    def around(worker: Worker, execution: Execution) -> Execution:
        return _Up(execution, copies[worker.name], source)

    return _set_up(ExecutorAround(executor, around), workers, request, copies, limits)


def _set_up(
    executor: Executor,
    workers: Sequence[Worker],
    request: ExecRequest | Callable[[Worker], ExecRequest],
    copies: dict[str, Copy],
    limits: Limits,
) -> Copying:
    progress = CopyProgress(len(workers), copies=list(copies.values()))
    fan_out = FanOut(executor, workers, request, limits, _Silent(progress))
    return Copying(fan_out, copies, progress)


def _judged(outcome: Outcome, copy: Copy) -> Outcome:
    if outcome.kind in (EndKind.TIMEOUT, EndKind.CANCELLED) or (outcome.kind is EndKind.LOST and not copy.problem):
        return outcome
    if outcome.kind is EndKind.FAILED_TO_START:
        if outcome.code == ExitCode.UNREACHABLE:
            return outcome
        lacking = outcome.code == ExitCode.NOT_FOUND
        reason = Message("the worker has no shell: {why}", why=outcome.reason) if lacking else outcome.reason
        return replace(outcome, exit_code=int(ExitCode.FAILED), reason=reason)
    if outcome.ok and not copy.problem:
        return outcome
    if copy.changed and outcome.kind is EndKind.EXITED:
        return replace(outcome, exit_code=int(ExitCode.OK))
    how = by_signal(outcome.signal) if outcome.signal is not None else Message("exit {code}", code=outcome.exit_code)
    reason = copy.problem or copy.said or how
    return replace(outcome, kind=EndKind.EXITED, exit_code=int(ExitCode.FAILED), signal=None, reason=reason)


class Copy:
    """One worker's copy, in progress or done. `problem`: why it failed, "" if it did not.

    `path`: its target, if known. `said`: the first line of the command's stderr. `changed`: complete, but files were
    written during the copy, such as logs of a running job; the command's exit code is then 1.
    """

    def __init__(self, path: str, tally: Tally) -> None:
        self.path = path
        self.tally = tally
        self.problem = ""
        self.changed = False
        self.stderr = bytearray()

    @property
    def said(self) -> str:
        for line in bytes(self.stderr).splitlines():
            if line.strip():
                return line.decode("utf-8", "backslashreplace").strip()[:300]
        return ""


def _only_changed(stderr: bytes) -> bool:
    """Whether tar's only warnings are that files changed or were removed during the copy."""
    lines = stderr.splitlines()
    return bool(lines) and len(stderr) < _STDERR and all(line.endswith(_CHANGED) for line in lines)


class _Around(ExecutionAround):
    """Common part of both directions: an execution around another one."""

    def __init__(self, inner: Execution, copy: Copy) -> None:
        super().__init__(inner)
        self._copy = copy

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = aiter(self._inner)
        try:
            async for event in events:
                if not isinstance(event, Output):
                    if isinstance(event, Exited):
                        await self._exited(event)
                    yield event
                elif event.stream == "stdout":
                    await self._output(event.data)
                else:
                    self._copy.stderr += event.data[: _STDERR - len(self._copy.stderr)]
        finally:
            await self._over()
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    @abstractmethod
    async def _output(self, data: bytes) -> None:
        """Called with stdout of the script."""

    @abstractmethod
    async def _exited(self, event: Exited) -> None:
        """Called when the script has exited."""

    async def _over(self) -> None:
        """Called after any end, to release resources."""


class _Down(_Around):
    """Copies from a worker to this machine."""

    def __init__(self, inner: Execution, copy: Copy, receiver: Receiver) -> None:
        super().__init__(inner, copy)
        self._receiver = receiver
        self._since_turn = 0
        self._ending: asyncio.Task[bool] | None = None

    async def _output(self, data: bytes) -> None:
        self._receiver.feed(data)
        self._copy.path = self._receiver.path
        self._since_turn += len(data)
        if self._since_turn >= _TURN:
            self._since_turn = 0
            await asyncio.sleep(0)
        if self._receiver.problem and self._ending is None:
            self._copy.problem = self._receiver.problem
            # Further data is useless. The iterator is still read, for its last event.
            self._ending = asyncio.create_task(self._inner.end(_GRACE))

    async def _exited(self, event: Exited) -> None:
        changed = event.exit_code == 1 and _only_changed(bytes(self._copy.stderr))
        if event.exit_code == 0 or changed:
            self._receiver.finish()
            self._copy.path = self._receiver.path
            self._copy.problem = self._receiver.problem
            self._copy.changed = changed and not self._copy.problem

    async def _over(self) -> None:
        self._receiver.close()
        if self._ending is not None:
            await asyncio.wait([self._ending], timeout=_GRACE)


class _Up(_Around):
    """Copies from this machine to a worker; sends nothing before the worker has announced the format."""

    def __init__(self, inner: Execution, copy: Copy, source: LocalSource) -> None:
        super().__init__(inner, copy)
        self._source = source
        self._greeting = bytearray()
        self._feeding: asyncio.Task[None] | None = None

    async def _output(self, data: bytes) -> None:
        if self._feeding is not None:
            return
        self._greeting += data[:MAX_GREETING]
        line, newline, _ = bytes(self._greeting).partition(b"\n")
        if newline or len(self._greeting) > MAX_GREETING:
            self._feeding = asyncio.create_task(self._feed(line.split()[1:]))

    async def _feed(self, form: list[bytes]) -> None:
        try:
            if form == [b"tar"]:
                await self._pass(archive(self._source))
            elif form == [b"cat"] and self._source.kind == "file":
                await self._pass(plain(self._source))
            else:
                self._copy.problem = Message("the worker did not report how it receives data")
        except SourceError as error:
            self._copy.problem = error.message
        except (AtlctlError, OSError) as error:
            _log.debug("the worker's stdin is gone: %r", error)  # its last event has the exit status
        finally:
            with contextlib.suppress(AtlctlError, OSError):
                await self._inner.close_stdin()

    async def _pass(self, pieces: Iterator[bytes]) -> None:
        tally = self._copy.tally
        while piece := await asyncio.to_thread(next, pieces, b""):
            if not await self._inner.write(piece):
                return
            tally.bytes += len(piece)

    async def _exited(self, event: Exited) -> None:
        if event.exit_code != 0 or self._copy.problem:
            return
        if self._feeding is None:
            self._copy.problem = Message("the worker received nothing")
            return
        # The script has seen the end of the stream: only padding may remain to be written.
        self._feeding.cancel()
        self._copy.tally.files, self._copy.tally.bytes = self._source.files, self._source.bytes

    async def _over(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding], timeout=_GRACE)


class CopyTarget(Protocol):
    """The target of one worker's copy. The methods raise OSError or PlaceError.

    `path` is for messages; it is known after one of the methods was called.
    """

    @property
    def path(self) -> str: ...

    def folder(self) -> tuple[int, bool]:
        """A descriptor of the folder for a folder's contents, and whether it was created."""

    def file(self) -> tuple[int, str]:
        """A descriptor of the folder for a file, and the file's name."""


class OneTarget:
    """The target as in `cp`: inside `path` if it is a folder, else `path` itself. `name`: the source's, may
    be empty."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self._name = name

    def file(self) -> tuple[int, str]:
        if os.path.isdir(self.path) or self.path.endswith("/"):
            folder = open_folder(self.path)
            self.path = os.path.join(self.path, self._name)
            return folder, self._name
        return open_folder(os.path.dirname(self.path) or "."), os.path.basename(self.path)

    def folder(self) -> tuple[int, bool]:
        if os.path.isdir(self.path):
            parent = open_folder(self.path)
            if not self._name:
                return parent, False
            name, self.path = self._name, os.path.join(self.path, self._name)
        else:
            whole = self.path.rstrip("/")
            parent, name = open_folder(os.path.dirname(whole) or "."), os.path.basename(whole)
        return _below(parent, name)


class EachTarget:
    """A folder for the worker below `path`; created with mode 0700 if missing."""

    def __init__(self, path: str, worker: str, name: str) -> None:
        self._root = path
        self._own = safe_file_name(worker)
        self._name = name
        self.path = os.path.join(path, self._own)

    def file(self) -> tuple[int, str]:
        folder, _ = self.folder()
        self.path = os.path.join(self.path, self._name)
        return folder, self._name

    def folder(self) -> tuple[int, bool]:
        make_folder(self._root, 0o700)
        return _below(open_folder(self._root), self._own)


def _below(parent: int, name: str) -> tuple[int, bool]:
    """Open the folder `name` in the descriptor `parent`, which is closed; create it if missing."""
    try:
        made = make_folder(name, 0o700, within=parent)
        return open_folder(name, within=parent), made
    finally:
        os.close(parent)


class Receiver:
    """Consumes one worker's stdout. Never raises: `problem` is the error, "" if there is none.

    A copy is complete only if `finish` was called (the command exited with 0) and `problem` is still empty.
    """

    def __init__(self, target: CopyTarget) -> None:
        self.tally = Tally()
        self.problem = ""
        self._target = target
        self._greeting = bytearray()
        self._taker: FileTaker | FolderTaker | None = None
        self._reader: TarReader | None = None
        #: Bytes still expected from `cat`.
        self._owed = 0

    @property
    def path(self) -> str:
        return self._target.path

    def feed(self, data: bytes) -> None:
        if self.problem:
            return
        try:
            self._take(data)
        except (BadStreamError, PlaceError) as error:
            self._fail(error.args[0])
        except OSError as error:
            self._unwritable(error)

    def finish(self) -> None:
        """The command exited with 0: publish the last file if the stream is complete."""
        if self.problem:
            return
        if self._taker is None or self._owed or (self._reader is not None and not self._reader.ended):
            self._fail(Message("the stream was cut before its end"))
            return
        try:
            if self._reader is None:
                self._taker.end()
            self._taker.commit()
        except (BadStreamError, PlaceError) as error:
            self._fail(error.args[0])
        except OSError as error:
            self._unwritable(error)
        failed = self.tally.failed
        if failed.count and not self.problem:
            names = and_more(joined(failed.first), failed.count - len(failed.first))
            self.problem = Message("not copied: {names}", names=names)

    def close(self) -> None:
        """Remove incomplete files. Safe to call twice."""
        if self._taker is not None:
            self._taker.close()

    def _unwritable(self, error: OSError) -> None:
        self._fail(Message("cannot write {path}: {why}", path=self.path, why=error.strerror))

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self.close()

    def _take(self, data: bytes) -> None:
        piece = memoryview(data)
        if self._taker is None:
            self._greeting += data[: MAX_GREETING + 1]
            line, newline, _ = bytes(self._greeting).partition(b"\n")
            if not newline:
                if len(self._greeting) > MAX_GREETING:
                    raise _unclear()
                return
            held = len(self._greeting) - len(data[: MAX_GREETING + 1])
            piece = piece[len(line) + 1 - held :]
            self._greet(line)
        if self._reader is not None:
            self._reader.feed(piece)
        elif piece and self._taker is not None:
            if len(piece) > self._owed:
                raise BadStreamError(Message("the file grew while it was read"))
            self._owed -= len(piece)
            self._taker.data(piece)

    def _greet(self, line: bytes) -> None:
        match line.split():
            case [b"folder", b"tar"]:
                self._taker = FolderTaker(*self._target.folder(), self.tally)
                self._reader = TarReader(self._taker)
            case [b"file", b"tar"]:
                self._taker = self._one_file()
                self._reader = TarReader(self._taker)
            case [b"file", b"cat", size] if size.isdigit() and len(size) < _MAX_SIZE_DIGITS:
                self._owed = int(size)
                self._taker = self._one_file()
                self._taker.begin(TarEntry(b"", "file", self._owed, _PRIVATE, time.time()))
            case _:
                raise _unclear()

    def _one_file(self) -> FileTaker:
        folder, name = self._target.file()
        try:
            return FileTaker(folder, name, self.tally)
        except (OSError, PlaceError):
            os.close(folder)
            raise


# The two scripts for the worker's POSIX shell. They are fixed; paths are passed as arguments.
#
# The first line on stdout announces what was found and the format of the bytes (`folder tar`, `file cat 12`). Exit code
# 3: refused, with the reason on stderr. They need `sh`, `tar` (single files: or `cat` and `wc`); to receive also
# `mkdir`, `mv`, `rm`.

#: Bytes of the longest first line.
MAX_GREETING = 64

# LC_ALL=C: messages are parsed, and names are bytes. GNU tar reads backslashes in its name arguments as escapes: such a
# file is sent by `cat`. GNU tar has an option to send a file with two names twice; other tars send a link, which is
# refused. -h follows the link that the user named; links inside folders are not followed.
_SEND = """\
export LC_ALL=C
say() { echo "$1" >&2; exit 3; }
has_tar() { command -v tar >/dev/null 2>&1; }
if [ -d "$1" ]; then
  has_tar || say 'the worker has no tar, and without it only single files are copied'
  echo 'folder tar'
  if tar --hard-dereference --version >/dev/null 2>&1; then exec tar --hard-dereference -cf - -C "$1" .; fi
  exec tar -cf - -C "$1" .
fi
[ -e "$1" ] || say 'no such file or folder'
[ -f "$1" ] || say 'it is neither a file nor a folder'
[ -r "$1" ] || say 'permission denied'
name=${1##*/}
case $name in *\\\\*) ;; *)
  if has_tar; then
    echo 'file tar'
    exec tar -chf - -C "${1%/*}/" "./$name"
  fi
esac
size=$(wc -c <"$1") || say 'the worker has neither tar nor wc'
echo file cat $size
exec cat "$1"
"""

# The archive holds `data`, then `end`, which shows that the stream was complete. The temporary folder is beside the
# target, on the same disk, so that the last step is a rename; mkdir fails if another user has created that name.
# Workers that share the target's disk do this at the same time: if another worker has created the folder, its content
# is merged (`mv -T` fails then; plain `mv` would move into it). The bytes are received in the background: a shell that
# is forking can lose a trapped signal together with the child (1 in 50 at that moment), and a trap does not run until a
# foreground child has ended. A background child only has stdin if it is passed under another descriptor number.
_TAKE = """\
export LC_ALL=C
say() { echo "$1" >&2; exit 3; }
way() { echo "${1##*/}: $2 is in its place" >&2; bad=1; }
move() {
  if [ -L "$2" ]; then way "$2" 'a link'
  elif [ -d "$1" ] && [ -d "$2" ]; then merge "$1" "$2"
  elif [ -d "$2" ]; then way "$2" 'a folder'
  elif [ -e "$2" ] && [ -d "$1" ]; then way "$2" 'a file'
  elif [ -e "$2" ] && [ ! -f "$2" ]; then way "$2" 'a special file'
  elif [ -d "$1" ]; then mv $whole -f "$1" "$2" 2>/dev/null || again "$1" "$2"
  else mv $whole -f "$1" "$2" || bad=1; fi
}
again() { if [ -d "$2" ]; then merge "$1" "$2"; else mv $whole -f "$1" "$2" || bad=1; fi; }
merge() {
  for item in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ ! -e "$item" ] || move "$item" "$2/${item##*/}"
  done
}
to=$1 name=$2 kind=$3 slash=$4 tag=$5 size=$6 mode=$7 bad= whole= taking= refused=
if [ -d "$to" ]; then
  [ -z "$name" ] || to=${to%/}/$name
elif [ "$kind$slash" = file1 ]; then say 'no such folder'
fi
beside=${to%/*}/
[ ! -d "$to" ] || [ "$kind" = file ] || beside=$to/
[ -d "$beside" ] || say 'the folder to put it in does not exist'
if command -v tar >/dev/null 2>&1; then way_in=tar
elif [ "$kind" = file ]; then way_in=cat
else say 'the worker has no tar, and without it only single files are copied'
fi
tmp=$beside.atlctl-cp.$tag
trap '[ "$refused" ] || rm -rf "$tmp"' EXIT
trap 'kill -9 ${taking:+$!} 2>/dev/null; wait; exit 143' HUP INT TERM
mkdir -m 700 "$tmp" || { refused=1; exit 3; }
mkdir "$tmp/try" && mv -T "$tmp/try" "$tmp/tried" 2>/dev/null && whole=-T
echo "$kind $way_in"
exec 3<&0
taking=1
if [ $way_in = tar ]; then tar -xof - -C "$tmp" <&3 & else cat >"$tmp/data" <&3 & fi
wait $! || exit 3
taking=
if [ $way_in = tar ]; then
  [ -e "$tmp/end" ] || say 'the stream was cut'
else
  [ "$(wc -c <"$tmp/data")" -eq "$size" ] || say 'the stream was cut'
  chmod "$mode" "$tmp/data"
fi
if [ -d "$to" ] && [ "$kind" = folder ] && [ -z "$name" ]; then merge "$tmp/data" "$to"; else move "$tmp/data" "$to"; fi
[ -z "$bad" ] || exit 3
"""


def send_request(path: str) -> ExecRequest:
    """The command that sends `path`, which begins with `/` or `./`."""
    return ExecRequest(_argv(_SEND, path))


def take_request(path: str, name: str, kind: str, slash: bool, tag: str, size: int, mode: int) -> ExecRequest:
    """The command that stores its stdin at `path`, or as `name` inside it if it is a folder.

    `kind`: file or folder. `slash`: a file is stored in an existing folder. `tag`: makes the temporary name unique.
    `size` and `mode` are those of a file.
    """
    words = (path, name, kind, str(int(slash)), tag, str(size), f"{mode & 0o777:o}")
    return ExecRequest(_argv(_TAKE, *words), stdin=True)


def _argv(text: str, *words: str) -> Argv:
    return Argv((*as_argv(Script(text)).words, "atlctl-cp", *words))
