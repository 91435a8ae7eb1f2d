"""The wrapper of one worker: it meets the others, checks, runs the command, has the cause found, and holds the worker.

Each wrapper serves its worker over SSH (`serving`), and asks the others in the same way. Worker 0 decides when the
command starts. After a failure the lowest worker that answers is in charge of the verdict: the others report to it.

The evidence folder is written by threads, since its storage may hang: the command never waits for it.

With a folder the workers meet by files in it. Each listens at once, and loads asyncssh (half a second of CPU, 20 MB)
only when another one connects, or has to be asked: the command starts without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from atlctl.backends.hosts.hostfile import Host, checked
from atlctl.backends.hosts.jobkeys import JOB_USER, JobAccess
from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.config import FAILED_TITLE, SLOW_TITLE
from atlctl.jobs.errors import AtlctlError, ExitCode, no_answer
from atlctl.jobs.fields import items, text, whole
from atlctl.jobs.naming import fold_names, safe_file_name
from atlctl.jobs.statedir import state_dir, write_atomic
from atlctl.remote import proc
from atlctl.remote.supervisor import processes
from atlctl.run.command import ASK_SECONDS, DRAIN_SECONDS, KILL_SECONDS, LOG_SECONDS, LOOK_SECONDS, Commanding
from atlctl.run.meeting import SECRET_BYTES, JobStart, RunFolder, entry_of, host_of, keep_files, make_room, new_uid
from atlctl.run.output import Log, StepsOfOutput, log_files
from atlctl.run.own import (
    MISSING,
    Attempt,
    CheckFault,
    Door,
    Notifier,
    OwnCommands,
    Refused,
    Settings,
    apart,
    write_note,
)
from atlctl.run.place import Post, own_address, worker_name
from atlctl.run.siblings import Siblings, worst

if TYPE_CHECKING:
    from atlctl.backends.hosts.connect import Connections

_log = logging.getLogger(__name__)

#: Seconds for the folder to answer, and between two questions to another wrapper.
FOLDER_SECONDS, POLL_SECONDS = 10.0, 0.5
#: Seconds for the check before the command, for the verdict, for `stacks` before it, and for a cluster's answer.
CHECK_SECONDS, VERDICT_SECONDS, STACKS_SECONDS, OWNER_SECONDS = 180.0, 120.0, 60.0, 60.0
#: Seconds between questions to a worker whose word is waited for, and may never come.
LOST_SECONDS = 5.0
#: Seconds between looks whether the others live, and how many a worker may miss.
WATCH_SECONDS, _LOOKS = 15.0, 2
#: Seconds after the start of the command until the worker can be found and reached without waiting.
PUBLISH_SECONDS = 1.0


_NO_FOLDER = Message("the folder of the run is not used: {why}")
_MISSING = Message("{workers} did not come within {seconds:g} s")
_STRANGER = Message("not a worker of this job")


class Wrapper(Commanding):
    """The wrapper of local id 0 of its host."""

    def __init__(
        self,
        settings: Settings,
        place: Post,
        argv: Sequence[str],
        say: Callable[[str], None],
        shout: Callable[[str], None],
    ) -> None:
        super().__init__(place, argv, say, shout)
        self._settings = settings
        self._siblings = Siblings(place, self._notify, self._process_ended)
        #: The report of a failure of one process, and its verdict, while others of the worker run.
        self._reporting: asyncio.Task[None] | None = None
        self._commands = OwnCommands(place.job, self._environ)
        self._notifier = Notifier(settings.notify, self._commands, shout)
        self._slow_title = SLOW_TITLE.filled(job=place.job)
        self._telling: asyncio.Task[dict[str, Any] | None] | None = None
        self._identity = processes.identity(os.getpid())
        self._created = time.time()
        self._uid = ""
        self._folder = ""
        self._access: JobAccess | None = None
        self._door = Door(place.index, self._environ, self._cwd, self._answered)
        #: Of worker 0: the start in whose folder the workers meet. The names by which they have come there, of another
        #: worker its own.
        self._start: JobStart | None = None
        self._came: set[str] = set()
        #: Entries of the workers that have come, by index, as `_entry` makes them.
        self._table: dict[int, dict[str, Any]] = {}
        self._answering = 0
        self._record_path: str | None = None
        #: The job of another backend that these workers belong to; empty if none is known.
        self._owner = place.owner[0] if place.owner else ""
        #: Whether the command may start: None until it is decided, else "" or why not.
        self._gate: str | None = None
        self._joined = False
        #: Ends of commands that were reported to this worker, by index; of the present attempt.
        self._ends: dict[int, int] = {}
        self._judging: asyncio.Task[None] | None = None
        #: The last attempt for which a verdict was made; the last one that has succeeded on all workers.
        self._judged = self._succeeded = 0
        self._spreading: asyncio.Future[None] | None = None
        #: None: not held. Else the end of the hold on the monotonic clock, infinite without a limit.
        self._held: float | None = None
        self._debugging = False
        self._next: tuple[str, ...] | None = None
        self._released = False

    # The life of the worker

    async def run(self) -> int:
        """The exit code of the last attempt; 125 if the check keeps the command from starting."""
        code = 0
        async with self._ready():
            watching = asyncio.gather(self._watch_others(), self._find_owner())
            try:
                await self._until_signalled(self._prepared())
                if self._signalled is None and self._gate:
                    self._not_started(self._gate)
                    code = int(ExitCode.CANNOT_START)
                    return code
                while self._signalled is None:
                    await self._run_command()
                    if self._signalled is not None or not await self._until_signalled(self._goes_on()):
                        break
                code = self._attempt.own_code if self._signalled is None else 128 + self._signalled
                return code
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                self._siblings.leave(code, self._gate or Message("{worker} has ended", worker=self._place.name))
                await self._close()

    async def _close(self) -> None:
        if self._spreading is not None:  # else the others would wait for the decision of a worker that has ended
            await asyncio.gather(self._spreading, return_exceptions=True)
        for task in (self._reporting, self._judging):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._notifier.aclose(wait=self._signalled is None)
        await self._siblings.aclose()
        if self._record_path is not None:
            from atlctl.backends.hosts import runs

            runs.forget(self._record_path)
        if self._start is not None:
            with contextlib.suppress(TimeoutError):
                await apart(self._start.leave, 1.0)
        await self._until(lambda: not self._answering, ASK_SECONDS)
        await self._door.aclose(LOOK_SECONDS)  # until the answers are sent
        if "_connections" in vars(self):
            await self._connections.aclose()

    async def _find_owner(self) -> None:
        """Worker 0: the job of another backend that this worker was started in, or whose pod it is."""
        if not self._owner and self._settings.pod and self._place.index == 0:
            self._owner = await self._commands.owner(self._settings.pod, OWNER_SECONDS)
            self._renew_record()
            if self._owner and self._joined and self._gate is not None:
                self._spread()
        if self._owner and self._place.index == 0:
            self._say(Message("this run belongs to job {job}: atlctl ps {job}", job=self._owner))

    # The others

    async def _prepared(self) -> None:
        """Meet the others; worker 0 checks the job. Sets `_gate`."""
        await asyncio.gather(self._meet(), self._gather_siblings())
        if self._gate is None and self._place.index == 0:
            self._gate = await self._checked()
        if self._joined and self._place.index == 0:
            await self._announce_gate()

    async def _gather_siblings(self) -> None:
        """Wait for the wrappers of the other processes of this host."""
        why, seconds = await self._siblings.listen(), self._settings.wait
        await self._until(lambda: self._siblings.complete, seconds)
        if why:
            self._shout(
                Message(
                    "the other processes of this host are not part of {worker}: {why}", worker=self._place.name, why=why
                )
            )
        elif not self._siblings.complete:
            self._shout(
                _MISSING.filled(
                    workers=Message(
                        "processes {numbers} of {worker}", numbers=self._siblings.missing, worker=self._place.name
                    ),
                    seconds=seconds,
                )
            )

    def _start_alone(self) -> None:
        if not self._folder:
            self._adopt(None)
        self._gate = self._gate or ""

    async def _meet(self) -> None:
        settings, place = self._settings, self._place
        alone = place.count == 1
        if place.odd:
            self._shout(Message("{why}: this worker counts as alone", why=place.odd))
        folder: RunFolder | None = None
        if settings.root is not None:
            root = settings.root
            try:
                folder = await apart(lambda: RunFolder(root, place.job), FOLDER_SECONDS)
            except AtlctlError as error:
                self._shout(_NO_FOLDER.filled(why=error.message))
            except TimeoutError:
                self._shout(_NO_FOLDER.filled(why=joined((root, no_answer(FOLDER_SECONDS)))))
        if folder is None and settings.key is None and not alone:
            self._say(
                Message(
                    "this worker is not served, and there is no verdict for the whole job: name a folder on shared "
                    "storage with --dir (ATLCTL_RUN_DIR), or a key with ATLCTL_JOB_KEY_FILE"
                )
            )
            self._start_alone()
        elif not settings.serve:
            self._start_alone()
        elif place.index == 0:
            await self._lead(folder)
        else:
            await self._follow(folder)

    def _listen(self, access: JobAccess, port: int) -> bool:
        """Let clients connect; False if the port is taken."""
        try:
            self._door.listen(access, own_address(self._place), port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            self._shout(Message("this worker is not served: port {port}: {why}", port=port, why=why))
            return False
        self._access = access
        return True

    @cached_property
    def _connections(self) -> Connections:
        """The ways to the other workers."""
        from atlctl.backends.hosts.connect import Connections
        from atlctl.backends.hosts.hostkeys import KnownHosts
        from atlctl.backends.hosts.keys import Keys

        return Connections(Keys(lambda _: None), KnownHosts(accept_new=False), None)

    async def _publish(self, after: float = 0.0) -> None:
        """Let commands in this container find the job, and others reach this worker without waiting."""
        await asyncio.sleep(after)
        if self._access is not None and self._record_path is None:
            await self._door.load()
            self._write_record()
        self._door.serve()

    def _entry(self) -> dict[str, Any]:
        place = self._place
        folder = os.path.join(self._folder, place.name)
        return {"index": place.index, "address": own_address(place), "port": self._door.port, "folder": folder}

    def _adopt(self, start: JobStart | None) -> None:
        """Take the id and the folder of a start; a local folder without shared storage."""
        self._uid = start.uid if start is not None else self._uid or new_uid()
        self._folder = (
            start.folder
            if start is not None
            else os.path.join(state_dir(), "runs", safe_file_name(self._place.job), self._uid)
        )

    async def _lead(self, folder: RunFolder | None) -> None:
        """Worker 0: make a start, serve, and wait for the others."""
        settings, place = self._settings, self._place
        start: JobStart | None = None
        if folder is not None:
            try:
                start = await apart(folder.create, FOLDER_SECONDS)
            except (AtlctlError, TimeoutError) as error:
                why = error.message if isinstance(error, AtlctlError) else no_answer(FOLDER_SECONDS)
                self._shout(_NO_FOLDER.filled(why=why))
        self._adopt(start)
        if start is not None:
            access, port = JobAccess(start.secret, start.uid), 0
        elif settings.key is not None:
            access, port = JobAccess(settings.key, ""), settings.port
        elif place.count == 1:
            access, port = JobAccess(os.urandom(SECRET_BYTES), self._uid), 0
        else:
            self._start_alone()
            return
        if not self._listen(access, port):
            self._start_alone()
            return
        self._table[0] = self._entry()
        self._joined = True
        if start is not None:
            self._start = start
            try:
                await apart(lambda: start.announce(own_address(place), self._door.port), FOLDER_SECONDS)
            except (AtlctlError, TimeoutError) as error:
                self._shout(Message("the others cannot find this worker: {why}", why=error))
        deadline = time.monotonic() + settings.wait
        while len(self._table) < place.count and time.monotonic() < deadline:
            await self._until(lambda: len(self._table) == place.count, POLL_SECONDS)
            await self._take_those_who_came()
        if missing := [worker_name(index) for index in range(place.count) if index not in self._table]:
            why = _MISSING.filled(workers=fold_names(missing), seconds=settings.wait)
            self._shout(why)
            if MISSING in settings.block:
                self._gate = why

    async def _take_those_who_came(self) -> None:
        """Worker 0: look into the folder for others."""
        if (start := self._start) is not None:
            with contextlib.suppress(OSError, TimeoutError):
                found = await apart(lambda: start.came(self._came, self._place.count), FOLDER_SECONDS)
                self._came |= found.keys()
                self._table |= {entry["index"]: entry for entry in found.values() if entry["index"]}

    async def _announce_gate(self) -> None:
        """Worker 0: give the others the decision."""
        if (start := self._start) is not None:
            told = {**self._known(), "came": sorted(self._came)}
            with contextlib.suppress(AtlctlError, TimeoutError):
                await apart(lambda: start.decide(told), FOLDER_SECONDS)
                return
        self._spread()

    async def _follow(self, folder: RunFolder | None) -> None:
        """Another worker: find worker 0, say hello to it, and wait for its decision."""
        settings, place = self._settings, self._place
        deadline = time.monotonic() + settings.wait
        tried: str | None = None
        met = False
        why: str = Message("it has not started")
        while time.monotonic() < deadline:
            start = None
            name = place.peers.hosts[0].name if place.peers is not None else place.first
            address = (name, settings.port) if name else None
            try:
                if folder is not None:
                    start, address = await apart(folder.found, FOLDER_SECONDS)
                if self._came and start is not None and tried == start.uid:  # worker 0 itself may have left already
                    if await self._decided(start):
                        return
                elif address is not None:
                    access = JobAccess(start.secret, start.uid) if start else JobAccess(settings.key or b"", "")
                    if tried != access.start:
                        if not await self._enter(start, access):
                            break
                        tried = access.start
                        if self._came:
                            continue
                    if await self._greet(address):
                        return
                if address is not None and not met:
                    # Worker 0 decides in so much time from now on.
                    met, longest = True, settings.wait + CHECK_SECONDS * (settings.items != "none")
                    deadline = time.monotonic() + longest
            except TimeoutError:
                why = Message("the folder did not answer")
            except AtlctlError as error:
                why = error.message
            await asyncio.sleep(POLL_SECONDS)
        self._shout(
            Message(
                "{worker} did not answer within {seconds:g} s ({why}): the command starts without the others",
                worker=worker_name(0),
                seconds=settings.wait,
                why=why,
            )
        )
        if MISSING in settings.block:
            self._gate = _MISSING.filled(workers=worker_name(0), seconds=settings.wait)
        self._start_alone()

    async def _enter(self, start: JobStart | None, access: JobAccess) -> bool:
        """Listen with the keys of a start, and come to it by its folder if it has one; False if the port is taken."""
        await self._door.aclose()
        self._adopt(start)
        self._came = set()
        if not self._listen(access, 0 if start is not None else self._settings.port):
            return False
        if start is not None:
            with contextlib.suppress(AtlctlError, TimeoutError):
                self._came = {await apart(lambda: start.come(self._entry()), FOLDER_SECONDS)}
        return True

    async def _decided(self, start: JobStart) -> bool:
        """Whether worker 0 has decided since this worker has come, by the folder."""
        try:
            told = await apart(start.decision, FOLDER_SECONDS)
        except (OSError, TimeoutError):
            told = {}
        if told is None:
            return False
        if not self._came <= set(items(told.get("came"))):  # late, or that start has ended
            self._came = set()
            return False
        self._joined = True
        self._learn(told)
        return self._gate is not None

    async def _greet(self, address: tuple[str, int]) -> bool:
        """Say hello to worker 0 at `address`, and again until it has decided. Raises AtlctlError if it does not answer;
        returns True when the gate is known."""
        assert self._access is not None
        await self._door.load()
        from atlctl.backends.hosts import wrappers

        host = Host(checked(address[0]), JOB_USER, address[1])
        self._connections.trust(host, self._access, 0)
        told = await wrappers.ask(self._connections, host, "hello", {**self._entry(), "uid": self._uid}, ASK_SECONDS)
        uid = text(told.get("uid"), 100)
        if self._access.start == "" and uid and uid != self._uid:  # with a key the start is known only now
            self._uid = uid
            self._adopt(None)
            return False
        self._joined = True
        self._learn(told)
        await self._until(lambda: self._gate is not None, 4 * POLL_SECONDS)
        return self._gate is not None

    def _learn(self, told: Mapping[str, Any]) -> None:
        """Take the table of workers, and its decision, from worker 0."""
        for raw in items(told.get("table")):
            entry = entry_of(raw, self._place.count)
            if entry is not None and entry["index"] != self._place.index:
                self._table[entry["index"]] = entry
        self._owner = self._owner or text(told.get("owner"), 253)
        self._renew_record()
        gate = told.get("gate")
        if self._gate is None and isinstance(gate, str):
            self._gate = gate
            self._notify()

    async def _ask(self, index: int, question: str, details: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer of another wrapper; None if it gives none."""
        if index not in self._table or self._access is None:
            return None
        await self._door.load()
        from atlctl.backends.hosts import wrappers

        host = host_of(self._table[index])
        self._connections.trust(host, self._access, index)
        try:
            return await wrappers.ask(self._connections, host, question, {**details, "uid": self._uid}, ASK_SECONDS)
        except AtlctlError as error:
            _log.debug("%s to worker %d: %s", question, index, error.message)
            return None

    def _write_record(self) -> None:
        """The job for clients in this container."""
        from atlctl.backends.hosts import runs
        from atlctl.backends.hosts.records import RUN, Placed, Record

        place = self._place
        workers = []
        for index in range(place.count):
            entry = self._table.get(index) or (self._entry() if index == place.index else None)
            name = worker_name(index)
            workers.append(Placed(name, host_of(entry), entry["folder"]) if entry else Placed(name, Host(name), ""))
        record = Record(
            name=place.job,
            uid=self._uid,
            created=self._created,
            argv=self._attempt.argv,
            hostfile=None,
            chdir=self._cwd,
            master_addr=place.first,
            master_port=0,
            workers=tuple(workers),
            kind=RUN,
            access=self._access,
            own=place.name,
            owner=self._owner or None,
        )
        try:
            self._record_path = runs.write(record, self._identity)
        except AtlctlError as error:
            self._shout(Message("commands of atlctl will not find this job here: {why}", why=error.message))

    def _renew_record(self) -> None:
        if self._record_path is not None:
            self._write_record()

    async def _watch_others(self) -> None:
        """Worker 0: one that does not answer any more, and has not reported an end, has failed with its machine."""
        silent: dict[int, int] = {}
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._place.index != 0 or self._held is not None or self._gate != "":
                continue
            wanted = [index for index in self._table if index != 0 and index not in self._ends]
            answers = await asyncio.gather(*(self._ask(index, "status", {}) for index in wanted))
            for index, told in zip(wanted, answers, strict=True):
                silent[index] = 0 if told is not None else silent.get(index, 0) + 1
                if silent[index] == _LOOKS and index not in self._ends:
                    self._shout(Message("{worker} does not answer any more", worker=worker_name(index)))
                    self._told({"index": index, "attempt": self._attempt.number, "code": int(ExitCode.UNREACHABLE)})

    # Answers to other wrappers and to clients

    async def _answered(self, question: str, details: dict[str, Any]) -> dict[str, Any]:
        self._answering += 1
        try:
            return await self._answer(question, details)
        finally:
            self._answering -= 1
            self._notify()

    async def _answer(self, question: str, details: dict[str, Any]) -> dict[str, Any]:
        if question == "hello":
            return self._hello(details)
        if details.get("uid") != self._uid:
            raise Refused(Message("another start of the job has taken its place"))
        match question:
            case "table":
                self._learn(details)
                return {"event": "noted"}
            case "status":
                return self._status()
            case "told":
                return self._told(details)
            case "judged" | "succeeded":
                if details.get("attempt") == self._attempt.number:
                    self._judged = max(self._judged, self._attempt.number if question == "judged" else 0)
                    self._succeeded = max(self._succeeded, self._attempt.number if question == "succeeded" else 0)
                    self._notify()
                return {"event": "noted"}
            case "slow":
                self._notifier.send(self._slow_title, text(details.get("text"), 500))
                return {"event": "noted"}
            case "kernel":
                await self._note_kernel(self._kernel_seen)
                return {"event": "noted"}
            case "look":
                return await self._look()
            case "stop":
                return await self._stop(details)
            case "rerun":
                return await self._rerun(details)
            case "release":
                self._released = True
                self._notify()
                return {"event": "released"}
        raise Refused(Message("unknown question"))

    def _hello(self, details: dict[str, Any]) -> dict[str, Any]:
        entry = entry_of(details, self._place.count)
        if entry is None or self._place.index != 0 or entry["index"] == 0:
            raise Refused(_STRANGER)
        if details.get("uid") != self._uid:  # with a key it learns the start, and its folder, only now
            return {"event": "hello", "uid": self._uid}
        if self._table.get(entry["index"]) != entry:
            late = self._gate is not None
            self._table[entry["index"]] = entry
            self._notify()
            if late:
                self._say(Message("{worker} has come late", worker=worker_name(entry["index"])))
                self._renew_record()
                self._spread()
        return {"event": "hello", "uid": self._uid, **self._known()}

    def _others(self) -> list[int]:
        return [index for index in self._table if index != self._place.index]

    def _known(self) -> dict[str, Any]:
        return {"gate": self._gate, "table": list(self._table.values()), "owner": self._owner}

    def _spread(self) -> None:
        """Send the others the table and the decision."""
        table = self._known()

        async def tell() -> None:
            await asyncio.gather(*(self._ask(index, "table", table) for index in self._others()))

        self._spreading = asyncio.ensure_future(tell())

    def _status(self) -> dict[str, Any]:
        attempt = self._attempt
        failed = any(self._ends.values()) or (attempt.ended is not None and attempt.exit_code != 0)
        return {"event": "status", "running": attempt.ended is None, "failed": failed}

    async def _look(self) -> dict[str, Any]:
        """As `atlctl.remote.supervisor.asked.look`."""
        from atlctl.remote.supervisor import asked

        attempt = self._attempt
        child = attempt.child
        found: dict[str, Any] = {
            "event": "seen",
            "presence": "alive",
            "place": "",
            "host": os.uname().nodename,
            "process": {"pid": child.pid, "started": attempt.started} if child is not None else {},
            "exit": attempt.exit(self._lost) if attempt.ended is not None else None,
            "trainer_failed": attempt.trainer_failed,
            "stopping": attempt.stopped,
            "held": self._held_note(),
            "programs": [],
            "load": list(os.getloadavg()),
            "cpus": os.cpu_count(),
            "processes": 0,
            "ranks": [],
            "step": attempt.steps and attempt.steps.last,
            "attempt": attempt.number - 1,
        }
        if child is not None and attempt.running:
            table = await apart(processes.everything, ASK_SECONDS)
            first = [child.pid, *self._siblings.pids] if attempt.own is None else self._siblings.pids
            family = [*first, *proc.below(proc.children_of(table), first)]
            found["processes"] = len(family)
            found["ranks"] = sorted({*asked.ranks(family, self._place.marks[0]), *self._ranks})
            if attempt.trainer_failed:
                found["programs"] = sorted({table[pid].comm for pid in family if pid in table})
        return found

    @property
    def _ranks(self) -> set[int]:
        """The global ranks that run, if each has a wrapper."""
        own = self._place.beside > 1 and self._attempt.own is None
        return self._siblings.ranks | ({self._place.rank} if own and self._place.rank is not None else set())

    def _held_note(self) -> dict[str, Any] | None:
        if self._held is None:
            waits = self._attempt.ended is not None and (self._settings.hold or self._debugging)
            return {"waiting": True} if waits else None
        left = self._held - time.monotonic()
        return {"debugging": self._debugging, "left": None if self._debugging else max(0.0, left)}

    async def _stop(self, details: dict[str, Any]) -> dict[str, Any]:
        """End the command. With `keep` the worker stays, in state Debugging; else the wrapper leaves."""
        grace = details.get("grace")
        grace = float(grace) if isinstance(grace, int | float) and 0 <= grace < 1e6 else 10.0
        keep = details.get("keep") is True
        if keep:
            self._debugging, self._released = True, False
        else:
            self._released = True
        how, count = "already-ended", 0
        if self._attempt.running:
            self._attempt.stopped = True
            seconds = grace + KILL_SECONDS + ASK_SECONDS
            ends = await asyncio.gather(self._end_command(grace), self._siblings.stop(grace, seconds))
            how, count = worst(how for how, _ in ends), sum(count for _, count in ends)
            await self._until(lambda: not self._attempt.running, LOG_SECONDS + DRAIN_SECONDS)
        self._notify()
        if keep:
            await self._until(lambda: self._held is not None, ASK_SECONDS)
        return {"event": "stopped", "how": how, "processes": count, "reason": ""}

    async def _rerun(self, details: dict[str, Any]) -> dict[str, Any]:
        """Start the command again, or another one; with `step` "prepare" only whether that can be done."""
        if self._attempt.running:
            raise Refused(Message("its command is running"))
        if self._settings.hold or self._debugging:  # it may still wait for the verdict
            await self._until(lambda: self._held is not None, 4 * ASK_SECONDS)
        if self._held is None:
            raise Refused(Message("it is not held"))
        if self._siblings.gone:
            raise Refused(Message("one of its processes has ended, and its wrapper with it"))
        given = details.get("argv")
        argv = self._attempt.argv if given is None else tuple(word for word in given if isinstance(word, str))
        if details.get("step") == "go":
            self._next = argv
            self._notify()
        return {"event": "ready", "argv": list(argv), "attempt": self._attempt.number + 1, "chdir": self._cwd}

    # The command

    async def _run_command(self) -> None:
        """One attempt, from its start to its end."""
        changed = None if self._next == self._attempt.argv else self._next
        attempt = self._attempt = Attempt(self._attempt.number + 1, changed or self._attempt.argv)
        self._next, self._held, self._debugging, self._released = None, None, False, False
        self._ends, self._lost, self._reporting = {}, 0, None
        top = os.path.join(self._folder, self._place.name)
        own = os.path.join(top, "workers", safe_file_name(self._place.name))
        with contextlib.suppress(TimeoutError, OSError):
            await apart(lambda: make_room(own, attempt.number), FOLDER_SECONDS)
        watched = partial(self._watch, attempt, own, asyncio.get_running_loop())
        log = self._log = Log(partial(log_files, f"{own}/log"), watched)
        await self._note_kernel(None)
        files = os.path.join(state_dir(), "run-files", f"{os.getpid()}-{attempt.number}")
        self._siblings.start(attempt.number, changed, top, log)
        later = asyncio.ensure_future(self._publish(PUBLISH_SECONDS))
        await self._execute(attempt, log, files)
        await self._all_ended(attempt)
        later.cancel()
        if attempt.exit_code and self._signalled is None and not attempt.stopped:
            await self._note_kernel(self._kernel_seen)
        self._log = None
        self._lost = await self._close_log(log, own)
        if attempt.steps is not None:
            with contextlib.suppress(TimeoutError):
                await apart(attempt.steps.close, FOLDER_SECONDS)
        await write_note(f"{own}/exit.json", attempt.exit(self._lost))
        with contextlib.suppress(TimeoutError, OSError):
            await apart(lambda: keep_files(files, top), FOLDER_SECONDS)
        self._notify()

    async def _started(self, attempt: Attempt) -> None:
        assert attempt.child is not None
        top = os.path.join(self._folder, self._place.name)
        process = {"pid": attempt.child.pid, "start": attempt.start, "started": attempt.started}
        await write_note(os.path.join(top, "workers", safe_file_name(self._place.name), "proc.json"), process)
        await write_note(f"{top}/job.json", self._described(attempt))

    async def _all_ended(self, attempt: Attempt) -> None:
        """Wait for the other processes of this worker; after a failure without a hold only until the verdict."""
        if self._siblings.running and attempt.own is not None:
            self._process_ended(self._place.rank, attempt.own)
        await self._until(lambda: not self._siblings.running or self._signalled is not None or self._is_excused)
        if self._signalled is not None:  # the platform has sent it to all of them
            await self._until(lambda: not self._siblings.running, LOG_SECONDS)
        attempt.ended = time.time()

    @property
    def _is_excused(self) -> bool:
        """Whether a failure was reported, and nothing keeps those whose command has ended."""
        return (
            self._reporting is not None and self._reporting.done() and not self._settings.hold and not self._debugging
        )

    def _process_ended(self, rank: int | None, status: int) -> None:
        """One of several processes of this worker has ended. Its failure is that of the worker, at once."""
        attempt = self._attempt
        attempt.take(status)
        if not status:
            return
        attempt.trainer_failed = True
        if self._log is not None and rank is not None:
            from atlctl.diagnosis.torchelastic import rank_ended

            self._log.put("stderr", rank_ended(rank, status))
        if not attempt.stopped and self._signalled is None and self._reporting is None:
            self._reporting = asyncio.ensure_future(self._report_failure())

    async def _report_failure(self) -> None:
        """Have the cause of a failure found while others of the worker run, then let go those that have ended."""
        await self._note_kernel(self._kernel_seen)
        await self._publish()
        await self._await_verdict(await self._report_end())
        if self._judging is not None:
            await asyncio.gather(self._judging, return_exceptions=True)
        if not self._settings.hold and not self._debugging:
            self._siblings.leave_ended()
        self._notify()

    def _watch(self, attempt: Attempt, own: str, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        """Take output of an attempt, in the thread of its log. `own`: the worker's folder."""
        from atlctl.diagnosis.torchelastic import FAILURE_MARKERS

        if attempt.steps is None:
            attempt.steps = StepsOfOutput(
                self._place.name, own, lambda told: loop.call_soon_threadsafe(self._slow, told)
            )
        attempt.steps.feed(data)
        if not attempt.trainer_failed and any(marker in data for marker in FAILURE_MARKERS):
            attempt.trainer_failed = True

    def _slow(self, told: str) -> None:
        """The steps of this worker have become slow: on the screen, and to the user by worker 0."""
        self._shout(told)
        if self._place.index == 0:
            self._notifier.send(self._slow_title, told)
        else:
            self._telling = asyncio.create_task(self._ask(0, "slow", {"text": told}))

    def _described(self, attempt: Attempt) -> dict[str, Any]:
        """The record of the worker for readers of a supervisor's folder."""
        return {
            "schema": 1,
            "name": self._place.job,
            "uid": self._uid,
            "created": self._created,
            "argv": list(attempt.argv),
            "supervisor": self._identity,
            "attempt": attempt.number,
            "workers": [{"name": self._place.name, "chdir": self._cwd}],
        }

    # After the command

    async def _goes_on(self) -> bool:
        """Whether another attempt follows."""
        attempt = self._attempt
        if attempt.stopped and not self._debugging:
            return False
        if attempt.exit_code or self._settings.hold or self._debugging:
            await self._publish()
        if not attempt.stopped:
            charge = await self._report_end()
            if attempt.exit_code:
                await self._await_verdict(charge)
            elif self._settings.hold and not await self._others_failed(charge):
                return False
        if self._judging is not None:
            await asyncio.gather(self._judging, return_exceptions=True)
        if not self._debugging and (not self._settings.hold or self._released):
            return False
        return await self._hold()

    async def _report_end(self) -> int:
        """Report the end of the command to the lowest worker that answers; returns its index."""
        told = {"index": self._place.index, "attempt": self._attempt.number, "code": self._attempt.exit_code}
        if self._joined:
            for index in range(self._place.index):
                if await self._ask(index, "told", told) is not None:
                    return index
        self._told(told)
        return self._place.index

    def _told(self, details: Mapping[str, Any]) -> dict[str, Any]:
        index, code = whole(details.get("index")), whole(details.get("code"))
        if index is None or code is None or not 0 <= index < self._place.count:
            raise Refused(_STRANGER)
        if details.get("attempt") == self._attempt.number:
            self._ends[index] = code
            if code and self._judged < self._attempt.number and (self._judging is None or self._judging.done()):
                self._judging = asyncio.ensure_future(self._judge())
            self._notify()
        return {"event": "noted"}

    async def _await_verdict(self, charge: int) -> None:
        """Wait until the worker in charge has made the verdict, or does not answer any more."""
        deadline = time.monotonic() + self._settings.settle + STACKS_SECONDS + VERDICT_SECONDS + CHECK_SECONDS
        while charge != self._place.index and not self._is_over and time.monotonic() < deadline:
            await self._until(lambda: self._is_over, LOST_SECONDS)
            if not self._is_over and await self._ask(charge, "status", {}) is None:
                charge = await self._report_end()

    @property
    def _is_over(self) -> bool:
        """Whether nothing is to be waited for after the end of the command."""
        return self._judged >= self._attempt.number or self._debugging or self._released

    async def _others_failed(self, charge: int) -> bool:
        """Wait until no worker runs its command any more (False), or one has failed (True). `charge`: the worker in
        charge, which knows it."""
        own = self._place.index
        others = self._others()
        while not self._is_over and self._succeeded < self._attempt.number:
            if charge == own:
                answers = await asyncio.gather(*(self._ask(index, "status", {}) for index in others))
                failed = any(self._ends.values()) or any(told.get("failed") is True for told in answers if told)
                if not failed and not any(told.get("running") is True for told in answers if told):
                    await self._tell_all("succeeded")
                    return False
            else:
                told = await self._ask(charge, "status", {})
                failed = told is not None and told.get("failed") is True
                if told is None and self._succeeded < self._attempt.number:
                    charge = await self._report_end()
            if failed:
                return True
            await self._until(
                lambda: self._is_over or self._succeeded >= self._attempt.number or any(self._ends.values()),
                2 * POLL_SECONDS if charge == own else LOST_SECONDS,
            )
        return self._succeeded < self._attempt.number

    async def _tell_all(self, what: str) -> None:
        """Send the others the message that they wait for: this worker may leave."""
        told = {"attempt": self._attempt.number}
        await asyncio.gather(*(self._ask(index, what, told) for index in self._others()))

    async def _hold(self) -> bool:
        """Keep the worker until it is released, its time is over, or its command is started again (True)."""
        seconds = float("inf") if self._debugging else self._settings.hold
        self._held = time.monotonic() + seconds
        self._notify()
        self._say(
            Message(
                "{worker} is kept: look with 'atlctl ps' and 'atlctl exec'; 'atlctl rerun' starts the command again, "
                "'atlctl release' lets the workers go",
                worker=self._place.name,
            )
        )
        while not self._released and self._next is None and (left := self._held - time.monotonic()) > 0:
            if self._debugging:  # by a `stop --keep` meanwhile
                self._held = left = float("inf")
            await self._until(self._woken, left if left != float("inf") else None)
        if self._next is None:
            self._held = None
        return self._next is not None

    def _woken(self) -> bool:
        """Whether something has changed for a held worker."""
        return self._released or self._next is not None or (self._debugging and self._held != float("inf"))

    # The verdict

    async def _judge(self) -> None:
        """After the first failure: let the others end, look at those that do not, and find the cause."""
        number = self._attempt.number
        first = next((index for index, code in self._ends.items() if code), self._place.index)
        settle = self._settings.settle
        if len(self._table) > 1:
            said = Message("{worker} failed; the others have {seconds:g} s to end")
            self._say(said.filled(worker=worker_name(first), seconds=settle))
        running = await self._settled()
        own = self._place.index
        await asyncio.gather(
            *(
                self._note_kernel(self._kernel_seen) if index == own else self._ask(index, "kernel", {})
                for index in running
            )
        )
        await self._publish()  # the commands below find the job by its record
        try:
            about = self._commands.of_job if self._joined else ["--from", self._folder]
            looks = [self._save("verdict.txt", ["errors", *about], VERDICT_SECONDS)]
            if running:
                chosen = ["-w", ",".join(map(str, running))]
                looks.append(self._save("stacks.txt", ["stacks", *self._commands.of_job, *chosen], STACKS_SECONDS))
            verdict = (await asyncio.gather(*looks))[0] or Message("no verdict")
            for line in verdict.splitlines():
                self._shout(line)
            self._notifier.send(FAILED_TITLE.filled(job=self._place.job, worker=worker_name(first)), verdict)
            await self._save("verdict.json", ["errors", *about, "-o", "json"], VERDICT_SECONDS)
            if running and self._settings.stops_others:
                names = fold_names(map(worker_name, running))
                self._say(Message("ending {workers}", workers=names))
                wanted = {"grace": 10.0, "keep": bool(self._settings.hold)}
                await asyncio.gather(
                    *(self._stop(wanted) if index == own else self._ask(index, "stop", wanted) for index in running)
                )
            checks = await self._tested() if self._settings.items != "none" else None
            if checks is not None and not checks:
                self._shout(Message("the checks pass; the cause is most likely in the training code"))
        finally:
            self._judged = number
            self._notify()
        await self._tell_all("judged")

    async def _settled(self) -> list[int]:
        """The workers whose command still runs after the time that they have."""
        deadline = time.monotonic() + self._settings.settle
        others = self._others()
        while True:
            answers = await asyncio.gather(*(self._ask(index, "status", {}) for index in others))
            running = [index for index, told in zip(others, answers, strict=True) if told and told.get("running")]
            if self._attempt.running:
                running.append(self._place.index)
            if not running or time.monotonic() > deadline:
                return sorted(running)
            await asyncio.sleep(2 * POLL_SECONDS)

    async def _save(self, name: str, words: Sequence[str], seconds: float) -> str | None:
        """The output of one of atlctl's commands on this job, which is also saved beside the evidence."""
        said = await self._commands.output(words, seconds)
        if said is not None:
            path, data = os.path.join(self._folder, name), said
            with contextlib.suppress(TimeoutError, AtlctlError):
                await apart(lambda: write_atomic(path, data.encode()), FOLDER_SECONDS)
        return said

    # The check

    async def _checked(self) -> str:
        """The smoke test of the job; returns why the command must not start, empty if it may."""
        if self._settings.items == "none" or not self._joined:
            return ""
        await self._publish()
        began = time.monotonic()
        found = await self._tested()
        if found is None:
            self._shout(Message("the check gave no result; the command starts all the same"))
            return ""
        bad = [fault.about for fault in found if fault.grave and fault.name in self._settings.block]
        for fault in found:
            self._shout(Message("check: {what}", what=fault.about))
        if not found:
            seconds, names = time.monotonic() - began, fold_names(map(worker_name, sorted(self._table)))
            self._say(Message("check: {workers} pass ({seconds:.0f} s)", workers=names, seconds=seconds))
        elif not bad:
            names = joined(sorted({fault.name for fault in found}), COMMA)
            self._say(Message("the command starts all the same: {checks} does not block", checks=names))
        return joined(bad) if bad else ""

    async def _tested(self) -> list[CheckFault] | None:
        return await self._commands.smoke(self._settings.items, self._settings.budget, CHECK_SECONDS)
