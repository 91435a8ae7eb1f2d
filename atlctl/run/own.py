"""The options of a wrapper, the commands of atlctl that it starts on its own job, and work in threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atlctl.i18n import Message
from atlctl.jobs.fields import items, mapping, text
from atlctl.run.meeting import PORT

T = TypeVar("T")

_PROGRAM = (sys.executable, "-P", "-m", "atlctl")
#: Bytes of what a command prints, and seconds for it to end after that.
_LIMIT, _END_SECONDS = 4 << 20, 20.0
#: What --block can name beside the checks of `smoke`.
GPU, MISSING, NETWORK = "gpu", "missing", "network"
_OF_NETWORK = ("mesh", "throughput", "pairs")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `atlctl run`; times in seconds. `root`: the folder on shared storage. `key`: the job's secret if
    there is no folder. `items`: the checks, None for those of the quick tier, "none" for none."""

    root: str | None = None
    key: bytes | None = field(default=None, repr=False)
    items: str | None = None
    budget: str | None = None
    block: frozenset[str] = frozenset({GPU})
    wait: float = 120.0
    settle: float = 30.0
    hold: float = 0.0
    serve: bool = True
    port: int = PORT
    stops_others: bool = False


async def apart(work: Callable[[], T], seconds: float | None) -> T:
    """The result of `work`, done in a thread that nothing waits for at the end: storage may hang for ever. Raises
    TimeoutError after `seconds`; the thread goes on."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(give: Callable[[], None]) -> None:
        if not future.done():
            give()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  the caller gets it
            failed = error
            give = lambda: future.set_exception(failed)  # noqa: E731
        else:
            give = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, give)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future


@dataclass(frozen=True, slots=True)
class CheckFault:
    """A finding of the smoke test. `grave`: a fault and no warning; `name`: what --block calls it; `about`: who and
    what."""

    grave: bool
    name: str
    about: str


@dataclass(frozen=True, slots=True)
class OwnCommands:
    """Commands of atlctl on the job `job`, in the environment `environ`."""

    job: str
    environ: Mapping[str, str]

    @property
    def of_job(self) -> list[str]:
        """The options for commands about the job."""
        return ["-j", self.job, "--backend", "ssh"]

    async def output(self, words: Sequence[str], seconds: float) -> str | None:
        """The output of a command; None if it does not end in time, or prints nothing. The words name the job, see
        `of_job`."""
        environ = {name: value for name, value in self.environ.items() if name not in ("ATLCTL_JOB", "ATLCTL_WORKER")}
        child = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own would wait for children of others
            [*_PROGRAM, *words, "--color", "never"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        assert child.stdout is not None
        pipe = child.stdout
        said = None
        try:
            said = await apart(lambda: pipe.read(_LIMIT), seconds)
        except TimeoutError:
            return None
        finally:
            if said is None or len(said) == _LIMIT:  # else it has closed its output, and ends by itself
                child.terminate()
            try:
                await apart(child.wait, _END_SECONDS)
            except TimeoutError:
                child.kill()
            pipe.close()
        return said.decode("utf-8", "replace") or None

    async def smoke(self, checks: str | None, budget: str | None, seconds: float) -> list[CheckFault] | None:
        """The findings of the smoke test; None without a result."""
        words = ["smoke", *self.of_job, "-o", "json"]
        for option, value in (("--items", checks), ("--budget", budget)):
            words += [option, value] if value else []
        try:
            data = mapping(mapping(json.loads(await self.output(words, seconds) or "")).get("data"))
        except (ValueError, RecursionError):
            return None
        if "findings" not in data:
            return None
        return [found for raw in items(data["findings"]) if (found := _fault(mapping(raw))) is not None]


def _fault(raw: Mapping[str, Any]) -> CheckFault | None:
    severity, name = text(raw.get("severity"), 20), text(raw.get("check"), 50)
    if severity not in ("fail", "warn", "incomplete"):
        return None
    culprit = mapping(raw.get("culprit"))
    if name == "gpus" and culprit.get("kind") == "worker":
        name = GPU  # not one GPU that is bad: one is lost, or the driver hangs
    elif name in _OF_NETWORK:
        name = NETWORK
    elif name == "roll-call":
        name = MISSING
    who, words = text(culprit.get("worker"), 100), text(raw.get("evidence"), 500)
    return CheckFault(severity == "fail", name, Message("{who}: {what}", who=who, what=words) if who else words)
