"""Cases without one culprit process: whole workers, the whole job, several culprits, restarts, good runs, no answer."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.corpus.scale import agent, nccl, user
from tests.corpus.scale.job import Job, Rank, Worker, build
from tests.corpus.scale.log import SECOND
from tests.corpus.scale.opening import Opening, Size, anyone, begin, behind, default_work, start_containers, train
from tests.corpus.scale.scenarios import Outcome, crash, finish, kill, not_destroyed, place, stall, throw
from tests.corpus.scale.simulation import Simulation


def _action(do: str, worker: Worker, moment: int) -> dict[str, Any]:
    return {"do": do, "node": worker.name, "time": moment / SECOND}


def worker_lost(rng: Random, size: Size) -> Outcome:
    """A whole worker is gone: at once with its connections, or like a machine without power, in silence."""
    opening = begin(rng, size)
    job, simulation = opening.job, Simulation(opening.job)
    quietly = rng.random() < 0.5
    worker = anyone(opening, {job.store_host.name} if quietly else ()).worker
    stall(opening, simulation, {rank.number for rank in job.of(worker)})
    simulation.lose(worker, opening.moment, quietly)
    simulation.run()
    truth = {"kind": "node", "category": "node_lost", "node": worker.name}
    actions = [_action("kill", worker, opening.moment)]
    return Outcome(job, truth, simulation.exit_codes, {worker.name}, actions=actions)


def worker_evicted(rng: Random, size: Size) -> Outcome:
    """SIGTERM to one worker's torchrun."""
    opening = begin(rng, size)
    job, simulation, worker = opening.job, Simulation(opening.job), anyone(opening).worker
    stall(opening, simulation, set())
    simulation.terminate(worker, opening.moment + SECOND // 5)
    simulation.run()
    truth = {"kind": "node", "category": "preemption", "node": worker.name}
    actions = [_action("terminate", worker, opening.moment + SECOND // 5)]
    return Outcome(job, truth, simulation.exit_codes, {worker.name}, actions=actions)


def all_terminated(rng: Random, size: Size) -> Outcome:
    """SIGTERM to every torchrun, as when the job is deleted."""
    opening = begin(rng, size)
    job, simulation = opening.job, Simulation(opening.job)
    stall(opening, simulation, set())
    actions = []
    for worker in job.workers:
        moment = opening.moment + job.seconds(0, 0.3)
        simulation.terminate(worker, moment)
        actions.append(_action("terminate", worker, moment))
    simulation.run()
    return Outcome(job, {"kind": "external", "category": "preemption"}, simulation.exit_codes, actions=actions)


def import_error(rng: Random, size: Size) -> Outcome:
    """The same package is missing for every rank, before the process group exists."""
    opening = _untrained(rng, size)
    job, simulation = opening.job, Simulation(opening.job)
    last = "ModuleNotFoundError: No module named 'flash_attn_3'"
    frames = [
        user.Frame(f"/workspace/{job.script}", 11, "<module>", "from model.attention import FlashAttention"),
        user.Frame("/workspace/model/attention.py", 4, "<module>", "import flash_attn_3"),
    ]
    lines = user.traceback_text(frames, last, job.profile.carets).split("\n")
    loaded = opening.moment + job.seconds(5, 9)
    for rank in job.ranks:
        moment = loaded + job.seconds(0, 0.3)
        for number, line in enumerate(lines):  # eight processes write at once: line by line, not as one piece
            rank.add(moment + number * 60_000, line)
        simulation.end(rank, 1, moment + job.seconds(0.1, 0.3))
    simulation.run()
    return Outcome(job, {"kind": "job", "category": "import_error"}, simulation.exit_codes)


def _unstarted(rng: Random, size: Size) -> Job:
    return build(rng, size.workers, size.processes, rendezvous="c10d")


def _untrained(rng: Random, size: Size) -> Opening:
    """A job whose workers have joined and have made no step."""
    job = _unstarted(rng, size)
    joined = start_containers(job)
    for worker in job.workers:
        agent.rendezvous_complete(job, worker, joined + job.seconds(0, 0.4))
    return Opening(job, joined, 0, 1.0)


def never_joined(rng: Random, size: Size) -> Outcome:
    """One worker never comes; the others wait for it until the rendezvous' own timeout."""
    job = _unstarted(rng, size)
    missing = rng.choice([worker for worker in job.workers if worker is not job.store_host])
    limit = 600 * SECOND
    deadlines: dict[str, int] = {}
    for worker in job.workers:
        if worker is not missing:
            moment = job.begin + job.seconds(0, 6)
            agent.banner(job, worker, moment)
            deadlines[worker.name] = moment + limit + job.seconds(0.5, 1.5)
    store_ends = deadlines[job.store_host.name]
    for worker in job.workers:
        if worker is missing:
            continue
        if deadlines[worker.name] <= store_ends:
            agent.rendezvous_timeout(job, worker, deadlines[worker.name])
        else:
            found = store_ends + job.seconds(0.05, 1.2)
            agent.store_lost(job, worker, found, [], found + 30_000_000, joining=True)
    truth = {"kind": "missing_node", "category": "rendezvous_timeout", "node": missing.name}
    codes = dict.fromkeys(deadlines, 1)
    return Outcome(job, truth, codes, absent={missing.name})


def two_culprits(rng: Random, size: Size) -> Outcome:
    """Two independent exceptions on two workers within 50 ms; no clock tells which was first."""
    opening = begin(rng, size)
    job, simulation, first = opening.job, Simulation(opening.job), anyone(opening)
    second = anyone(opening, {first.worker.name})
    stall(opening, simulation, {first.number, second.number})
    places = []
    for rank in (first, second):
        moment = opening.moment + job.seconds(0, 0.05)
        throw(opening, simulation, rank, moment)
        places.append(place(rank, moment))
    simulation.run()
    truth = {"kind": "ranks", "category": "python_exception", "any_of": places}
    return Outcome(job, truth, simulation.exit_codes, {first.worker.name, second.worker.name})


def straggler(rng: Random, size: Size) -> Outcome:
    """A collective that everybody is in does not end: equal counters, nobody is missing. No log tells why."""
    opening = begin(rng, size)
    job, simulation = opening.job, Simulation(opening.job)
    for rank in job.ranks:
        simulation.wait(rank, default_work(opening, rank, opening.moment + job.seconds(0, 0.08)))
    simulation.run()
    return Outcome(job, {"kind": "undecided", "category": "nccl_timeout"}, simulation.exit_codes)


def culprit_unseen(rng: Random, size: Size) -> Outcome:
    """A hang on a worker whose log is lost with two others: those that are left do not decide it."""
    opening = begin(rng, size)
    job, simulation, culprit = opening.job, Simulation(opening.job), anyone(opening)
    stall(opening, simulation, {culprit.number})
    simulation.counters(culprit, behind(opening, culprit))
    simulation.run()
    rest = [worker.name for worker in job.workers if worker is not culprit.worker]
    unseen = {culprit.worker.name, *rng.sample(rest, min(2, len(rest) - 1))}
    truth = {
        "kind": "undecided",
        "category": "hang",
        "also_right": [{"verdict": "worker", "node": name} for name in sorted(unseen)],
    }
    return Outcome(job, truth, simulation.exit_codes, unseen=unseen)


def _fail_and_restart(opening: Opening) -> Rank:
    """An exception in attempt 0; all workers start anew and train on. The rank that failed."""
    job, first = opening.job, anyone(opening)
    moment, worker = opening.moment, first.worker
    throw(opening, Simulation(job), first, moment)
    noticed = moment + job.seconds(1.0, 1.6)
    agent.close(job, worker, noticed, [rank for rank in job.of(worker) if rank is not first])
    for peer in job.neighbours(first):
        nccl.warn_closed(job, peer, first, noticed + job.seconds(0.01, 0.2), generic=False)
    closed = noticed + job.seconds(0.3, 0.7)
    agent.failed(job, worker, closed, [agent.Failed(first, 1, noticed)])
    agent.will_restart(job, worker, closed, 1)
    for other in job.workers:
        if other is not worker:
            agent.close(job, other, closed + job.seconds(0.3, 0.9 + job.profile.agent.interval), job.of(other))
    job.renew_processes(job.ranks[0].pid + 3 * job.processes)
    train(opening, closed + job.seconds(6, 9), attempt=1)
    return first


def restart_then_failure(rng: Random, size: Size) -> Outcome:
    """An exception in attempt 0; in attempt 1, the last of that worker, something else on the same worker."""
    opening = begin(rng, size, rendezvous="c10d", restarts=1)
    first = _fail_and_restart(opening)
    job, simulation = opening.job, Simulation(opening.job)
    culprit = rng.choice([rank for rank in job.of(first.worker) if rank is not first])
    simulation.grant_restarts(1, spent_by=first.worker)
    stall(opening, simulation, {culprit.number})
    if rng.random() < 0.5:
        kill(opening, simulation, culprit)
        return finish(opening, simulation, culprit, "killed", attempt=1)
    crash(opening, simulation, culprit)
    return finish(opening, simulation, culprit, "cuda_illegal_memory_access", attempt=1)


def restart_recovers(rng: Random, size: Size) -> Outcome:
    """An exception in attempt 0; attempt 1 goes on to the end."""
    opening = begin(rng, size, rendezvous="c10d", restarts=1)
    _fail_and_restart(opening)
    _end_well(opening)
    codes = {worker.name: 0 for worker in opening.job.workers}
    return Outcome(opening.job, {"kind": "none", "category": "success_after_restart"}, codes)


def success(rng: Random, size: Size) -> Outcome:
    """A good run with warnings that look bad."""
    opening = begin(rng, size)
    job = opening.job
    user.noise(job, job.begin + 30 * SECOND, opening.moment)
    _end_well(opening)
    return Outcome(job, {"kind": "none", "category": "success"}, {worker.name: 0 for worker in job.workers})


def _end_well(opening: Opening) -> None:
    """Last words of a good run, with what processes say on leaving without much care."""
    job, moment = opening.job, opening.moment
    for rank in job.ranks:
        if rank.number == 0:
            rank.add(moment, f"training finished after {opening.step} steps, final checkpoint in /checkpoints/final")
        if job.rng.random() < 0.2:
            not_destroyed(job, rank, moment + job.seconds(0.5, 1.5))
        if rank.worker is not job.store_host and job.rng.random() < 0.1:
            nccl.store_gone(job, rank, moment + job.seconds(1.6, 2.5))
