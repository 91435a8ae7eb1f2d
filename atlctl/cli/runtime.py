"""The runtime of every command: context, event loop, signals, exit.

    guard(argv, body)            maps every failure to `error:`, `hint:` (or the JSON envelope) and an exit code
      start(...)                 called by the parser once the shared options are known
      run_async(factory)         the one `asyncio.run` of a command

SIGINT, SIGTERM and SIGHUP cancel the command, which then has `CLEANUP` seconds; a second SIGINT or SIGTERM leaves at
once. A signal that was ignored when atlctl started (`nohup`, a background job of a script) stays ignored.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO, TypeVar, cast

from atlctl.i18n import Message, translated
from atlctl.jobs.errors import AtlctlError, Declined, ExitCode
from atlctl.jobs.statedir import write_all

if TYPE_CHECKING:
    import asyncio

    from atlctl.backends.hosts.ssh import SshBackend
    from atlctl.render.status import StatusLine
    from atlctl.render.streams import Streams
    from atlctl.render.writer import Writer

Color = Literal["always", "never", "auto"]
T = TypeVar("T")
Peek = Callable[[], "tuple[str, str | None]"]

#: Seconds a cancelled command has to clean up before the process leaves without it.
CLEANUP = 15.0
#: Seconds to hand what is buffered to the reader once the command was interrupted.
_LAST_WRITE = 2.0
#: Seconds to wait for a slow reader of the output, unless interrupted: longer than any run.
_PATIENCE = 1e8
#: Descriptors that each command needs beside the standard streams.
_DESCRIPTORS = 12
#: A thousand executions create millions of objects, almost none in reference cycles: Python's default thresholds (700,
#: 10, 10) cost a tenth of the CPU time, with TLS a fifth.
_COLLECTIONS = (50_000, 20, 100)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = b"\x1b[?25h\x1b[0m"


class Interrupted(BaseException):
    """A signal, or a reader that went away, ended the command. Leaves silently with `exit_code`."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass
class Context:
    """The command that runs and the options every command shares. One per process, see `context`."""

    command: str = ""
    #: The requested backend, or None.
    backend: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    selector: str | None = None
    hostfile: str | None = None
    #: The container that a command is about, where it names one.
    container: str | None = None
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    color: Color = "auto"
    #: The value of `-o`; None if the command has no such option.
    output: str | None = None
    #: The reader of stdout went away.
    reader_gone: bool = False
    #: The exit code that the first signal, or the reader that went away, has decided; None while nothing did.
    leaving: int | None = None
    #: Called when the first signal cancels the command: says what is being ended.
    on_first: Callable[[], None] | None = None
    #: Called when a second signal makes atlctl leave at once: says what may still run. Must not block.
    on_second: Callable[[], None] | None = None
    #: Closes resources of the command before its event loop ends.
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    #: The hosts backend for workers that `atlctl run` wraps in a job of another backend, made when it is first needed.
    wrappers: SshBackend | None = None
    #: How many workers were selected, None before the selection.
    chosen: int | None = None

    def __post_init__(self) -> None:
        self._stop: Callable[[int], None] | None = None
        self._asking = False
        #: The status line, or None.
        self.status: StatusLine | None = None

    @cached_property
    def streams(self) -> Streams:
        """Terminals, colours and width of this process."""
        from atlctl.render.streams import Streams

        return Streams.detect(self.color, os.environ)

    @cached_property
    def writer(self) -> Writer:
        """The one owner of stdout and stderr. A reader that goes away or a full disk cancels the command."""
        from atlctl.render.writer import Writer

        return Writer(stdout_fd=1, stderr_fd=2, on_broken=self._on_broken)

    @property
    def has_writer(self) -> bool:
        return "writer" in self.__dict__

    def _on_broken(self) -> None:
        """Called from the writer's thread."""
        self.reader_gone = self.writer.broken
        stop = self._stop
        if stop is not None:
            stop(ExitCode.READER_GONE if self.reader_gone else ExitCode.FAILED)


_current = Context()


def context() -> Context:
    """The context of the command that runs."""
    return _current


def start(
    command: str,
    *,
    output: str | None = None,
    backend: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    selector: str | None = None,
    hostfile: str | None = None,
    quiet: bool = False,
    verbose: int = 0,
    debug: bool = False,
    color: str = "auto",
) -> None:
    """A command line was understood: fill the context, set up logging."""
    _current.command = command
    _current.output = output
    _current.backend = backend
    _current.namespace = namespace
    _current.context = context
    _current.kubeconfig = kubeconfig
    _current.selector = selector
    _current.hostfile = hostfile
    _current.quiet = quiet
    _current.verbose = verbose
    _current.debug = debug
    _current.color = cast(Color, color)
    from atlctl.cli import diagnostics

    diagnostics.set_up(verbose, debug)


def run_async(factory: Callable[[], Coroutine[Any, Any, T]], *, cleanup: float = CLEANUP) -> T:
    """Run `factory()` in an event loop and return its result.

    The first signal cancels it. Whatever it returns or raises after that, Interrupted (130, 143, 129; 141 where the
    reader went away) follows, so that no half result passes for a whole one. After `cleanup` seconds, or at the
    second SIGINT or SIGTERM, the process ends without it.
    """
    _check_descriptors()
    gc.set_threshold(*_COLLECTIONS)
    import asyncio

    state = _Command(cleanup)
    with _terminal_kept(), _handlers(state.on_signal), status_line(), asyncio.Runner() as runner:
        return runner.run(state.supervise(factory))


@contextlib.contextmanager
def status_line() -> Iterator[None]:
    """With the status line, where stderr is a terminal of a person who wants to know; `say.doing` fills it.

    `run_async` has it; needed for what takes long without an event loop.
    """
    current = _current
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "")
    if current.status is not None or current.quiet or dumb or not current.streams.stderr_tty:
        yield
        return
    from atlctl.render.status import StatusLine

    current.status = StatusLine(current.streams.stderr_color, os.environ)
    current.writer.show(current.status.line)
    stops = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
    if stops:
        signal.signal(signal.SIGTSTP, _on_stop)
    try:
        yield
    finally:
        if stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        current.writer.show(None)
        current.status = None


def _on_stop(number: int, _frame: object) -> None:
    """Ctrl-Z: the shell's prompt begins on a clean line."""
    with undisturbed():
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, _on_stop)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Without the status line while something else writes to the terminal, or draws all of it."""
    with _current.writer.hidden() if _current.status is not None else contextlib.nullcontext():
        yield


def _check_descriptors() -> None:
    """Raise AtlctlError unless an event loop, the writer and a module's file can be opened. Otherwise Python would
    leave half-made event loops behind."""
    opened: list[int] = []
    try:
        while len(opened) < _DESCRIPTORS:
            opened.append(os.dup(2))
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Around a blocking read of an answer: the first signal ends the read at once, by raising Interrupted in it."""
    with undisturbed():
        _current._asking = True
        try:
            yield
        finally:
            _current._asking = False


class _Command:
    """One command in its loop: who asked it to stop, and with which code it leaves."""

    def __init__(self, cleanup: float) -> None:
        self._cleanup = cleanup
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._code: int | None = None
        self._signalled = False

    async def supervise(self, factory: Callable[[], Coroutine[Any, Any, T]]) -> T:
        import asyncio

        loop = self._loop = asyncio.get_running_loop()
        watched = [number for number in _SIGNALS if signal.getsignal(number) == self.on_signal]
        for number in watched:
            # asyncio's handler is replaced at once: it only serves to set the wakeup descriptor, which ends the
            # wait of an idle loop. Ours also runs where a coroutine blocks the loop, so a second signal always works.
            loop.add_signal_handler(number, int)
            signal.signal(number, self.on_signal)
        task: asyncio.Task[T] = loop.create_task(factory())
        self._task = task
        _current._stop = self._stop_from_thread
        try:
            if _current.reader_gone:
                self._stop(ExitCode.READER_GONE)
            done = await asyncio.wait([task])
            finished = done[0].pop()
            if self._code is not None:
                _note_cleanup_failure(finished)
                raise Interrupted(self._code)
            return finished.result()
        finally:
            _current._stop = None
            while _current.closers:
                await _current.closers.pop()()

    def on_signal(self, number: int, _frame: object) -> None:
        code = 128 + number
        if self._signalled and number != signal.SIGHUP:
            _leave_now(code)
        self._signalled = True
        if _current._asking or self._loop is None or self._loop.is_closed():
            raise Interrupted(code)
        self._loop.call_soon_threadsafe(self._stop, code)

    def _stop_from_thread(self, code: int) -> None:
        loop = self._loop
        if loop is not None:
            # A loop that was closed meanwhile has nothing left to stop.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._stop, code)

    def _stop(self, code: int) -> None:
        task = self._task
        if task is None or task.done() or self._code is not None:
            return
        self._code = _current.leaving = code
        if _current.on_first is not None:
            _current.on_first()
        task.cancel()
        assert self._loop is not None
        self._loop.call_later(self._cleanup, _leave_now, code)


def _note_cleanup_failure(task: asyncio.Task[Any]) -> None:
    """A cancelled command that failed on its way out: said in the log, the exit code stays the signal's."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        import logging

        logging.getLogger("atlctl").warning("cleanup after the interrupt failed: %r", error)


def _leave_now(code: int) -> NoReturn:
    """End the process without cleanup: say what may still run, put the terminal back."""
    try:
        if _current.status is not None:
            _current.writer.show(None)
        if _current.on_second is not None:
            _current.on_second()
    finally:
        _restore_terminal(force=True)
        os._exit(code)


@contextlib.contextmanager
def _handlers(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle the three signals while the block runs, except those that are ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    mine = [number for number, old in before.items() if old is not signal.SIG_IGN and old is not None]
    for number in mine:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


_saved_terminal: list[Any] | None = None


@contextlib.contextmanager
def _terminal_kept() -> Iterator[None]:
    """Remember the mode of the terminal on stdin and put it back, whatever happens in the block."""
    global _saved_terminal
    import termios

    with contextlib.suppress(termios.error, OSError, ValueError):
        _saved_terminal = termios.tcgetattr(0)
    try:
        yield
    finally:
        _restore_terminal()
        _saved_terminal = None


def _restore_terminal(force: bool = False) -> None:
    """Set the remembered terminal mode again; with `force` also show the cursor and end colours."""
    import termios

    with contextlib.suppress(termios.error, OSError, ValueError):
        # In the background this would stop the process (SIGTTOU), and the terminal belongs to another process then.
        saved = _saved_terminal
        if saved is not None and os.tcgetpgrp(0) == os.getpgrp() and termios.tcgetattr(0) != saved:
            termios.tcsetattr(0, termios.TCSANOW, saved)
    if force:
        with contextlib.suppress(OSError):
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)


def guard(argv: Sequence[str], body: Callable[[], int], *, peek: Peek = lambda: ("", None)) -> int:
    """Run `body` and return the exit code of the process; every failure has been reported by then.

    `peek` extracts the command's name and its `-o` from a command line that could not be parsed.
    """
    global _current
    _current = Context(debug="--debug" in argv, color=_color_in(argv))
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what `__main__` took off for the imports
    stdout = sys.stdout
    # The parser's library prints help. Only here can a failure to do so be distinguished from one of a command's files.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = _told(body, peek)
    code = _told(lambda: _close_writer(_print(stdout, printed.getvalue(), code)), peek)
    try:
        stdout.flush()
    except OSError:
        _forget_stdout()
    if code == ExitCode.READER_GONE:
        _forget_stdout()
    return int(code)


def _color_in(argv: Sequence[str]) -> Color:
    """The value of `--color` in a command line that is not parsed yet, for help pages and for errors of the parser."""
    for word, following in itertools.pairwise([*argv, ""]):
        name, _, value = word.partition("=")
        value = value or following
        if name == "--color" and value in ("always", "never"):
            return cast(Color, value)
    return "auto"


def _print(stdout: TextIO, text: str, code: int) -> int:
    try:
        if text:
            stdout.write(text)
            stdout.flush()
    except OSError as error:
        raise unwritten(error) from error
    return code


def _told(body: Callable[[], int], peek: Peek) -> int:
    try:
        return body()
    except AtlctlError as error:
        return _report(error, peek)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Interrupted as interrupted:
        return interrupted.exit_code
    except BrokenPipeError:
        return ExitCode.READER_GONE
    except Exception as error:  # noqa: BLE001 - the last line of defence: nothing may end in a bare traceback
        known = _surroundings(error) if isinstance(error, OSError) else None
        if known is not None:
            return _report(known, peek)
        from atlctl.cli.diagnostics import harmless

        if _current.debug:
            import traceback

            _to_stderr(harmless(traceback.format_exc().rstrip("\n")))
        text = " ".join(harmless(str(error)).split())
        failure = AtlctlError(
            Message("internal error: {what}", what=type(error).__name__ + (f": {text}" if text else "")),
            None if _current.debug else Message("this is a fault of atlctl; run it again with --debug to see where"),
        )
        return _report(failure, peek)


def _surroundings(error: OSError) -> AtlctlError | None:
    """The error of the process's environment (disk, descriptors, folder), if `error` is one."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return AtlctlError(
            Message("{what}: the limit is {limit}", what=error.strerror, limit=limit),
            Message("raise it: ulimit -n 1024"),
        )
    if error.errno == errno.ENOENT:
        try:
            os.getcwd()
        except FileNotFoundError:
            return AtlctlError(Message("the working folder no longer exists"), Message("cd to one that does"))
    return None


def unwritten(error: OSError) -> Exception:
    """What to raise where stdout could not be written."""
    if isinstance(error, BrokenPipeError):
        return error
    return AtlctlError(
        Message("the output could not be written: {why}", why=error.strerror), Message("the output is not complete")
    )


def _report(error: AtlctlError, peek: Peek) -> int:
    """`error:` and `hint:` on stderr, and the JSON envelope on stdout if JSON was asked for; the exit code."""
    from atlctl.render.streams import error_text

    if _current.has_writer and not _current.reader_gone:
        _current.writer.flush(_PATIENCE)
    if isinstance(error, Declined):
        from atlctl.render.sanitize import clean

        _to_stderr(clean(translated(Message("cancelled: {what}", what=error.message))))
    else:
        _to_stderr(error_text(error.message, error.hint, _current.streams.stderr_color, _current.streams.stderr_width))
    command, output = (_current.command, _current.output) if _current.command else peek()
    if output == "json":
        from atlctl.render.jsonout import dumps, envelope, error_data

        document = dumps(envelope(command, "error", None, [error_data(error)]))
        try:
            write_all(1, f"{document}\n".encode())
        except BrokenPipeError:
            return ExitCode.READER_GONE
        except OSError:
            pass  # a full disk behind stdout: the error was already printed on stderr
    return error.exit_code


def _close_writer(code: int) -> int:
    if not _current.has_writer:
        return code
    interrupted = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED, 128 + signal.SIGHUP, ExitCode.READER_GONE)
    writer = _current.writer
    writer.close(_LAST_WRITE if interrupted else _PATIENCE)
    if writer.error is not None:
        raise unwritten(writer.error)
    return ExitCode.READER_GONE if writer.broken else code


def _to_stderr(text: str) -> None:
    # stderr may be closed; the exit code is still right.
    with contextlib.suppress(OSError):
        write_all(2, f"{text}\n".encode(errors="backslashreplace"))


def _forget_stdout() -> None:
    """Keep the interpreter from failing on stdout once more when it exits."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
