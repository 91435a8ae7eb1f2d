"""`atlctl demo`: real failing jobs on this machine, narrated: the cause is found, and a script is mended in place."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import importlib.util
import json
import os
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atlctl.cli import say
from atlctl.cli.installing import install_line
from atlctl.cli.runtime import context, run_async, undisturbed
from atlctl.cli.target import BACKEND_VARIABLE, local
from atlctl.i18n import Message, translated
from atlctl.jobs.errors import AtlctlError, TimedOut
from atlctl.jobs.model import State
from atlctl.render.palette import Tone, painted
from atlctl.render.table import human_age

WORKERS = 2
PROCESSES = 2
#: Limits for the job's own steps on a busy machine, seconds.
START_SECONDS = 240.0
FAIL_SECONDS = 120.0
POLL_SECONDS = 0.3
#: A reader of our stdout that is slower than this may see lines out of order.
FLUSH_SECONDS = 60.0

_JOB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo_job")
_SCRIPT = os.path.join(_JOB, "launch.sh")
#: The second scene: a line of the training script, the bug in its place, and for how long the workers are kept.
_RIGHT, _WRONG, _HOLD = "loss.backward()", "loss.backwards()", "10m"
#: This very installation, whatever the current folder holds.
_PROGRAM = (sys.executable, "-P", "-m", "atlctl")


EXAMPLES = Message("atlctl demo")
#: Seconds, after a signal, to stop a job with its grace and to remove it on a loaded machine.
_CLEANUP = 60.0


def command(
    keep: Annotated[bool, typer.Option("--keep", help=Message("keep the job for your own tries"))] = False,
) -> int:
    if importlib.util.find_spec("torch") is None:
        raise AtlctlError(
            Message("the demo trains with PyTorch, which is not installed beside atlctl"), install_line("torch")
        )
    return run_async(lambda: _Demo(keep).run(), cleanup=_CLEANUP)


class _Demo:
    """One run. First scene: start, look around, break, diagnose, stop, clean up, and judge what was found. Second one:
    a script with a bug fails under `atlctl run`, is mended, and runs again on the same workers."""

    def __init__(self, keep: bool) -> None:
        self._keep = keep
        self._name = f"demo-{secrets.token_hex(2)}"
        self._rank = secrets.randbelow(WORKERS * PROCESSES)
        self._worker = f"worker-{self._rank // PROCESSES}"
        self._started = False
        self._backend = "local"
        self._trains: set[int] = set()

    async def run(self) -> int:
        with tempfile.TemporaryDirectory(prefix="atlctl-demo-") as folder:
            try:
                await self._act(os.path.join(folder, "fault"))
                if not self._keep:
                    await self._clean_up()
                right = Message("Right: rank {rank} on {worker} was damaged, and rank {rank} on {worker} was found.")
                self._say(right.filled(rank=self._rank, worker=self._worker))
                if not self._keep:
                    await self._mend(folder)
            except AtlctlError as error:
                if self._started:
                    self._keep = True
                    self._say_it_stays()
                    error.hint = f"atlctl logs {self._name}"
                raise
            finally:
                if not self._keep:
                    await self._clean_up()
        if not self._keep and self._name in await self._jobs():
            raise AtlctlError(Message("the demo did not remove its job"), f"atlctl local rm {self._name}")
        return 0

    async def _mend(self, folder: str) -> None:
        """The second scene."""
        self._say(
            Message(
                "Second scene: the workers of another job are wrapped by 'atlctl run', as in a launch script. This "
                "time the training script has a bug."
            )
        )
        _write_with_bug(f"{folder}/train.py")
        start = ["local", "run", "--name", self._name, "--workers", str(WORKERS)]
        job = f"{self._name}-run"
        wrapper = ["run", "--name", job, "--hold", _HOLD, "--items", "none"]
        train = ["train.py", "--steps", "20"]
        env = {
            "ATLCTL_RUN_DIR": f"{folder}/runs",
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": "1",
        }
        shown = f"{shlex.join(start)} --detach -- atlctl {shlex.join(wrapper)} -- python {shlex.join(train)}"
        words = [*start, "--chdir", folder, *_settings(env), "--detach", "--"]
        await self._show(*words, *_PROGRAM, *wrapper, "--", sys.executable, *train, shown=shown)
        self._started, self._backend = True, "ssh"
        with say.doing(Message("waiting until the workers are kept"), limit=START_SECONDS):
            verdict = f"{glob.escape(folder)}/runs/*/*/*/verdict.json"
            await self._until(lambda: self._all_kept(verdict, job), START_SECONDS, Message("the workers were not kept"))
        self._say(Message("The training has failed on all ranks, and the workers are kept: Held, with the time left."))
        await self._show("ps", job)
        await self._show("errors", job)
        self._say(Message("Mend the script, and start it again on the same workers."))
        await self._run("sed", "-i", f"s/{_WRONG}/{_RIGHT}/", "train.py", folder=folder)
        await self._show("rerun", job, "--yes")
        self._backend = "local"
        with say.doing(Message("waiting until the training has succeeded"), limit=START_SECONDS):
            await self._until(self._succeeded, START_SECONDS, Message("the second attempt did not succeed"))
        await self._show("logs", self._name, "--tail", "1")
        self._say(Message("Both ranks have trained to the end; the workers are released."))

    async def _all_kept(self, verdict: str, job: str) -> bool:
        if not glob.glob(verdict):  # else a command every other second would slow the start down
            return False
        workers = (await self._quietly("ps", job))["data"]["workers"]
        return {worker["state"] for worker in workers} == {State.HELD}

    async def _succeeded(self) -> bool:
        job = await local().get_job(self._name)
        if job.state is State.FAILED:
            raise AtlctlError(Message("the second attempt has failed"))
        return job.state is State.SUCCEEDED

    async def _act(self, fault: str) -> None:
        self._say(
            Message(
                "A real job on this machine: {workers} workers x {processes} processes train a small data-parallel "
                "model with torchrun (CPU, gloo).",
                workers=WORKERS,
                processes=PROCESSES,
            )
        )
        env = {
            "PYTHON": sys.executable,
            "ATLCTL_DEMO_FAULT_FILE": fault,
            "ATLCTL_DEMO_FAULT_RANK": str(self._rank),
        }
        start = ["local", "run", "--name", self._name, "--workers", str(WORKERS)]
        shown = f"{shlex.join(start)} --detach -- bash launch.sh"
        await self._show(*start, *_settings(env), "--detach", "--", "bash", _SCRIPT, shown=shown)
        self._started = True
        limit = human_age(START_SECONDS)
        self._say(Message("Starting takes some seconds, {limit} at most: every process imports torch.", limit=limit))
        with say.doing(
            Message("waiting until all ranks train"),
            done=lambda: len(self._trains),
            total=WORKERS * PROCESSES,
            limit=START_SECONDS,
        ):
            await self._until(self._all_ranks_train, START_SECONDS, Message("the training did not start"))
        self._say(Message("All ranks train. Who is there, what do they answer, what do they print?"))
        await self._show("ps", self._name)
        echo = 'echo "RANK=$RANK of WORLD_SIZE=$WORLD_SIZE, load $(cut -d" " -f1 /proc/loadavg)"'
        await self._show("exec", "-j", self._name, "--all", "--", "sh", "-c", echo)
        await self._show("logs", self._name, "--tail", "2")
        self._say(
            Message(
                "Now a data shard of one rank is damaged (rank {rank}, on {worker}); the others are left "
                "waiting in the all-reduce.",
                rank=self._rank,
                worker=self._worker,
            )
        )
        _release(fault)
        limit = human_age(FAIL_SECONDS)
        self._say(Message("Until both torchruns have given up, it takes some seconds, {limit} at most.", limit=limit))
        with say.doing(Message("waiting until the training has failed"), limit=FAIL_SECONDS):
            await self._until(self._all_held, FAIL_SECONDS, Message("the workers were not seen as Held"))
        self._say(
            Message(
                "The training has failed, but the workers are still running: their launch script ends in 'sleep; "
                "exit 0'. This state is called Held."
            )
        )
        await self._show("ps", self._name)
        self._say(Message("Every torchrun blames a rank on its node. Which one was first?"))
        await self._show("errors", self._name)
        await self._check_finding()
        if self._keep:
            self._say_it_stays()
            return
        self._say(Message("Stop it, and leave nothing behind."))
        await self._show("stop", self._name, "--yes")

    async def _clean_up(self) -> None:
        """Whatever happened before: end the job and remove its entry. An interrupted start may have left one."""
        if not self._started and self._name not in await self._jobs():
            return
        self._started, self._backend = False, "local"
        with say.doing(Message("removing job {job}", job=self._name)):
            with contextlib.suppress(AtlctlError):
                await self._quietly("stop", self._name, "--yes", "--grace", "2")
            await self._quietly("local", "rm", self._name, "--yes")

    async def _jobs(self) -> set[str]:
        """Names of the jobs of this machine."""
        return {job["name"] for job in (await self._quietly("jobs"))["data"]["jobs"]}

    async def _check_finding(self) -> None:
        """Compare what was found with what was injected. Raises AtlctlError."""
        with say.doing(Message("comparing what was found with what was damaged")):
            data = (await self._quietly("errors", self._name))["data"]
        found = data["root_causes"][0] if data["root_causes"] else {}
        wanted = {
            "verdict": "rank",
            "worker": self._worker,
            "rank": self._rank,
            "local_rank": self._rank % PROCESSES,
            "exit_code": 1,
            "exception": "ValueError",
            "confidence": "certain",
        }
        got = {"verdict": data["verdict"], **{key: found.get(key) for key in list(wanted)[1:]}}
        if got["exit_code"] is None:  # on a very busy machine torchrun can end before it has seen the rank's
            del got["exit_code"], wanted["exit_code"]
        if got != wanted:
            text = Message("the demo did not find what it had injected: injected {wanted}, found {got}")
            raise AtlctlError(text.filled(wanted=wanted, got=got))

    async def _all_ranks_train(self) -> bool:
        from atlctl.backends.base import LogRequest

        source = local()
        job = await source.get_job(self._name)
        for worker in job.workers:
            if worker.state is State.HELD or not worker.state.active:
                state = say.state(worker.state, worker.reason)
                raise AtlctlError(
                    Message("the training did not start: {worker} is {state}", worker=worker.name, state=state)
                )
            wanted = {worker.index * PROCESSES + place for place in range(PROCESSES)} - self._trains
            async for batch in source.lines(job, worker, LogRequest()):
                for line in batch:
                    if line.data.startswith(b"step "):
                        self._trains |= {rank for rank in wanted if line.data.endswith(b"rank %d" % rank)}
        return len(self._trains) == WORKERS * PROCESSES

    async def _all_held(self) -> bool:
        workers = (await local().get_job(self._name)).workers
        for worker in workers:
            if not worker.state.active:
                state = say.state(worker.state, worker.reason)
                raise AtlctlError(Message("{worker} has ended: {state}", worker=worker.name, state=state))
        return all(worker.state is State.HELD for worker in workers)

    async def _until(self, condition: Callable[[], Awaitable[bool]], seconds: float, otherwise: str) -> None:
        """Wait for `condition`. Raises its AtlctlError, or TimedOut, after `errors` was shown."""
        deadline = time.monotonic() + seconds
        try:
            while not await condition():
                if time.monotonic() > deadline:
                    raise TimedOut(Message("{what} within {seconds:.0f} s", what=otherwise, seconds=seconds))
                await asyncio.sleep(POLL_SECONDS)
        except AtlctlError:
            self._say(Message("That went wrong. Why?"))
            await self._show("errors", self._name)
            raise

    def _say(self, said: Message) -> None:
        line = painted(f"# {translated(said)}", Tone.STRONG, context().streams.stdout_color)
        context().writer.put("stdout", f"\n{line}\n".encode())

    def _say_it_stays(self) -> None:
        stays = Message("The job stays as it is. Play with it, then: atlctl stop {name} && atlctl local rm {name}")
        self._say(stays.filled(name=self._name))

    def _environment(self) -> dict[str, str]:
        """The demo's job is one of this machine, or of wrappers on it, whatever cluster is configured."""
        return {**os.environ, BACKEND_VARIABLE: self._backend}

    async def _show(self, *words: str, shown: str | None = None) -> None:
        """Run atlctl as a user would, its output going where ours goes. Raises AtlctlError when it fails."""
        code = await self._run(*_PROGRAM, *words, shown=f"atlctl {shown or shlex.join(words)}")
        if code != 0:
            raise AtlctlError(_exited(words, code))

    async def _run(self, *words: str, shown: str | None = None, folder: str | None = None) -> int:
        """Show a command line and run it; returns its exit code."""
        context().writer.put("stdout", f"$ {shown or shlex.join(words)}\n".encode())
        await asyncio.to_thread(context().writer.flush, FLUSH_SECONDS)
        with undisturbed():
            process = await asyncio.create_subprocess_exec(*words, env=self._environment(), cwd=folder)
            return await _wait(process)

    async def _quietly(self, *words: str) -> dict[str, Any]:
        """Run a command and return its JSON document (empty if it prints none)."""
        asked = words if words[0] == "local" else (*words, "-o", "json")
        process = await asyncio.create_subprocess_exec(
            *_PROGRAM, *asked, env=self._environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await process.communicate()
        if process.returncode != 0:
            said = errors.decode(errors="replace").strip()
            raise AtlctlError(Message("{what}: {why}", what=_exited(words, process.returncode), why=said))
        return {} if words[0] == "local" else json.loads(output)


def _exited(words: Sequence[str], code: int | None) -> Message:
    return Message("'atlctl {command}' exited with {code}", command=words[0], code=code)


def _settings(env: Mapping[str, str]) -> list[str]:
    return [word for name, value in env.items() for word in ("--env", f"{name}={value}")]


def _write_with_bug(path: str) -> None:
    script = Path(_JOB, "train.py").read_text(encoding="utf-8")
    Path(path).write_text(script.replace(_RIGHT, _WRONG), encoding="utf-8")


def _release(fault: str) -> None:
    """The rank that was chosen watches for this file."""
    os.close(os.open(fault, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


async def _wait(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise
