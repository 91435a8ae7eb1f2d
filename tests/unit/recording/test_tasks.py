"""Logs in which a launcher tags each line with a task's number: tasks are ranks, unless torchrun runs in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Diagnosis
from atlctl.recording.read import read_saved
from tests.unit.diagnosis.cause.logs import OWN, Log, closed_by
from tests.unit.diagnosis.samples import matcher

#: Tags of prterun 3 (Open MPI 5): `--output tag`, `tag-fullname`, `rank`, `tag-detailed`, `timestamp,tag`; of mpirun 4
#: `--tag-output`, with time stamps; of horovodrun.
MPI = [
    "[1,%d]<stdout>: ",
    "[prterun-vm-14804@1,%d]<stdout>: ",
    "[%d]<stdout>: ",
    "[1,%d][vm:13215]<stdout>: ",
    "[Fri Nov 27 00:52:09 2026][1,%d]<stdout>: ",
    "[1,%d]<stdout>:",
    "Fri Nov 27 00:52:09 2026[1,%d]<stderr>:",
    "[%d]<stderr>:",
]
#: `srun -l`, whose numbers are as wide as the largest, and `mpiexec -l` of MPICH.
OTHERS = ["%d: ", " %d: ", "[%d] "]
RAISES = [
    "Traceback (most recent call last):",
    '  File "/job/t.py", line 6, in <module>',
    "    step()",
    "ValueError: bad shard",
]
REPORT = {
    "exit": ["-" * 74, "prterun detected that one or more processes exited with non-zero status,",
             "thus causing the job to be terminated. The first process to do so was:", "",
             "   Process name: [prterun-vm-13083@1,2]", "   Exit code:    3", "-" * 74],
    "signal": ["-" * 74, "prterun noticed that process rank 2 with PID 15411 on node vm exited on",
               "signal 9 (Killed).", "-" * 74],
    "improper": ["prterun has exited due to process rank 2 with PID 77 on node vm exiting",
                 "improperly. There are three reasons this could occur:"],
    "srun": ["srun: error: vm: task 2: Exited with exit code 3", "srun: error: vm: task 0: Terminated"],
}  # fmt: skip


def tagged(tag: str, rank: int, *lines: str) -> list[str]:
    return [tag % rank + line for line in lines]


def steps(tag: str) -> list[str]:
    return [line for step in range(4) for rank in range(3) for line in tagged(tag, rank, f"step {step}/4 loss 1.5")]


def found(folder: Path, lines: list[str], name: str = "job.out") -> Diagnosis:
    folder.joinpath(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shown = str(folder) if name.endswith(".log") else str(folder / name)
    return diagnose(read_saved([shown], matcher()).job, matcher())


@pytest.mark.parametrize("tag", [*MPI, *OTHERS])
def test_a_tag_names_the_rank_of_a_traceback(tmp_path: Path, tag: str) -> None:
    answer = found(tmp_path, [*steps(tag), *tagged(tag, 1, *RAISES), *tagged(tag, 0, "step 5/9 loss 1")])
    (cause,) = answer.root_causes
    assert (cause.worker, cause.rank, cause.message) == ("input", 1, "ValueError: bad shard")
    assert [frame.path for frame in cause.traceback.frames] == ["/job/t.py"] if cause.traceback else False
    assert sorted(end.rank for end in answer.ranks if end.rank is not None) == [0, 1, 2]


@pytest.mark.parametrize(
    ("tag", "report", "code"),
    [(MPI[0], "exit", 3), (MPI[0], "signal", -9), (MPI[0], "improper", 1), (OTHERS[0], "srun", 3)],
)
def test_the_launchers_report_is_about_a_tagged_rank(tmp_path: Path, tag: str, report: str, code: int) -> None:
    before = [*steps(tag), *tagged(tag, 2, "loading part 7"), *tagged(tag, 0, "saving")]
    (cause,) = found(tmp_path, [*before, *REPORT[report]]).root_causes
    assert (cause.rank, cause.exit_code) == (2, code)
    shown = [line.text for line in cause.last_lines]
    assert shown[-1] == "loading part 7"
    assert "saving" not in shown
    without = found(tmp_path, before)
    assert not without.root_causes


@pytest.mark.parametrize("tag", [MPI[0], OTHERS[0]])
def test_tasks_in_which_torchrun_runs_are_workers(tmp_path: Path, tag: str) -> None:
    logs = [Log(0).start().trace(1, 0, closed_by(1)).ended(2, 0, closed=(1,)), Log(1).start().trace(1, 1, OWN)]
    lines = [line for log in logs for line in tagged(tag, log.index, *log.lines)]
    (cause,) = found(tmp_path, lines).root_causes
    assert (cause.worker, cause.rank) == ("task-1", 3)


def test_tasks_whose_lines_name_other_ranks_are_workers(tmp_path: Path) -> None:
    lines = [*steps("%d: "), *tagged("%d: ", 1, *(f"[rank4]: {line}" for line in RAISES))]
    (cause,) = found(tmp_path, lines).root_causes
    assert (cause.worker, cause.rank) == ("task-1", 4)


def test_local_ranks_of_several_nodes_are_not_mixed_up(tmp_path: Path) -> None:
    names = [line for rank in range(4) for line in tagged("%d: ", rank, f"rank {rank} of 4: local rank {rank % 2}")]
    lines = [*names, *steps("%d: "), *tagged("%d: ", 2, *RAISES), *tagged("%d: ", 0, "saving")]
    (cause,) = found(tmp_path, lines).root_causes
    assert (cause.rank, cause.local_rank) == (2, None)


@pytest.mark.parametrize(
    ("tag", "others", "rank"),
    [(MPI[0], 0, 1), (MPI[0], 1, 1), (MPI[2], 1, 1), (OTHERS[0], 0, 1), (OTHERS[0], 1, None)],
)
def test_in_a_launchers_own_log_tags_name_ranks(tmp_path: Path, tag: str, others: int, rank: int | None) -> None:
    """Numbers alone may be anything in the logs of several workers."""
    for number in range(others):
        (tmp_path / f"other-{number}.log").write_text("loading\n")
    answer = found(tmp_path, [*steps(tag), *tagged(tag, 1, *RAISES)], "launcher.log")
    (cause,) = answer.root_causes or answer.candidates
    assert (cause.worker, cause.rank) == ("launcher", rank)


def test_in_a_workers_own_log_torchruns_words_are_not_a_ranks(tmp_path: Path) -> None:
    log = Log(1).agent(0).start().trace(1, 1, OWN).ended(2, 1, closed=(0,))
    (cause,) = found(tmp_path, tagged(MPI[0], 0, *log.lines), "launcher.log").root_causes
    assert (cause.rank, cause.local_rank) == (3, 1)


PDSH = [
    "[2026-11-27 17:26:06,436] [INFO] [runner.py:618:main] cmd = pdsh -S -f 1024 -w gpu-1,gpu-2 python train.py",
    *(
        f"gpu-{1 + rank // 2}: {line}"
        for rank in (0, 1, 3)
        for line in (f"rank {rank} of 4: local rank {rank % 2}", *(f"[rank{rank}]: {line}" for line in RAISES[:3]),
                     f"[rank{rank}]: RuntimeError: Connection closed by peer [10.0.0.7]:4711.")
    ),
    "pdsh@head: gpu-2: ssh exited with exit code 7",
]  # fmt: skip


def test_the_own_lines_of_pdsh_are_no_worker(tmp_path: Path) -> None:
    """They name no process: a log of their own that ended abruptly would be blamed."""
    answer = found(tmp_path, PDSH)
    assert [worker.worker for worker in answer.workers] == ["gpu-1", "gpu-2"]
    assert {cause.worker for cause in answer.root_causes} <= {"gpu-2"}


def test_what_pdsh_alone_reports_forbids_no_failure(tmp_path: Path) -> None:
    answer = found(tmp_path, [*(f"gpu-{number}: loading" for number in (1, 2, 1, 2, 1, 2)), PDSH[-1]])
    assert [(str(answer.verdict), cause.worker) for cause in answer.candidates] == [("undecided", "input")]


def test_an_interrupted_pdsh(tmp_path: Path) -> None:
    lines = [*(f"gpu-{number}: loading" for number in (1, 2, 1, 2, 1, 2)), "pdsh@head: interrupt, aborting."]
    assert str(found(tmp_path, lines).verdict) == "external"
