"""One stage of the smoke test: new rank processes on several workers, until all have ended.

Ranks get the meeting point only after they have started, so a rank that does not start does not block the others. A
stage continues while any rank reports progress; when all are silent, their stacks are read and they are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from atlctl.i18n import Message
from atlctl.jobs.fields import entries, items
from atlctl.smoke.ranks.members import Member
from atlctl.smoke.session import Session, words_of

Fields = dict[str, Any]

#: Timeouts in seconds without progress: ranks on CPUs; ranks on GPUs (creating contexts and NCCL takes longer); and the
#: zygote that forks ranks, which has done all imports but may share a busy machine with others.
IDLE, IDLE_GPU, FIRST = 4.0, 25.0, 30.0
#: Seconds between a rank's failure and the end of the other ranks, which may report related errors.
_AFTERMATH = 0.4
#: A rank that waits for a CPU for this share of the time is starved, not hung: it gets up to this many timeouts.
_STARVED, _MORE = 0.3, 4
#: Timeouts in seconds: the answer to a command; the end of killed ranks.
_ORDER, _GONE = 3.0, 5.0
_numbers = count()


@dataclass(slots=True)
class Track:
    """The events of one rank in one stage. `place`: its rank in the group. `exit`: how it ended; `look`: its stack and
    state when all were silent. `kind`: of its error, if known to the program. `killed`: by this client. `lost`: why its
    agent reports nothing more about it."""

    member: Member
    place: int = -1
    forked: bool = False
    up: bool = False
    step: str = ""
    steps: list[str] = field(default_factory=list)
    results: dict[str, Fields] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    told: dict[str, Fields] = field(default_factory=dict)
    error: str = ""
    kind: str = ""
    done: bool = False
    exit: Fields | None = None
    look: Fields | None = None
    killed: bool = False
    lost: str = ""

    @property
    def over(self) -> bool:
        return self.exit is not None or bool(self.lost)

    @property
    def failed(self) -> bool:
        """Whether it ended before it was done."""
        return self.over and not self.done

    def hear(self, event: Fields) -> None:
        """Process one event of this rank. Fields of a wrong type are ignored."""
        kind, step = event.get("ev"), str(event.get("step", ""))
        if kind == "forked":
            self.forked = True
        elif kind == "up":
            self.up = True
        elif kind == "step":
            self.step = step
            self.steps.append(step)
        elif kind == "result":
            self.results[step] = event
        elif kind == "skipped":
            self.skipped[step] = words_of(event.get("why"))
        elif kind == "error":
            self.error = words_of(event.get("error"), 700) or Message("it says that it failed")
            self.kind = words_of(event.get("kind"))
        elif kind == "done":
            self.done = True
        elif kind == "exit":
            self.exit = event
        elif isinstance(kind, str):
            self.told[kind] = event


@dataclass(slots=True)
class StageOutcome:
    """The result of a stage. `silent`: it was ended because no events came any more."""

    stage: str
    tracks: list[Track]
    silent: bool = False
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        return all(track.done for track in self.tracks)


class Stage:
    """Use: `await Stage(session, "ddp", members, 10.0).run()`. `together`: the ranks form a group; otherwise each runs
    alone, and all start together. `spec`: extra parameters for the ranks."""

    def __init__(
        self,
        session: Session,
        name: str,
        members: Sequence[Member],
        seconds: float,
        *,
        together: bool = True,
        spec: Mapping[str, Any] | None = None,
        idle: float | None = None,
        preferred: Mapping[str, str | None] | None = None,
    ) -> None:
        self._session = session
        self._name = name
        self._seconds = seconds * session.pace
        self._together = together
        self._spec = dict(spec or {})
        self._group = f"{name}-{next(_numbers)}"
        self._tracks = {member.number: Track(member) for member in members}
        on_gpus = any(member.gpu is not None for member in members)
        self._idle = (idle or (IDLE_GPU if on_gpus else IDLE) + len(members) / 20) * session.pace
        self._preferred = preferred or {}
        self._news = asyncio.Event()
        self._heard = time.monotonic()
        self._silent = False
        self._store: Fields | None = None

    async def run(self) -> StageOutcome:
        begun = time.monotonic()
        asking = [
            asyncio.create_task(self._ask(worker, [t for t in self._tracks.values() if t.member.worker == worker]))
            for worker in dict.fromkeys(track.member.worker for track in self._tracks.values())
        ]
        try:
            async with asyncio.timeout(self._seconds):
                await self._begin()
                await self._finish()
        except TimeoutError:
            self._silent = True
            await self._look()
        finally:
            self._kill()
            try:
                await asyncio.wait(asking, timeout=_GONE)
            finally:
                for task in asking:
                    task.cancel()
        return StageOutcome(self._name, list(self._tracks.values()), self._silent, round(time.monotonic() - begun, 3))

    # Events

    async def _ask(self, worker: str, tracks: list[Track]) -> None:
        ranks = [{**self._spec, "id": t.member.number, "gpu": t.member.gpu, "uuid": t.member.uuid} for t in tracks]
        command = {"cmd": "stage", "group": self._group, "stage": self._name, "limit": self._seconds + 2}
        command["ranks"] = ranks
        answers = await self._session.ask({worker: command}, self._seconds + _GONE, self._hear)
        for track in tracks:
            if not track.over:
                track.lost = answers[worker].problem or Message("its agent says nothing more")
        self._changed()

    def _hear(self, worker: str, event: Fields) -> None:
        number = event.get("rank")
        track = self._tracks.get(number) if isinstance(number, int) else None
        if track is None or track.member.worker != worker:
            return
        track.hear(event)
        if event.get("ev") == "store" and self._store is None:
            self._store = event
        self._changed()

    def _changed(self) -> None:
        self._heard = time.monotonic()
        self._news.set()

    # Commands

    async def _begin(self) -> None:
        """Release the ranks that have started: the first opens the store, then the others get its address."""
        tracks = list(self._tracks.values())
        await self._until(lambda: all(t.forked or t.over for t in tracks), FIRST * self._session.pace)
        self._silent = False
        await self._until(lambda: all(t.up or t.over for t in tracks), self._idle)
        there = [track for track in tracks if track.up and not track.over]
        missing = [track for track in tracks if not track.up and not track.over]
        if missing:
            await self._look(missing)
            self._kill(missing)
        self._silent = False
        if not self._together or not there:
            self._go(there, {})
            return
        for place, track in enumerate(there):
            track.place = place
        self._go(there[:1], {"lead": True, "world": len(there)})
        await self._until(lambda: self._store is not None or there[0].over, self._idle)
        if self._store is not None:
            pairs = [pair for pair in items(self._store.get("addresses")) if isinstance(pair, list) and len(pair) == 2]
            known = [self._preferred.get(there[0].member.worker), *(str(pair[1]) for pair in pairs)]
            store = {"port": self._store.get("port"), "addresses": list(dict.fromkeys(a for a in known if a))}
            self._go(there[1:], {"lead": False, "world": len(there), "store": store})

    def _go(self, tracks: list[Track], orders: Fields) -> None:
        by_worker: dict[str, Fields] = {}
        for track in tracks:
            own = {**orders, "rank": max(track.place, 0), "seconds": self._seconds}
            by_worker.setdefault(track.member.worker, {})[str(track.member.number)] = own
        commands = {
            worker: {"cmd": "stage_go", "group": self._group, "orders": orders, "ids": [int(n) for n in orders]}
            for worker, orders in by_worker.items()
        }
        self._session.tell(commands)

    async def _finish(self) -> None:
        """Wait until all ranks have ended, one has failed, or all are silent."""
        tracks = list(self._tracks.values())
        there = [track for track in tracks if track.up]

        def settled() -> bool:
            return all(t.over or t.done for t in there) or (self._together and any(t.failed for t in there))

        await self._until(settled, self._idle)
        if all(track.done or track.over for track in there):
            await self._until(lambda: all(track.over for track in there), 3.0)
        elif not self._silent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AFTERMATH):
                    await self._until(lambda: all(track.over for track in there), _AFTERMATH)
            await self._look()

    async def _until(self, reached: Any, idle: float) -> None:
        """Wait until `reached()`, or until `idle` seconds pass without an event. Starved ranks get more time."""
        begun = self._heard = time.monotonic()
        before: dict[int, Fields] = {}
        allowed = idle
        while not reached():
            self._news.clear()
            looked = bool(before)
            left = self._heard + (allowed if looked else allowed / 2) - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self._news.wait()
                    before, allowed = {}, idle
                    continue
            except TimeoutError:
                before_that, before = before, await self._look() or {-1: {}}
            if reached():
                return
            if looked and time.monotonic() - self._heard >= allowed:
                starved = _starved(before_that, before, allowed / 2)
                if not starved or time.monotonic() - begun > _MORE * idle:
                    self._silent = True
                    return
                allowed += idle

    async def _look(self, tracks: Sequence[Track] | None = None) -> dict[int, Fields]:
        """Ask for the stacks and states of ranks that are still running."""
        living = [t for t in (self._tracks.values() if tracks is None else tracks) if t.forked and not t.over]
        commands = self._commands("stage_stacks", living)
        if not commands:
            return {}
        found: dict[int, Fields] = {}
        for worker, answer in (await self._session.ask(commands, _ORDER)).items():
            for look in entries((answer.fields or {}).get("ranks")):
                number = look.get("rank")
                seen = self._tracks.get(number) if isinstance(number, int) else None
                if seen is not None and seen.member.worker == worker:
                    seen.look = found[seen.member.number] = look
        return found

    def _kill(self, tracks: Sequence[Track] | None = None) -> None:
        living = [track for track in (self._tracks.values() if tracks is None else tracks) if not track.over]
        for track in living:
            track.killed = True
        self._session.tell(self._commands("stage_kill", living))

    def _commands(self, name: str, tracks: Sequence[Track]) -> dict[str, Fields]:
        """A command about these ranks for each of their workers."""
        commands: dict[str, Fields] = {}
        for track in tracks:
            new = {"cmd": name, "group": self._group, "ids": list[int]()}
            commands.setdefault(track.member.worker, new)["ids"].append(track.member.number)
        return commands


def _starved(before: Mapping[int, Fields], now: Mapping[int, Fields], seconds: float) -> bool:
    """Whether a rank was ready to run but got no CPU for a large part of the `seconds` between two looks."""
    for number, look in now.items():
        waited, first = look.get("starved"), before.get(number, {}).get("starved")
        if isinstance(waited, float) and isinstance(first, float) and waited - first > _STARVED * seconds:
            return True
    return False
