"""Failures that torch raises on several ranks, and whose message says whose they are. The lines are those of real runs
(torch 2.13, two workers of two ranks), shortened."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import OWN, SITE, WAITED, Log, closed_by, culprit, diagnosed

CHECKPOINT = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys({ranks})"
FULL = "OSError: [Errno 28] No space left on device: 'ckpt/__2_0.distcp'"
DENIED = "PermissionError: [Errno 13] Permission denied: 'ckpt/x'"


def checkpoint(errors: Mapping[int, str]) -> str:
    """The message of torch.distributed.checkpoint for the errors of these ranks."""
    lines = [CHECKPOINT.format(ranks=list(errors))]
    for rank, error in errors.items():
        lines += [
            f"Traceback (most recent call last): (RANK {rank})",
            f'  File "{SITE}/checkpoint/utils.py", line 241, in all_reduce',
            "    local_data = map_fun()",
            f'  File "/job/writer.py", line {100 + rank}, in write',
            "    file.write(data)",
            error,
        ]
    return "\n".join([*lines, ""])


def job(errors: Mapping[int, str], but: frozenset[int] = frozenset()) -> list[Log]:
    """All ranks raise the exceptions; those in `but` are ended before."""
    logs = []
    for index in (0, 1):
        log = Log(index).start()
        for local, rank in enumerate(log.ranks):
            if rank not in but:
                log.trace(1, local, checkpoint(errors))
        ended = [local for local, rank in enumerate(log.ranks) if rank in but]
        logs.append(log.ended(1.2, 1 - ended[0] if ended else 0, closed=ended or (1,)))
    return logs


def test_the_rank_whose_exception_a_checkpoint_raises_on_all() -> None:
    found = diagnosed(*job({2: FULL}))
    assert culprit(found) == ("rank", "worker-1", 0, "certain")
    (cause,) = found.root_causes
    assert (cause.message, cause.category) == (FULL, "disk_full")
    assert cause.traceback is not None
    assert [(frame.path, frame.line) for frame in cause.traceback.frames[-1:]] == [("/job/writer.py", 102)]
    assert not cause.traceback.earlier
    (followed,) = found.cascade
    assert (followed.reason, followed.ranks) == (
        "torch.distributed.checkpoint: the exception of another rank",
        (0, 1, 3),
    )


def test_a_rank_that_did_not_raise_its_own_exception_is_likely() -> None:
    assert culprit(diagnosed(*job({2: FULL}, but=frozenset({2})))) == ("rank", "worker-1", 0, "likely")


def test_ranks_with_exceptions_of_their_own() -> None:
    found = diagnosed(*job({1: FULL, 2: DENIED}))
    assert found.verdict is Verdict.RANKS
    assert [(cause.rank, cause.message) for cause in found.root_causes] == [(1, FULL), (2, DENIED)]
    assert diagnosed(*job(dict.fromkeys(range(4), FULL))).verdict is Verdict.JOB


def test_a_number_within_a_group_names_no_rank() -> None:
    """Ranks 2 and 3 write a checkpoint of their own: rank 1 there is rank 3, and rank 1 lost its peer."""
    other = Log(0).start()
    for local in (0, 1):
        other.trace(1.1, local, closed_by(1))
    found = diagnosed(other.ended(1.5, 0), job({1: FULL})[1])
    assert found.verdict is Verdict.UNDECIDED


def test_exceptions_of_a_thousand_ranks_are_few() -> None:
    """All ranks print all of them."""
    log = Log(0, processes=1, world=1000).start()
    found = diagnosed(log.trace(1, 0, checkpoint(dict.fromkeys(range(1000), FULL))).ended(1.2))
    assert found.root_causes
    (trace,) = [trace for trace in log.facts().traces if not trace.agent]
    assert len(trace.chain) == 8


COUNTS = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {0} has {1} params, while rank {2} has "
    "inconsistent {3} params."
)
SIZES = (
    "RuntimeError: [{0}]: params[0] in this process with sizes [1, 8] appears not to match sizes of the same param in "
    "process 0."
)


def models(errors: Mapping[int, str]) -> list[Log]:
    """These ranks raise these errors, the others are ended."""
    logs = []
    for index in (0, 1):
        log = Log(index).start()
        for local, rank in enumerate(log.ranks):
            if rank in errors:
                log.trace(1, local, errors[rank])
        spoke = [local for local, rank in enumerate(log.ranks) if rank in errors]
        logs.append(log.ended(1.2, spoke[0], closed=(1 - spoke[0],)))
    return logs


def test_the_rank_with_another_number_of_parameters() -> None:
    pairs = {0: (2, 2, 1), 1: (2, 2, 1), 2: (1, 0, 2), 3: (2, 2, 1)}
    errors = {rank: COUNTS.format(rank, *rest) for rank, rest in pairs.items()}
    found = diagnosed(*models(errors))
    assert culprit(found) == ("rank", "worker-1", 0, "certain")
    assert found.root_causes[0].category == "ddp_model_mismatch"
    found = diagnosed(*models(errors | {3: closed_by(0)}))  # its model may be as that of rank 2
    assert found.verdict is not Verdict.RANK


def test_rank_0_with_another_model_is_named_by_the_others() -> None:
    found = diagnosed(*models({rank: SIZES.format(rank) for rank in (1, 2, 3)}))
    assert culprit(found) == ("rank", "worker-0", 0, "certain")
    assert found.root_causes[0].traceback is None  # that of another rank
    found = diagnosed(*models({rank: SIZES.format(rank) for rank in (1, 3)}))  # rank 2 was ended before
    assert found.verdict is Verdict.UNDECIDED


def test_models_of_two_kinds_name_no_rank() -> None:
    halves = {0: (2, 2, 1), 1: (2, 2, 1), 2: (1, 0, 2), 3: (1, 0, 2)}
    assert (
        diagnosed(*models({rank: COUNTS.format(rank, *rest) for rank, rest in halves.items()})).verdict is Verdict.JOB
    )
    (cause,) = diagnosed(*models({2: SIZES.format(2), 0: closed_by(1)})).root_causes
    assert (cause.rank, cause.why) == (2, "only this rank failed by itself; the other one lost its peer")
    lost = {rank: closed_by(1) for rank in (0, 1, 3)}
    (cause,) = diagnosed(*models(lost | {2: SIZES.format(2)})).root_causes
    assert (cause.rank, cause.why) == (2, "a parameter of its model has other sizes than on the 3 others")


@pytest.mark.parametrize(("processes", "workers"), [(1, 2), (2, 1)])
def test_of_two_ranks_either_model_may_be_the_wrong_one(processes: int, workers: int) -> None:
    for errors in (
        {1: SIZES.format(1)},
        {1: SIZES.format(1), 0: closed_by(1)},
        {0: COUNTS.format(0, 2, 1, 1), 1: COUNTS.format(1, 1, 0, 2)},
    ):
        logs = []
        for index in range(workers):
            log = Log(index, processes=processes, world=2).start()
            spoke = [local for local, rank in enumerate(log.ranks) if rank in errors]
            for local in spoke:
                log.trace(1, local, errors[log.ranks[local]])
            logs.append(log.ended(1.2, spoke[0], closed=range(spoke[0])) if spoke else log.closing(1.5, 0))
        assert diagnosed(*logs).verdict is not Verdict.RANK


THREAD = [
    "Exception in thread prefetch:",
    "Traceback (most recent call last):",
    '  File "/job/read.py", line 7, in fill',
]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_rank_hangs_after_an_exception_in_a_thread(processes: int) -> None:
    """The lines of a thread have no prefix: of two ranks on the worker either may be meant."""
    logs = []
    for index in (0, 1):
        log = Log(index, processes=processes, world=2 * processes).start()
        if index == 1:
            log.say(1, *THREAD, "    item = next(stream)", OWN)
        waiting = [local for local in range(processes) if (index, local) != (1, 0)]
        for local in waiting:
            log.trace(30, local, WAITED)
        logs.append(
            log.ended(30.5, waiting[0], closed=(0,) if index else range(1, processes))
            if waiting
            else log.closing(31, 0)
        )
    (cause,) = diagnosed(*logs).root_causes
    assert (cause.worker, cause.local_rank, cause.category) == ("worker-1", 0, "hang")
    assert cause.why.endswith(f"also in the log of its worker: {OWN}")
    assert (cause.traceback is not None) == (processes == 1)


def test_a_handled_exception_long_before_a_hang_is_not_its_cause() -> None:
    log = Log(1).start().trace(1, 0, OWN).say(2, "step 3/300 loss 1.5", "step 4/300 loss 1.5").trace(30, 1, WAITED)
    other = Log(0).start().trace(30, 0, WAITED).trace(30, 1, WAITED)
    (cause,) = diagnosed(other.ended(30.5, closed=(1,)), log.ended(30.5, 1, closed=(0,))).root_causes
    assert (cause.rank, "also in the log" in cause.why) == (2, False)


def test_a_caught_exception_before_lost_peers_is_the_cause() -> None:
    """loguru's `catch` prints it, and the process ends with 0: no agent reports anything."""
    caught = [
        "Traceback (most recent call last):",
        '> File "/job/train.py", line 8, in main',
        "    step()",
        "",
        "KeyError: 'path'",
    ]
    lost = [
        "Traceback (most recent call last):",
        *(line for n in range(40) for line in (f'  File "/job/model.py", line {n}, in forward', "    └ <function>")),
        closed_by(1),
    ]
    first = (
        Log(1, stamped=False).start().say(1, "12:00:01 | ERROR | caught", *caught, "12:00:02 | ERROR | caught", *lost)
    )
    other = Log(0, stamped=False).start().say(1, "12:00:02 | ERROR | caught", *lost)
    found = diagnosed(other, first)
    assert found.verdict is Verdict.WORKER
    assert (found.root_causes[0].worker, found.root_causes[0].message) == ("worker-1", "KeyError: 'path'")
