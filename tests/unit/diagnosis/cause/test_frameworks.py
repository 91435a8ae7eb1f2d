"""Lightning's and Ray Train's own launchers. The lines are those of real runs (Lightning 2.6, Ray 2.60), shortened;
those of Ray 2.40 are made from its source."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Diagnosis, Verdict

from .logs import Log, culprit, diagnosed

GONE = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9393."
CHILD = (
    "[rank: 1] Child process with PID 6373 terminated with code {code}. Forcefully terminating all other processes to "
    "avoid zombies 🧟"
)
MEMBERS = [f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/2" for rank in range(2)]


def plain(*lines: str) -> Diagnosis:
    return diagnosed(Log(0, stamped=False).say(0, *lines))


@pytest.mark.parametrize(
    ("code", "category", "sure"),
    [(-9, "killed", "certain"), (4, "explicit_exit", "likely"), (-11, "native_crash", "certain")],
)
def test_lightning_names_the_child_that_ended(code: int, category: str, sure: str) -> None:
    found = plain(*MEMBERS, "Epoch 0/0 3/8", CHILD.format(code=code))
    assert culprit(found) == ("rank", "worker-0", 1, sure)
    (cause,) = found.root_causes
    assert (cause.rank, cause.category, cause.exit_code) == (1, category, code)
    assert plain(*MEMBERS, "Epoch 0/0 3/8").verdict is Verdict.NONE


def test_lightnings_ranks_of_another_node() -> None:
    """The number in the report is that of the process on its node."""
    members = [f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4" for rank in (3, 2)]
    (cause,) = plain(*members, CHILD.format(code=-9)).root_causes
    assert (cause.rank, cause.local_rank) == (3, 1)


def test_who_is_a_member_is_known_of_a_lightning_job() -> None:
    """With all ranks heard, the one that failed by itself is certain."""
    trace = ["[rank1]: Traceback (most recent call last):", '[rank1]:   File "/job/t.py", line 13, in training_step']
    lost = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/t.py", line 9, in f',
        f"[rank0]: {GONE}",
    ]
    lines = [*trace, "[rank1]: ValueError: shard 3: bad magic", *lost]
    assert culprit(plain(*MEMBERS, *lines))[3] == "certain"
    assert culprit(plain(*lines))[3] == "likely"


TRAIN, WORKER = "(TrainController pid=7064) ", "(RayTrainWorker pid={pid}) "
STARTED = [
    TRAIN + "Started training worker group of size 3: ",
    *(f"{TRAIN}- (ip=192.0.2.2, pid={pid}) world_rank={rank}, local_rank={rank}, node_rank=0"
      for rank, pid in enumerate((7236, 7209, 7262))),
]  # fmt: skip


def trace(error: str, line: int = 13) -> list[str]:
    return ["Traceback (most recent call last):", f'  File "/job/r.py", line {line}, in loop', "    step()", error]


def by(pid: int, *lines: str) -> list[str]:
    return [WORKER.format(pid=pid) + line for line in ("Error in training function:", *lines, "")]


#: Ray leaves out lines that another process has printed, and prints how many later.
SHORTENED = by(7236, "    dist.all_reduce(t)", "    ^^^^^", "    work.wait()", GONE)
COPIES = [
    f"{TRAIN}ValueError: shard 3: bad magic [repeated 2x across cluster]",
    f"{WORKER.format(pid=7262)}Traceback (most recent call last): [repeated 4x across cluster]",
    f"{WORKER.format(pid=7262)}ValueError: shard 3: bad magic [repeated 2x across cluster]",
]


def group(*errors: tuple[str, list[str]]) -> list[str]:
    """The error of the group, as the controller and the driver print it."""
    parts = [line for ranks, lines in errors for line in (f"[Rank {ranks} Error Snippet]:", *lines)]
    head = "ray.train.WorkerGroupError: Training failed due to worker errors:"
    fit = ["Traceback (most recent call last):", '  File "/job/r.py", line 18, in <module>', "    trainer.fit()"]
    return [*(TRAIN + line for line in (head, *parts, "")), *fit, head, *parts, ""]


#: A process that was killed, or left without an exception.
DEAD = [
    "A worker health check failed.",
    "Worker info: Worker(",
    "    pid=7209,",
    "  distributed_context=DistributedContext(world_rank=1, world_size=3, local_rank=1, local_world_size=3),",
    ")",
    "The actor died unexpectedly before finishing this task.",
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: ...",
]
SHUTDOWN = [TRAIN + line for line in (
    "Graceful shutdown of backend failed. This is expected if one of the workers has crashed.",
    "Traceback (most recent call last):", '  File "/x/ray/_private/worker.py", line 1055, in get_objects',
    "    raise value", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
)]  # fmt: skip


def test_a_line_of_a_ray_worker_is_the_ranks_whose_pid_it_has() -> None:
    own = by(7209, *trace("ValueError: shard 3: bad magic"))
    found = plain(*STARTED, *own, *group(("1", trace("ValueError: shard 3: bad magic"))), *SHORTENED, *COPIES)
    assert culprit(found)[:2] == ("rank", "worker-0")
    (cause,) = found.root_causes
    assert (cause.rank, cause.message, cause.confidence) == (1, "ValueError: shard 3: bad magic", "certain")
    assert {end.rank: end.part for end in found.ranks}[0] == "victim"
    without = plain(*own, *SHORTENED)
    assert all(cause.rank is None for cause in (*without.root_causes, *without.candidates))


def test_a_ray_worker_of_another_node_may_have_the_same_pid() -> None:
    ranks = [f"{TRAIN}- (node_id=e{rank}, ip=10.0.0.{rank}, pid=55) world_rank={rank}, local_rank=0, node_rank={rank}"
             for rank in range(2)]  # fmt: skip
    lines = [f"(RayTrainWorker pid=55, ip=10.0.0.1) {line}" for line in trace("KeyError: 'labels'")]
    (cause,) = plain(*ranks, *lines).root_causes
    assert (cause.rank, cause.local_rank) == (1, None)


def test_an_error_that_ray_quotes_is_that_of_the_rank_above_it() -> None:
    """Of several ranks, if they failed alike; the launcher's own traceback is nobody's."""
    found = plain(*STARTED, *group(("0,2", trace(GONE, 16)), ("1", DEAD)), *SHUTDOWN)
    (cause,) = found.root_causes
    assert (cause.rank, cause.category, cause.exit_code) == (1, "unknown_python_exit", None)
    assert [end.rank for end in found.ranks if end.part == "victim"] == [0, 2]
    reversed_ = plain(*STARTED, *group(("1", DEAD), ("0,2", trace(GONE, 16))), *SHUTDOWN)
    assert [cause.rank for cause in reversed_.root_causes] == [1]
    (without,) = plain(*STARTED, *group(("0,2", trace(GONE, 16)))).root_causes
    assert (without.rank, without.category, without.confidence) == (1, "unknown_python_exit", "likely")


def test_a_quoted_error_that_was_shortened_keeps_its_end() -> None:
    """Ray keeps the first and the last 500 characters."""
    cut = ["Traceback (most recent call last):", '  File "/job/r.py", line 13, in loop', "    ste...",
           "... (Output truncated. See individual worker logs for full details) ...", 'ages/x.py", line 3, in f',
           '  File "/job/r.py", line 7, in read', "ValueError: shard 3: bad magic"]  # fmt: skip
    (cause,) = plain(*STARTED, *group(("1", cut))).root_causes
    assert (cause.rank, cause.message) == (1, "ValueError: shard 3: bad magic")


def test_a_chain_of_exceptions_that_ray_quotes_is_one() -> None:
    chain = [*trace("KeyError: 'x'"), "", "The above exception was the direct cause of the following exception:", "",
             *trace("RuntimeError: no schedule")]  # fmt: skip
    (cause,) = plain(*STARTED, *group(("1", chain))).root_causes
    assert (cause.rank, cause.message) == (1, "RuntimeError: no schedule")


def test_before_its_second_version_ray_train_names_a_dead_worker() -> None:
    """Made from the source of `ray.train._internal`."""
    ranks = [f"(TorchTrainer pid=287) - (node_id=e0, ip=10.0.0.2, pid={364 + rank}) world_rank={rank}, local_rank=0"
             for rank in range(2)]  # fmt: skip
    lost = [f"(RayTrainWorker pid=364) {line}" for line in trace(GONE)]
    found = plain(*ranks, *lost, "2026-11-27 01:09:10,000\tINFO utils.py:60 -- Worker 1 has failed.")
    assert [cause.rank for cause in found.root_causes] == [1]
