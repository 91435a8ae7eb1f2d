"""Python stacks and flight recorders of rank processes, from torch's worker server or py-spy.

Slow imports are inside functions, because many probes may run on one machine.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time

from atlctl.remote.proc import decoded, link, listening, names, read, read_all
from atlctl.remote.sentences import Sentence
from atlctl.remote.trust import runs, safe

from .ras import reached

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from typing import Any

    Found = dict[str, Any]

#: Concurrent processes; seconds for the answer of each.
AT_ONCE = 4
_SERVER_SECONDS, _SPY_SECONDS = 2.0, 5.0
#: Seconds for torch to notice that it should write its recorders, and to do it: it looks every second.
_WRITE_SECONDS = 6.0
#: Maximum bytes of an answer, of a recorder's dump, and of a compressed one; threads of a stack, frames of a thread,
#: entries of a recorder.
_ANSWER_LIMIT, _DUMP_LIMIT, _PACKED_LIMIT = 4 << 20, 16 << 20, 1 << 19
_THREADS, _FRAMES, _ENTRIES = 32, 64, 256
#: Seconds between two looks at a file that is being written.
_LOOK_SECONDS = 0.2
_TRIES = 3
#: Samples of py-spy in a second, seconds between two stacks of torch's server; the most frequent stacks that are
#: reported, and characters of each.
_SPY_RATE, _BETWEEN, _STACKS, _STACK = 10, 0.5, 40, 8000
#: The name of the server's threads.
_SERVER = b"pt_workerserver"
SOCKET = b"TORCH_WORKER_SERVER_SOCKET"
DUMP_FILES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: Torch makes a named pipe of this name with the rank and `.pipe`, and dumps when a byte comes.
DUMP_PIPE = b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


class Dumps:
    """Queries torch's worker server first, then py-spy, if it is `allowed`. `problem`: why py-spy is not available;
    None if it is."""

    def __init__(self, brought: bytes | None, deadline: float, allowed: bool = True) -> None:
        self._deadline, self._allowed = deadline, allowed
        self._brought: int | None = None
        self._spy: str | None = None
        self.problem: str | None = None
        if brought is not None:
            self.problem = self._put(brought)
        else:
            places = os.environ.get("PATH", os.defpath).split(os.pathsep)
            self._spy = next(
                (path for path in (place + "/py-spy" for place in places) if os.access(path, os.X_OK)), None
            )

    def close(self) -> None:
        if self._brought is not None:
            os.close(self._brought)

    def ask(self, ranks: list[Found], environs: dict[int, dict[bytes, bytes]], *, write: bool = False) -> None:
        """Add `stack` and `recorder`, or the reasons why they are missing, to each of `ranks`. `write`: let torch write
        the recorders that its server does not show."""
        left = list(ranks)

        def work() -> None:
            while True:
                try:
                    rank = left.pop(0)
                except IndexError:
                    return
                rank.update(self._rank(rank, environs))

        threads = [threading.Thread(target=work, daemon=True) for _ in ranks[:AT_ONCE]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._read_files([rank for rank in ranks if rank["recorder"] is None], environs, write)

    def _read_files(self, ranks: list[Found], environs: dict[int, dict[bytes, bytes]], write: bool) -> None:
        """Add `recorder` to each of `ranks`, from the file that torch writes."""
        files = {}
        for rank in ranks:
            environ = environs.get(rank["pid"], {})
            path = next((environ[name] for name in DUMP_FILES if name in environ), b"")
            if path and rank["rank"] is not None:
                files[rank["pid"]] = os.fsdecode(path) + str(rank["rank"])
        if write:
            until = min(time.monotonic() + _WRITE_SECONDS, self._deadline)
            for rank, why in _written(ranks, environs, files, until):
                rank["problems"].append(Sentence("flight recorder: {why}", why=why))
        dumped, _ = read_all(sorted(set(files.values())), _DUMP_LIMIT + 1)
        for rank in ranks:
            data = dumped.get(files.get(rank["pid"], ""))
            if not data:
                continue
            import base64
            import zlib

            packed = base64.b64encode(zlib.compress(data, 1)).decode() if len(data) <= _DUMP_LIMIT else ""
            if 0 < len(packed) <= _PACKED_LIMIT:
                rank["recorder"] = {"source": "file", "zlib": packed}
            else:
                rank["problems"].append(Sentence("flight recorder: its dump is too large"))

    def watch(self, ranks: list[Found], environs: dict[int, dict[bytes, bytes]], seconds: float) -> None:
        """Add to each of `ranks` its `stack` with the stacks of some seconds: from torch's server as `texts`, from
        py-spy as `counted` (stack, number of samples). Each rank gets an equal part of `seconds`, so that few programs
        run at once."""
        each = seconds / -(-len(ranks) // AT_ONCE)

        def work(mine: list[Found]) -> None:
            for rank in mine:
                rank["problems"] = []
                servers = _servers(rank["pid"], environs.get(rank["pid"], {}), rank["problems"])
                if not any(self._texts(rank, server, each) for server in servers) and self._allowed:
                    found, why = self._record(rank, each)
                    rank["stack"] = found
                    if why:
                        rank["problems"].append(why)

        threads = [threading.Thread(target=work, args=(ranks[at::AT_ONCE],), daemon=True) for at in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _texts(self, rank: Found, server: str | tuple[str, int], seconds: float) -> bool:
        """Whether torch's server showed stacks."""
        until, texts = time.monotonic() + seconds, []
        while time.monotonic() < until:
            try:
                text = decoded(_post(server, "dump_traceback"))[: 64 << 10]
            except (OSError, ValueError) as error:
                rank["problems"].append(_unanswered(error))
                break
            if "hread 0x" not in text:
                break
            texts.append(text)
            time.sleep(max(0.0, min(_BETWEEN, until - time.monotonic())))
        if texts:
            rank["stack"] = {"source": "torch", "texts": texts}
        return bool(texts)

    def _record(self, rank: Found, seconds: float) -> tuple[Found | None, str]:
        """The stacks of the main thread, each with its number of samples; or the reason why there are none."""
        program, why = self._program(rank)
        if program is None:
            return None, why
        import tempfile

        pid = rank["pid"]
        words = ["record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw", "--rate",
                 str(_SPY_RATE), "--duration", str(max(1, round(seconds))), "--pid", str(pid), "-o"]  # fmt: skip
        # It prints its progress, too, so the stacks go to another file.
        with tempfile.TemporaryFile() as result:
            words.append(f"/proc/self/fd/{result.fileno()}")
            try:
                code, _, err = self._call(program, words, seconds + _SPY_SECONDS, result.fileno())
            except OSError as error:
                return None, _of_spy(error.strerror)
            data = decoded(result.read(_ANSWER_LIMIT))
        counted: list[tuple[str, int]] = []
        for line in data.splitlines():
            stack, _, count = line.rpartition(" ")
            thread, _, frames = stack.partition(";")
            # Its form: `thread (123): MainThread`, the number in some versions in hexadecimal.
            main = thread.startswith((f"thread ({pid})", f"thread ({pid:#x})")) or thread.endswith("MainThread")
            if main and frames and count.isdigit() and len(count) < 8:
                counted.append((frames[-_STACK:], int(count)))
        if not counted:
            return None, "" if code == 0 else _refused(code, err)
        counted.sort(key=lambda item: item[1], reverse=True)
        return {"source": "py-spy", "counted": counted[:_STACKS]}, ""

    def _rank(self, rank: Found, environs: dict[int, dict[bytes, bytes]]) -> Found:
        pid, recorder = rank["pid"], None
        problems: list[str] = []
        for server in _servers(pid, environs.get(pid, {}), problems):
            try:
                traceback = decoded(_post(server, "dump_traceback"))[: 64 << 10]
                if "hread 0x" not in traceback:
                    continue
            except (OSError, ValueError) as error:
                problems.append(_unanswered(error))
                continue
            try:
                # Neither collects stacks, which could wait for a lock of Python; the first knows nothing of NCCL.
                recorder = _recorder(_post(server, "fr_trace_json")) or _recorder(_post(server, "dump_nccl_trace_json"))
            except (OSError, ValueError) as error:
                problems.append(Sentence("torch's flight recorder: {why}", why=_why(error)))
            return {"stack": {"source": "torch", "text": traceback}, "recorder": recorder, "problems": problems}
        found, why = self._spy_on(rank) if self._allowed else (None, "")
        if why:
            problems.append(why)
        return {"stack": found, "recorder": None, "problems": problems}

    def _spy_on(self, rank: Found) -> tuple[Found | None, str]:
        program, why = self._program(rank)
        if program is None:
            return None, why
        pid = rank["pid"]
        why = _of_spy(Sentence("not in time"))
        for _ in range(_TRIES):
            left = min(_SPY_SECONDS, self._deadline - time.monotonic())
            if left <= 0:
                break
            # Without --nonblocking it would stop the process, and leave it stopped if py-spy were killed.
            try:
                code, out, err = self._call(program, ["dump", "--nonblocking", "--json", "--pid", str(pid)], left)
            except OSError as error:
                return None, _of_spy(error.strerror)
            try:
                if code == 0:
                    return {"source": "py-spy", "threads": _threads(json.loads(out))}, ""
            except (ValueError, KeyError, TypeError, AttributeError):
                why = _of_spy(Sentence("its answer cannot be read"))
                continue
            if code is not None:
                why = _refused(code, err)
        return None, why

    def _program(self, rank: Found) -> tuple[str | None, str]:
        """The py-spy for a rank, or the reason why there is none."""
        program, why = self._spy, ""
        if self._brought is not None:
            program = f"/proc/self/fd/{self._brought}"
        if program is None:
            program, why = _beside(rank["pid"], rank["command"].split(" ")[0])
        rank["spy"] = program is not None
        return program, self.problem or why

    def _put(self, brought: bytes) -> str | None:
        """Open the program. Its folder is deleted before it runs, so nothing can be left behind."""
        import shutil
        import tempfile

        if brought[:20][18:] != read("/proc/self/exe", 20)[18:]:
            return Sentence("the py-spy brought along is for another kind of machine")
        why = Sentence("there is no folder to put py-spy into")
        places = [os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~")]  # noqa: S108
        for place in dict.fromkeys(place for place in places if place and os.path.isdir(place)):
            try:
                folder = tempfile.mkdtemp(prefix=".atlctl-stacks-", dir=place)
                try:
                    path = os.path.join(folder, "py-spy")
                    with open(path, "wb") as file:
                        file.write(brought)
                    os.chmod(path, 0o700)
                    if os.access(path, os.X_OK):
                        self._brought = os.open(path, os.O_RDONLY)
                        return None
                    why = Sentence("py-spy could not be put there: no program may run from its folders")
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError as error:
                why = Sentence("py-spy could not be put there: {why}", why=error.strerror)
        return why

    def _call(self, program: str, words: list[str], seconds: float, *kept: int) -> tuple[int | None, bytes, bytes]:
        """Exit code (None: timeout) and both outputs, in unnamed files: a full pipe would block the program. `kept`:
        further files that stay open in it."""
        import subprocess
        import tempfile

        kept = kept if self._brought is None else (*kept, self._brought)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with subprocess.Popen(
                ["py-spy", *words],
                executable=program,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=kept,
            ) as running:
                try:
                    code: int | None = running.wait(seconds)
                except subprocess.TimeoutExpired:
                    code = None
                finally:
                    running.kill()
            out.seek(0)
            err.seek(0)
            return code, out.read(_ANSWER_LIMIT), err.read(2000)


def _of_spy(why: str | None) -> Sentence:
    return Sentence("py-spy: {why}", why=why)


def _refused(code: int | None, err: bytes) -> Sentence:
    """The reason why py-spy failed."""
    why = "; ".join(decoded(err).split("\n")[:2])[:300] or Sentence("exit {code}", code=code)
    if "ermission" in why or "not permitted" in why:
        scope = decoded(read("/proc/sys/kernel/yama/ptrace_scope", 9)).strip() or "0"
        return Sentence(
            "py-spy may not read it: that takes the capability SYS_PTRACE, or its user and "
            "kernel.yama.ptrace_scope 0 (it is {scope})",
            scope=scope,
        )
    return _of_spy(why)


def _threads(answer: list[Found]) -> list[Found]:
    return [
        {
            "tid": thread["os_thread_id"],
            "name": thread.get("thread_name"),
            "active": thread.get("active"),
            "frames": [[f["name"][:200], f["filename"][:300], f["line"]] for f in thread["frames"][:_FRAMES]],
        }
        for thread in answer[:_THREADS]
    ]


def _beside(pid: int, called: str) -> tuple[str | None, str]:
    """A py-spy next to a process's interpreter, by the path of its call (perhaps in a virtual environment) or its real
    path; else the reason why there is none. The py-spy of another user's process is not run."""
    why = Sentence("there is no py-spy in the worker")
    for python in (called, link(f"/proc/{pid}/exe")):
        path = os.path.join(os.path.dirname(python), "py-spy")
        if not python.startswith("/") or not os.path.exists(path):
            continue
        try:
            if runs(f"/proc/{pid}", python) and safe(path):
                return path, ""
        except OSError:
            pass
        why = Sentence("{path} is not run: other users can change it", path=path)
    return None, why


def _servers(pid: int, environ: dict[bytes, bytes], problems: list[str]) -> list[str | tuple[str, int]]:
    """Addresses of torch's worker server in this process: by its environment, else all its TCP sockets that can be
    one; the server has no password. `problems` gets the reasons why an address is not used."""
    path = environ.get(SOCKET)
    if path:
        try:
            return [_server_of(pid, os.fsdecode(path))]
        except OSError as error:
            problems.append(_unanswered(error))
    if not any(read(f"/proc/{pid}/task/{tid}/comm", 20).strip() == _SERVER for tid in names(f"/proc/{pid}/task")):
        return []
    # It listens on all addresses, and so does the store of the job, which is left alone.
    store = environ.get(b"MASTER_PORT", b"")
    sockets = [(reached(host), host, port) for host, port in listening(pid) if b"%d" % port != store]
    return [(near, port) for near, host, port in sockets if near != host]


def _server_of(pid: int, stated: str) -> str:
    """The socket on which this process listens: another rank may have taken the name in its environment."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        match = re.match(r"socket:\[(\d+)\]$", link(f"/proc/{pid}/fd/{name}"))
        if match:
            inodes.add(match.group(1))
    for line in decoded(read(f"/proc/{pid}/net/unix", 4 << 20)).splitlines():
        words = line.split(None, 7)
        if len(words) == 8 and words[6] in inodes and words[7].startswith(stated):
            return words[7] if words[7].startswith("/") else os.path.join(f"/proc/{pid}/cwd", words[7])
    raise OSError(Sentence("the process does not listen on {path}", path=stated))


def _post(server: str | tuple[str, int], handler: str) -> bytes:
    """The answer of a handler of torch's worker server. Raises OSError and ValueError."""
    import socket

    deadline = time.monotonic() + _SERVER_SECONDS
    family = socket.AF_UNIX if isinstance(server, str) else socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(_SERVER_SECONDS)
        connection.connect(server)
        connection.sendall(b"POST /handler/%s HTTP/1.0\r\nContent-Length: 0\r\n\r\n" % handler.encode())
        data = b""
        while len(data) < _ANSWER_LIMIT:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")):
        answer = decoded(head.split(b"\r\n")[0][:100])
        raise ValueError(Sentence("it answered {answer}", answer=answer))
    return body


def _unanswered(error: Exception) -> Sentence:
    return Sentence("torch's worker server: {why}", why=_why(error))


def _why(error: Exception) -> str:
    """The raised sentence, or the system's error message."""
    return next((word for word in error.args if isinstance(word, Sentence)), str(error))


def _written(
    ranks: list[Found], environs: dict[int, dict[bytes, bytes]], files: dict[int, str], until: float
) -> list[tuple[Found, str]]:
    """Let torch write its recorders to `files`, by pid; returns the ranks that have not, with the reason."""
    asked: dict[int, tuple[int, ...] | None] = {}
    failed: dict[int, str] = {}

    def work() -> None:
        for rank in ranks:
            pid, pipe = rank["pid"], environs.get(rank["pid"], {}).get(DUMP_PIPE)
            if pipe is None or pid not in files:
                failed[pid] = Sentence(
                    "{name} is not set", name=(DUMP_PIPE if pipe is None else DUMP_FILES[0]).decode()
                )
                continue
            try:
                before = _version(files[pid])
                _poke(pid, os.path.join(f"/proc/{pid}/cwd", f"{os.fsdecode(pipe)}{rank['rank']}.pipe"))
                asked[pid] = before
            except OSError as error:
                failed[pid] = _why(error)
        last: dict[int, tuple[int, ...] | None] = {}
        while asked and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            for pid, before in list(asked.items()):
                found = _version(files[pid])
                if found == last.get(pid, before) != before:  # it is not growing any more
                    del asked[pid]
                last[pid] = found

    # A thread, since the files may be on storage that hangs.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()) + _LOOK_SECONDS)
    late = Sentence("torch wrote no dump within {seconds:g} s", seconds=_WRITE_SECONDS)
    return [(rank, failed.get(rank["pid"], late)) for rank in ranks if rank["pid"] in {*failed, *asked}]


def _version(path: str) -> tuple[int, ...] | None:
    """Changes when the file is written; None as long as there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _poke(pid: int, path: str) -> None:
    """Write a byte to a pipe that this process holds. Raises OSError."""
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        held = (f"/proc/{pid}/fd/{name}" for name in names(f"/proc/{pid}/fd"))
        if not any(os.path.samestat(os.stat(fd), os.fstat(pipe)) for fd in held if os.path.exists(fd)):
            raise OSError(Sentence("the process does not read {path}", path=path))
        os.write(pipe, b"1")
    finally:
        os.close(pipe)


def _recorder(answer: bytes) -> Found | None:
    """A dump without old entries; None if nothing is recorded."""
    dump = json.loads(answer.decode("utf-8", "replace"))
    if not isinstance(dump, dict) or not dump.get("entries"):
        return None
    dump["entries"] = dump["entries"][-_ENTRIES:]
    return {"source": "torch", "json": dump}
