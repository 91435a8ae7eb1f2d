"""Who dies when: a small discrete-event simulation of watchdogs, agents, the store and NCCL's connections.

A scenario says which ranks wait in which collective and what happens to the culprit; the rest follows:

- a rank that waits longer than the timeout is ended by its own watchdog, as in the version at hand;
- a rank that ends closes its connections; its peers on other workers hear of it, soon over sockets, later over RDMA,
  and are ended by their watchdogs for that. Peers on the same worker hear nothing;
- an agent that finds a failed process ends its other processes, prints its summary and leaves. It never tells the
  other agents, but with the c10d rendezvous they die when the agent that keeps the store has left;
- exit code 0 is no failure to an agent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.corpus.scale import agent, nccl
from tests.corpus.scale.agent import Failed
from tests.corpus.scale.job import Job, Rank, Worker
from tests.corpus.scale.log import SECOND
from tests.corpus.scale.nccl import Group, Work


@dataclass(slots=True)
class _Process:
    """`waiting`: it is in `work`; else that has its counters alone. `doomed`: its watchdog has found a failure.

    `ends_at`: it is in abort(), no signal comes before that. `error`: text of its error file, written at `error_at`.
    `stubborn`: SIGTERM does nothing to it.
    """

    rank: Rank
    work: Work | None = None
    waiting: bool = False
    alive: bool = True
    doomed: bool = False
    ends_at: int | None = None
    code: int | None = None
    error: str = ""
    error_at: int = 0
    dumped: bool = False
    stubborn: bool = False


@dataclass(slots=True)
class _Agent:
    worker: Worker
    running: bool = True
    closing: bool = False
    joining: bool = False
    restarts_left: int = 0
    failures: list[Failed] = field(default_factory=list)


class Simulation:
    """One round of the job, up to the end of all agents. Times are true times in ns."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rng = job.rng
        self.processes = [_Process(rank) for rank in job.ranks]
        self.agents = {worker.index: _Agent(worker) for worker in job.workers}
        self.exit_codes = {worker.name: 0 for worker in job.workers}
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._dump_origin: int | None = None
        self._closed = False
        self._store_gone: int | None = None

    # What a scenario sets up.

    def at(self, moment: int, what: Callable[..., None], *given: object) -> None:
        """Calls `what(*given, moment)`, in the order of time."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, what, given))

    def wait(self, rank: Rank, work: Work) -> None:
        """The rank waits in this collective from `work.since` on, and its watchdog sees to it."""
        process = self._process(rank)
        process.work, process.waiting = work, True
        late = work.since + self.job.timeout * SECOND + self.rng.randrange(SECOND * 3 // 20)
        self.at(late, self._time_out, rank)

    def counters(self, rank: Rank, work: Work) -> None:
        """The rank is in no collective; `work` has its counters for the dump signal."""
        self._process(rank).work = work

    def end(self, rank: Rank, code: int, moment: int) -> None:
        """The process ends by itself, or by a signal that does not come from its agent."""
        process = self._process(rank)
        self.at(moment, self._end, process, code)

    def fail(self, rank: Rank, moment: int, error: str) -> None:
        """An uncaught exception was printed at `moment`; the process is gone a second later. `error`: its traceback."""
        process = self._process(rank)
        process.error, process.error_at = error if self.job.record else "", moment
        self.end(rank, 1, moment + self.job.seconds(0.6, 1.6))

    def abort(self, rank: Rank, moment: int) -> None:
        """The process has printed its last words and is ended by SIGABRT a little later."""
        process = self._process(rank)
        process.doomed, process.ends_at = True, moment + self.job.seconds(0.2, 0.7)
        self.end(rank, -6, process.ends_at)

    def ignore_signals(self, rank: Rank) -> None:
        """Only SIGKILL ends this process, as where it is stuck in a driver."""
        self._process(rank).stubborn = True

    def is_alive(self, rank: Rank) -> bool:
        """At the moment that the simulation has come to."""
        return self._process(rank).alive

    def grant_restarts(self, left: int, spent_by: Worker) -> None:
        """Every agent may restart `left` times, but not this one."""
        for keeper in self.agents.values():
            keeper.restarts_left = 0 if keeper.worker is spent_by else left

    def terminate(self, worker: Worker, moment: int) -> None:
        """SIGTERM from outside to the worker's agent."""
        self.at(moment, self._terminate, self.agents[worker.index])

    def lose(self, worker: Worker, moment: int, quietly: bool) -> None:
        """The whole worker is gone. `quietly`: its connections stay open, as when a machine loses power."""
        self.at(moment, self._lose, self.agents[worker.index], quietly)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            moment, _, what, given = heapq.heappop(self._events)
            what(*given, moment)

    # Processes.

    def _process(self, rank: Rank) -> _Process:
        return self.processes[rank.number]

    def _end(self, process: _Process, code: int, moment: int, quietly: bool = False) -> None:
        if not process.alive:
            return
        process.alive, process.code = False, code
        keeper = self.agents[process.rank.worker.index]
        if code and keeper.running and not keeper.closing:
            span = max(0.01, self.job.profile.agent.interval)
            self.at(moment + self.job.seconds(0.005, span), self._notice, keeper)
        if quietly:
            return
        if self.job.nccl_debug == "INFO":
            for near in self._alive(keeper):
                text = f"[Service thread] Connection closed by localRank {process.rank.local}"
                nccl.info(near.rank, moment + 3_000_000, text, 880)
        for peer in self.job.neighbours(process.rank):
            if self._process(peer).alive and peer.worker is not process.rank.worker:
                self._tell(peer, process.rank, moment)

    def _tell(self, rank: Rank, peer: Rank, moment: int) -> None:
        """`peer` has closed its connections to `rank`."""
        if self.job.network == "socket":
            delay = self.job.seconds(0.01, 0.4)
        elif (rank.worker.node_rank + 1) % len(self.job.workers) == peer.worker.node_rank:
            delay = self.job.seconds(6, 20)  # only one who sends notices, after the card's retries
        else:
            return
        self.at(moment + delay, self._peer_lost, rank, peer)

    def _peer_lost(self, rank: Rank, peer: Rank, moment: int) -> None:
        process = self._process(rank)
        work = process.work
        if not process.alive or process.doomed or work is None or not process.waiting:
            return
        process.doomed = True
        generic = self.rng.random() < 0.4
        nccl.warn_closed(self.job, rank, peer, moment, generic)
        self.at(moment + self.job.seconds(0.01, 0.1), self._raise, process, work, peer, generic)

    def _raise(self, process: _Process, work: Work, peer: Rank, generic: bool, moment: int) -> None:
        """The watchdog asks NCCL and is told that `peer` is gone."""
        if not process.alive:
            return
        rank, lines = process.rank, self.job.profile.watchdog
        exception = nccl.remote_error(self.job, rank, peer, generic)
        if lines.rethrown:
            exception += nccl.raised_from(
                self.job,
                rank,
                "checkForNCCLErrorsInternal",
                lines.checked,
                "c10d::ProcessGroupNCCL::checkForNCCLErrorsInternal(std::shared_ptr<c10d::NCCLComm>&)",
                "c10d::ProcessGroupNCCL::WorkNCCL::checkAndSetException()",
            )
        if lines.raised:
            text = f"[Rank {work.group.rank}] Collective {work}, Timeout(ms)={self.job.timeout * 1000})"
            text += f" raised the following async exception: {exception}"
            rank.add(moment, nccl.cpp(self.job, rank, moment, lines.raised, text))
        self._fail(process, work, moment + 2_000_000, exception, timed_out=False)

    def _time_out(self, rank: Rank, moment: int) -> None:
        process = self._process(rank)
        work = process.work
        if not process.alive or process.doomed or work is None:
            return
        process.doomed = True
        exception = nccl.caught(self.job, work, (moment - work.since) // 1_000_000)
        lines = self.job.profile.watchdog
        rank.add(moment, nccl.cpp(self.job, rank, moment, lines.caught, exception))
        if lines.rethrown:
            duration = "std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >"
            function = f"c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout({duration})"
            exception += nccl.raised_from(self.job, rank, "checkTimeout", lines.thrown, function)
        self._fail(process, work, moment + self.job.seconds(0.0005, 0.003), exception, timed_out=True)

    def _fail(self, process: _Process, work: Work, moment: int, exception: str, timed_out: bool) -> None:
        """The watchdog prints counters, signals a dump, waits and ends the process."""
        rank = process.rank
        nccl.detected(self.job, rank, work, moment, timed_out)
        if not timed_out:
            nccl.warn_service(self.job, rank, moment + 1_000_000)
        down = moment + self.job.seconds(0.002, 0.01)
        if self.job.profile.watchdog.received:
            self._dump(process, None, moment + 2_000_000)
            down = moment + self.job.seconds(0.3, 0.9)
        down += int(self.job.profile.dump_wait * SECOND)
        self.at(down, self._take_down, process, work.group, exception)
        if self._dump_origin is None and self.job.profile.watchdog.received:
            self._dump_origin = rank.number
            for other in self.processes:
                if other is not process:
                    self.at(moment + self.job.seconds(0.05, 1.1), self._dump, other, rank.number)

    def _dump(self, process: _Process, origin: int | None, moment: int) -> None:
        if process.alive and not process.dumped and self._store_gone is None:
            process.dumped = True
            if process.work is not None and process.work.group.number == 0:
                default = process.work
            else:
                default = Work(Group(process.rank.number), 12, "BROADCAST", (1, 1), 12, 12, 0)
            nccl.dump_signal(self.job, process.rank, default, moment, origin)

    def _take_down(self, process: _Process, group: Group, exception: str, moment: int) -> None:
        if process.alive:
            nccl.take_down(self.job, process.rank, group, moment, exception)
            process.ends_at = moment + self.job.seconds(0.25, 1.2)
            self.at(process.ends_at, self._end, process, -6)

    # Agents.

    def _alive(self, keeper: _Agent) -> list[_Process]:
        return [self._process(rank) for rank in self.job.of(keeper.worker) if self._process(rank).alive]

    def _kill_all(self, alive: list[_Process], moment: int) -> int:
        """SIGTERM to all; when the last one has ended."""
        last = moment
        for process in alive:
            at = process.ends_at
            if at is None and process.stubborn:
                at = moment + 30 * SECOND
                agent.force(self.job, process.rank, at)
                self.at(at, self._end, process, -9)
            elif at is None:
                at = moment + self.job.seconds(0.02, 0.6)
                self.at(at, self._end, process, -15)
            last = max(last, at)
        return last + 5_000_000

    def _notice(self, keeper: _Agent, moment: int) -> None:
        """The agent looks at its processes and finds that one has failed."""
        if not keeper.running or keeper.closing:
            return
        keeper.closing = True
        alive = self._alive(keeper)
        seen = [it for it in map(self._process, self.job.of(keeper.worker)) if not it.alive and it.code]
        keeper.failures = [_failed(process, moment) for process in seen]
        agent.close(self.job, keeper.worker, moment, [process.rank for process in alive])
        closed = self._kill_all(alive, moment)
        self.at(closed, self._summarise, keeper, alive)

    def _summarise(self, keeper: _Agent, ended: list[_Process], moment: int) -> None:
        if not keeper.running:
            return
        job = self.job
        if job.profile.agent.lists_all:
            keeper.failures += [_failed(process, moment) for process in ended if process.code]
        agent.failed(job, keeper.worker, moment, keeper.failures)
        if keeper.restarts_left and not self._closed:
            agent.will_restart(job, keeper.worker, moment, keeper.restarts_left)
            keeper.restarts_left -= 1
            keeper.joining = True
            return
        last = moment + job.seconds(0.01, 0.05)
        if keeper.restarts_left:
            agent.rendezvous_closed(job, keeper.worker, last)
        else:
            if self._store_gone is not None and job.rendezvous == "c10d":
                agent.shutdown_failed(job, keeper.worker, moment + 4_000_000)
            agent.summary(job, keeper.worker, last, keeper.failures)
        self._leave(keeper, 1, last)

    def _leave(self, keeper: _Agent, code: int, moment: int) -> None:
        """The agent has left, and with it the store if it keeps that."""
        keeper.running = False
        self.exit_codes[keeper.worker.name] = code
        if code != -9:
            self._close_rendezvous(moment)
        if keeper.worker is not self.job.store_host or self._store_gone is not None:
            return
        self._store_gone = moment
        for other in self.agents.values():
            if other.running and self.job.rendezvous == "c10d":
                late = self.job.seconds(0.005, max(0.15, self.job.profile.agent.interval))
                self.at(moment + late, self._lose_store, other)
        for process in self.processes:
            if process.alive:
                self.at(moment + self.job.seconds(0.05, 1.1), self._miss_store, process)

    def _close_rendezvous(self, moment: int) -> None:
        if self._closed:
            return
        self._closed = True
        for other in self.agents.values():
            if other.joining:
                self.at(moment + self.job.seconds(0.1, 1.2), self._find_closed, other)

    def _find_closed(self, keeper: _Agent, moment: int) -> None:
        if keeper.running:
            agent.rendezvous_closed(self.job, keeper.worker, moment)
            self._leave(keeper, 1, moment)

    def _lose_store(self, keeper: _Agent, moment: int) -> None:
        """An agent looks at its processes before it asks the store: one that has failed comes first."""
        failed = any(self._process(rank).code for rank in self.job.of(keeper.worker))
        if not keeper.running or ((failed or keeper.closing) and not keeper.joining):
            return
        alive = [] if keeper.joining else self._alive(keeper)
        keeper.closing = True
        ended = self._kill_all(alive, moment) + 20_000_000
        agent.store_lost(self.job, keeper.worker, moment, [p.rank for p in alive], ended, keeper.joining, again=True)
        self.at(ended, self._leave, keeper, 1)

    def _miss_store(self, process: _Process, moment: int) -> None:
        if process.alive and not process.doomed:
            nccl.store_gone(self.job, process.rank, moment)

    def _terminate(self, keeper: _Agent, moment: int) -> None:
        if not keeper.running or keeper.closing:
            return
        keeper.closing = True
        alive = self._alive(keeper)
        ended = self._kill_all(alive, moment) + 20_000_000
        agent.signalled(self.job, keeper.worker, moment, [p.rank for p in alive], ended)
        self.at(ended, self._leave, keeper, 1)

    def _lose(self, keeper: _Agent, quietly: bool, moment: int) -> None:
        keeper.closing = True
        keeper.worker.log.cut(moment)
        for process in self._alive(keeper):
            self._end(process, -9, moment, quietly)
        self._leave(keeper, -9, moment)


def _failed(process: _Process, noticed: int) -> Failed:
    """With an error file the time is the exception's, else that of the agent's look."""
    return Failed(process.rank, process.code or 0, process.error_at if process.error else noticed, process.error)
