"""Fan-out engine: runs a request on many workers with limits, deadlines and cancellation, one outcome per worker.

Phases of a worker: waiting -> connecting -> running -> finishing -> done. `parallel` limits connecting, `batch` all
phases between waiting and done. Output is not queued here: a sink that waits stops the engine and thereby the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from atlctl.backends.base import (
    NO_STATUS,
    Event,
    ExecRequest,
    Execution,
    Executor,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
)
from atlctl.fanout.outcome import EndKind, Outcome, OutcomeSink
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode, NotAllowed, NothingMatched, TimedOut, Unreachable, UsageError
from atlctl.jobs.model import Worker

#: Seconds beyond the grace period for the cleanup of a cancelled run: for confirmed ends, and for the sink.
_ENDING, _TELLING = 2.0, 1.0
#: Seconds from the return of an execution's `end` to its terminal event.
_SETTLE = 0.5
#: Minimum seconds to find and reach the workers if only the command has a time limit.
REACHING = 5.0
#: The reason if nothing is known of a command that was not refused.
UNANSWERED = Message("the command may have been sent, but no answer came")

_log = logging.getLogger(__name__)
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run; times in seconds, None for no limit.

    `parallel`: workers between the start of connecting and `Started`. `batch`: workers started and not done. `timeout`
    counts from `Started`, `connect_timeout` from the attempt. `grace`: from SIGTERM to SIGKILL.
    """

    parallel: int = 64
    batch: int | None = None
    timeout: float | None = None
    connect_timeout: float | None = None
    grace: float = 1.0

    def __post_init__(self) -> None:
        if self.parallel < 1 or (self.batch is not None and self.batch < 1):
            raise UsageError(
                Message("the number of workers at once is less than 1"),
                Message("--parallel and --batch must be at least 1"),
            )

    @property
    def reaching(self) -> float | None:
        """Seconds from the attempt to `Started`: `connect_timeout`, else the command's `timeout`, but at least
        `REACHING`, because that limit is not meant for connecting."""
        if self.connect_timeout is not None or self.timeout is None:
            return self.connect_timeout
        return max(self.timeout, REACHING)


class RunInterrupted(asyncio.CancelledError):
    """The run was cancelled; `outcomes` has one for each worker, in worker order.

    It is a CancelledError, so that a caller that does not know it stays cancelled. Catch it in the task that awaits the
    run: Python 3.11 passes the object only to the first awaiter of a cancelled task, and `asyncio.timeout` there does
    not turn it into TimeoutError (use `Limits.timeout` for a deadline).
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__()
        self.outcomes = list(outcomes)


class _SinkFailed(Exception):
    """Distinguishes a failure of the sink from a worker's."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Run:
    """The run of one worker. `verdict` is set if the engine ends it, before its end."""

    __slots__ = (
        "connecting", "cut", "ender", "execution", "following", "guarded", "in_sink", "outcome", "started", "task",
        "timer", "told", "verdict", "worker",
    )  # fmt: skip

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.task: asyncio.Task[None] | None = None
        self.execution: Execution | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ender: asyncio.Task[bool] | None = None
        self.verdict: tuple[EndKind, str] | None = None
        self.outcome: Outcome | None = None
        self.guarded: bool | None = None
        self.connecting = self.started = self.following = self.in_sink = self.cut = self.told = False


async def run(
    executor: Executor,
    workers: Sequence[Worker],
    request: ExecRequest | Callable[[Worker], ExecRequest],
    limits: Limits,
    sink: OutcomeSink,
    stdin: StdinFeed | None = None,
) -> list[Outcome]:
    """Shortcut for `FanOut(...).run()`."""
    return await FanOut(executor, workers, request, limits, sink, stdin).run()


class FanOut:
    """One request on `workers`; `request` may be a function of the worker. Call `run` once.

    `stdin` is sent to all workers at once, so `batch` must not be smaller than their number.
    """

    def __init__(
        self,
        executor: Executor,
        workers: Sequence[Worker],
        request: ExecRequest | Callable[[Worker], ExecRequest],
        limits: Limits,
        sink: OutcomeSink,
        stdin: StdinFeed | None = None,
    ) -> None:
        if stdin is not None and limits.batch is not None and limits.batch < len(workers):
            text = Message("standard input is sent to all {count} workers at once; --batch {batch} would block it")
            raise UsageError(text.filled(count=len(workers), batch=limits.batch), Message("leave out --batch"))
        self._executor = executor
        self._request = request
        self._limits = limits
        self._sink = sink
        self._stdin = stdin
        self._runs = [_Run(worker) for worker in workers]
        self._waiting = deque(self._runs)
        self._active: dict[_Run, None] = {}
        self._connecting = 0
        self._stopping = False
        self._cleaning = False
        self._error: Exception | None = None
        self._over: asyncio.Future[None] | None = None
        self._feeding: asyncio.Task[None] | None = None

    def running(self) -> list[Worker]:
        """Workers that have started and have no outcome."""
        return [run.worker for run in self._active if run.outcome is None]

    def unfinished(self) -> list[Worker]:
        """Workers without an outcome, started or not."""
        return [run.worker for run in self._runs if run.outcome is None]

    def unreached(self) -> list[Worker]:
        """Workers without an outcome whose command has not started."""
        return [run.worker for run in self._runs if run.outcome is None and not run.started]

    async def run(self) -> list[Outcome]:
        """One outcome per worker, in their order. Failures of workers are not raised.

        When cancelled, it ends all running commands at once, gives an outcome to workers that have not started, reports
        all of them to the sink and raises RunInterrupted within `grace` + 3 seconds. A second cancellation leaves
        immediately. An exception of the sink, or while reading stdin, ends the run in the same way and is raised
        afterwards.
        """
        self._over = asyncio.get_running_loop().create_future()
        try:
            self._advance()
            try:
                await self._over
            finally:
                if self._feeding is not None:
                    self._feeding.cancel()
            if self._error is not None:
                await self._stop()
                raise self._error
        except asyncio.CancelledError:
            if not self._cleaning:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._stop()
            # A second cancellation: do not wait any longer.
            self._give_up()
            raise RunInterrupted(self._outcomes()) from None
        return self._outcomes()

    def _outcomes(self) -> list[Outcome]:
        return [run.outcome for run in self._runs if run.outcome is not None]

    def _advance(self) -> None:
        """Start what the limits allow; detect the end of the run and the time to feed stdin."""
        limits = self._limits
        while (
            self._waiting
            and not self._stopping
            and self._connecting < limits.parallel
            and (limits.batch is None or len(self._active) < limits.batch)
        ):
            run = self._waiting.popleft()
            self._active[run] = None
            run.connecting = True
            self._connecting += 1
            run.task = asyncio.create_task(self._drive(run))
        if not self._active:
            self._wake()
        elif (
            self._stdin is not None
            and self._feeding is None
            and not (self._waiting or self._connecting or self._stopping)
        ):
            self._feeding = asyncio.create_task(self._feed(self._stdin))

    def _wake(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _feed(self, stdin: StdinFeed) -> None:
        try:
            await stdin.run()
        except Exception as error:  # noqa: BLE001 - raised by `run` after the cleanup
            self._abort(error)

    # One worker

    async def _drive(self, run: _Run) -> None:
        try:
            outcome = await self._execute(run)
            if run.outcome is None:
                run.outcome = outcome
            await self._tell(run)
        except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not pass as a finished worker
            self._abort(error)
        finally:
            self._active.pop(run, None)
            self._release(run)
            self._advance()

    async def _execute(self, run: _Run) -> Outcome:
        event: Event | None = None
        try:
            if self._stopping:
                return not_begun(run.worker)
            run.following = True
            try:
                event = await self._follow(run)
            except asyncio.CancelledError:
                if not run.cut or run.task is None:
                    raise
                run.task.uncancel()
            except _SinkFailed as failed:
                self._abort(failed.error)
            except Exception as error:  # noqa: BLE001 - one worker's failure is its outcome, never its siblings' end
                event = event_of(error, run.started)
            self._ended(run)
            if run.ender is None:
                return outcome_of(run.worker, event, run.guarded)
            proven = await run.ender
            kind, reason = run.verdict or (EndKind.CANCELLED, "")
            if kind is EndKind.TIMEOUT and not run.started:
                stage = event.reason if isinstance(event, FailedToStart) else UNANSWERED
                reason = Message("{what}: {why}", what=reason, why=stage)
            may_still_run = not (proven or isinstance(event, FailedToStart))
            return Outcome(
                run.worker, kind, None, None, reason, run.guarded, may_still_run, truncated=run.cut and run.started
            )
        finally:
            self._ended(run)
            if run.execution is not None:
                await self._close(run.execution)

    async def _follow(self, run: _Run) -> Event | None:
        """Pass output on until the terminal event; returns None if there is none."""
        worker, limits, output = run.worker, self._limits, self._sink.output
        if limits.reaching is not None:
            self._set_timer(run, limits.reaching, Message("not started within {seconds:g} s"))
        request = self._request
        if not isinstance(request, ExecRequest):
            request = request(worker)
        run.execution = execution = self._executor.run(worker, request)
        if self._stdin is not None:
            self._stdin.add(execution)
        events = aiter(execution)
        try:
            async for event in events:
                if isinstance(event, Output):
                    run.in_sink = True
                    try:
                        await output(worker, event.stream, event.data)
                    except Exception as error:
                        raise _SinkFailed(error) from error
                    run.in_sink = False
                elif isinstance(event, Started):
                    await self._started(run, event)
                else:
                    return event
            return None
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _started(self, run: _Run, event: Started) -> None:
        run.started, run.guarded = True, event.guarded
        if run.timer is not None:
            run.timer.cancel()
        if self._limits.timeout is not None:
            self._set_timer(run, self._limits.timeout, Message("not done within {seconds:g} s"))
        self._release(run)
        run.in_sink = True
        try:
            await self._sink.started(run.worker)
        except Exception as error:
            raise _SinkFailed(error) from error
        run.in_sink = False

    def _ended(self, run: _Run) -> None:
        """The run has no more events: release its share of the limits."""
        run.following = False
        if run.timer is not None:
            run.timer.cancel()
        if self._stdin is not None and run.execution is not None:
            self._stdin.drop(run.execution)
        self._release(run)

    def _release(self, run: _Run) -> None:
        if run.connecting:
            run.connecting = False
            self._connecting -= 1
            self._advance()

    async def _close(self, execution: Execution) -> None:
        try:
            await execution.aclose()
        except Exception:  # noqa: BLE001 - the outcome is known by now, and descriptors are the backend's business
            _log.debug("an execution could not be closed", exc_info=True)

    async def _tell(self, run: _Run) -> None:
        if run.told or run.outcome is None:
            return
        run.told = True
        try:
            await self._sink.finished(run.outcome)
        except Exception as error:  # noqa: BLE001 - raised by `run` after the cleanup
            self._abort(error)

    # EndKind early

    def _set_timer(self, run: _Run, seconds: float, text: Message) -> None:
        if run.ender is None:
            verdict = EndKind.TIMEOUT, text.filled(seconds=seconds)
            run.timer = asyncio.get_running_loop().call_later(seconds, self._begin_end, run, verdict)

    def _begin_end(self, run: _Run, verdict: tuple[EndKind, str]) -> None:
        """Start ending a run that still has events; its outcome will be `verdict`."""
        if run.following and run.ender is None and run.execution is not None:
            if run.timer is not None:
                run.timer.cancel()
            run.verdict = verdict
            run.ender = asyncio.create_task(self._end(run.execution))
            run.ender.add_done_callback(lambda _: self._settle(run))

    async def _end(self, execution: Execution) -> bool:
        try:
            return await execution.end(self._limits.grace)
        except Exception:  # noqa: BLE001 - then nothing is proven, which is what False says
            _log.debug("a command could not be ended", exc_info=True)
            return False

    def _settle(self, run: _Run) -> None:
        """`end` has returned: expect the terminal event soon."""
        if run.following:
            run.timer = asyncio.get_running_loop().call_later(_SETTLE, self._cut, run)

    def _cut(self, run: _Run) -> None:
        """Stop listening to a silent execution. One that waits for the sink is slow, not silent, and gets more time
        unless the whole run ends."""
        if run.in_sink and not self._stopping:
            self._settle(run)
        elif run.following and run.task is not None:
            run.cut = True
            run.task.cancel()

    def _abort(self, error: Exception) -> None:
        """End the whole run because of `error`, which `run` raises at the end. The first error counts."""
        if self._error is None and not self._cleaning:
            self._error = error
        else:
            _log.debug("a further error while a run ends: %r", error)
        self._halt()
        self._wake()

    def _halt(self) -> None:
        self._stopping = True
        for run in self._active:
            self._begin_end(run, (EndKind.CANCELLED, "interrupted"))

    async def _stop(self) -> None:
        """End all commands, within `grace` + `_ENDING` + `_TELLING` seconds."""
        self._cleaning = True
        self._halt()
        tasks = [run.task for run in self._active if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.grace + _ENDING)
        self._give_up()
        late = [task for task in tasks if not task.done()]
        telling = asyncio.create_task(self._tell_all())
        await asyncio.wait([telling, *late], timeout=_TELLING)
        telling.cancel()

    async def _tell_all(self) -> None:
        for run in self._runs:
            await self._tell(run)

    def _give_up(self) -> None:
        """Stop listening to the remaining commands, and give each worker an outcome."""
        self._waiting.clear()
        for run in self._runs:
            for task in (run.task, run.ender):
                if task is not None and not task.done():
                    task.cancel()
            if run.outcome is None and run.execution is None:
                run.outcome = not_begun(run.worker)
            elif run.outcome is None:
                run.outcome = Outcome(
                    run.worker, EndKind.CANCELLED, reason="interrupted", guarded=run.guarded, may_still_run=True
                )


def not_begun(worker: Worker) -> Outcome:
    """The outcome of a worker that had not started when the run was cancelled."""
    return Outcome(worker, EndKind.CANCELLED, reason=Message("not started"))


def outcome_of(worker: Worker, event: Event | None, guarded: bool | None) -> Outcome:
    """The outcome of a command that ended by itself; None: no terminal event. Success requires an exit code."""
    match event:
        case Exited(exit_code, signal, truncated) if exit_code is not None or signal is not None:
            return Outcome(worker, EndKind.EXITED, exit_code, signal, guarded=guarded, truncated=truncated)
        case FailedToStart(exit_code, reason, not_allowed=not_allowed):
            kind = EndKind.FAILED_TO_START
            return Outcome(worker, kind, exit_code, reason=reason, guarded=guarded, not_allowed=not_allowed)
        case Lost(reason):
            pass
        case _:
            reason = NO_STATUS
    return Outcome(worker, EndKind.LOST, reason=reason, guarded=guarded, may_still_run=True)


def event_of(error: Exception, started: bool) -> Event:
    """The event for an exception of a backend, before or after `Started`."""
    code = ExitCode.UNREACHABLE
    if isinstance(error, AtlctlError):
        reason = error.message
        if not isinstance(error, (Unreachable, TimedOut, NotAllowed, NothingMatched)):
            code = ExitCode.CANNOT_START
    elif isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            code = ExitCode.CANNOT_START  # a problem of this machine, not of the worker
    else:
        _log.debug("a backend raised what it should have mapped", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        code = ExitCode.CANNOT_START
    return Lost(reason) if started else FailedToStart(code, reason, not_allowed=isinstance(error, NotAllowed))


class StdinFeed:
    """Broadcasts a descriptor (by default stdin) to executions.

    All receivers are added before `run`, so that each gets every byte: the engine adds each one when it starts, and
    runs the feed when all have started or ended. The next chunk is read once all live receivers have taken the last
    one: the slowest one sets the pace, and memory holds one chunk. A receiver that stops reading is dropped.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        #: Receivers, with their write in progress.
        self._receivers: dict[Execution, asyncio.Task[None] | None] = {}

    def add(self, execution: Execution) -> None:
        """Add a receiver. Only before `run`."""
        self._receivers[execution] = None

    def drop(self, execution: Execution) -> None:
        """Remove a receiver that has ended."""
        writing = self._receivers.pop(execution, None)
        if writing is not None:
            writing.cancel()

    async def run(self) -> None:
        """Feed until the end of input, then close each receiver's stdin. Ends early if no receiver is left.

        Raises AtlctlError if the input cannot be read: truncated input must not look complete.
        """
        try:
            while self._receivers:
                chunk = await self._read()
                if not chunk:
                    await self._each(None)
                    return
                await self._each(chunk)
        finally:
            for execution in list(self._receivers):
                self.drop(execution)

    async def _each(self, chunk: bytes | None) -> None:
        """Write `chunk` to all receivers, or close them. Returns when each has taken it or was dropped."""
        for execution in self._receivers:
            self._receivers[execution] = asyncio.create_task(self._hand(execution, chunk))
        # Tasks of receivers dropped meanwhile are cancelled, so they are not waited for.
        writes = [task for task in self._receivers.values() if task is not None]
        if writes:
            await asyncio.wait(writes)

    async def _hand(self, execution: Execution, chunk: bytes | None) -> None:
        reads = True
        try:
            if chunk is None:
                await execution.close_stdin()
            else:
                reads = await execution.write(chunk)
        except Exception as error:  # noqa: BLE001 - the other receivers must be fed whatever a backend raises
            _log.debug("a command's stdin is gone: %r", error, exc_info=True)
            reads = False
        if execution in self._receivers:
            self._receivers[execution] = None
            if not reads:
                del self._receivers[execution]

    async def _read(self) -> bytes:
        while True:
            await self._readable()
            try:
                return os.read(self._fd, _CHUNK)
            except BlockingIOError:
                continue  # another reader of the same non-blocking pipe was faster
            except OSError as error:
                if error.errno == errno.EIO and os.isatty(self._fd):
                    return b""  # the terminal hung up
                raise _unreadable(error) from error

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._fd, _wake, ready)
        except PermissionError:
            return  # epoll does not accept regular files and /dev/null: they never block
        except (OSError, ValueError) as error:
            raise _unreadable(error) from error
        try:
            await ready
        finally:
            # Removed between chunks: pending input must not make the loop spin while receivers are busy.
            loop.remove_reader(self._fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _unreadable(error: Exception) -> AtlctlError:
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return AtlctlError(
        Message("standard input cannot be read: {text}", text=text), Message("leave out -i, or redirect it: -i < FILE")
    )
