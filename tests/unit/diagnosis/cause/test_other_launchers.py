"""Launchers other than torchrun: the process named in their output is the cause; without it, none is invented."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import OWN, WAITED, Log, closed_by, culprit, diagnosed

LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:4711."


def victims(*ranks: int, log: Log | None = None) -> Log:
    log = log or Log(0).say(0, "loading")
    for rank in ranks:
        log.say(
            4, f"[rank{rank}]: Traceback (most recent call last):", f'[rank{rank}]:   File "/job/t.py", line 9, in f'
        )
        log.say(4, f"[rank{rank}]: {LOST}")
    return log


@pytest.mark.parametrize(
    ("lines", "rank", "local_rank", "category"),
    [
        (
            ["torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV"],
            None,
            1,
            "native_crash",
        ),
        (
            ["mpirun noticed that process rank 1 with PID 77 on node gpu-1 exited on signal 9 (Killed)."],
            1,
            None,
            "killed",
        ),
        (
            ["prterun noticed that process rank 1 with PID 77 on node gpu-1 exited on signal 11."],
            1,
            None,
            "native_crash",
        ),
        (["  Process name: [[53345,1],1]", "  Exit code:    3"], 1, None, "explicit_exit"),
        (["   Process name: [prterun-gpu-0-77@1,1]", "   Exit code:    137"], 1, None, "killed"),
        (["Process name: 1", "Exit code: 3"], 1, None, "explicit_exit"),
        (["Process 1 exit with status code 3."], 1, None, "explicit_exit"),
        (["srun: error: gpu-1: task 1: Exited with exit code 3"], 1, None, "explicit_exit"),
        (["srun: error: gpu-1: task 1: Killed"], 1, None, "killed"),
        (["srun: error: gpu-1: task 1: Segmentation fault (core dumped)"], 1, None, "native_crash"),
    ],
)
def test_the_process_that_a_launcher_names_is_the_cause(
    lines: list[str], rank: int | None, local_rank: int | None, category: str
) -> None:
    found = diagnosed(victims(0, 2).say(5, *lines))
    assert culprit(found)[:2] == ("rank", "worker-0")
    (cause,) = found.root_causes
    assert (cause.rank, cause.local_rank, cause.category) == (rank, local_rank, category)
    without = diagnosed(victims(0, 2))
    assert without.verdict is Verdict.UNDECIDED


def test_what_a_launcher_ends_is_no_cause() -> None:
    """Slurm kills the other tasks and reports each of them."""
    log = victims(0).say(5, "srun: error: gpu-1: task 1: Exited with exit code 3")
    log.say(6, "slurmstepd: error: *** STEP 7.0 ON gpu-0 CANCELLED AT 2026-11-20T17:46:00 ***")
    found = diagnosed(log.say(7, "srun: error: gpu-0: task 2: Killed", "srun: error: gpu-0: task 3: Terminated"))
    assert [cause.rank for cause in found.root_causes] == [1]


def test_a_rank_that_starts_processes_is_no_launcher() -> None:
    """The rank itself failed, because its subprocess had ended."""
    log = Log(0).say(0, "loading").say(5, "[rank1]: Traceback (most recent call last):")
    log.say(5, '[rank1]:   File "/job/t.py", line 9, in f')
    end = "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL"
    found = diagnosed(log.say(5, f"[rank1]: {end}"))
    assert [cause.rank for cause in found.root_causes] == [1]


def test_a_spawned_process_speaks_for_itself() -> None:
    """`mp.spawn` prints the subprocess's traceback after its own."""
    log = (
        Log(0).say(0, "loading").say(5, "Traceback (most recent call last):", '  File "/job/t.py", line 9, in <module>')
    )
    log.say(
        5,
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "",
        "-- Process 2 terminated with the following error:",
    )
    log.say(5, "Traceback (most recent call last):", '  File "/job/t.py", line 5, in work', "KeyError: 'labels'")
    (cause,) = diagnosed(log).root_causes
    assert (cause.local_rank, cause.message) == (2, "KeyError: 'labels'")


def test_a_launcher_that_refuses_its_options_on_every_worker_is_the_jobs_fault() -> None:
    def refused(index: int) -> Log:
        path = "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py"
        log = Log(index).say(0, "Traceback (most recent call last):", f'  File "{path}", line 1205, in launch_command')
        return log.say(0, "ValueError: You can only use one of `--cpu`, `--multi_gpu` at a time.")

    found = diagnosed(refused(0), refused(1))
    assert culprit(found)[0] == "job"
    assert found.root_causes[0].category == "bad_arguments"


def test_a_job_of_which_one_log_was_read_is_never_certain_for_all() -> None:
    """Ranks 2 and 3 failed in the same way; ranks 0 and 1 exist too, but without logs."""
    log = Log(1).start().trace(1, 0, OWN).trace(1, 1, OWN).ended(2, 0, closed=())
    found = diagnosed(log)
    assert found.verdict is not Verdict.JOB
    assert all(cause.confidence != "certain" for cause in found.root_causes)
    assert diagnosed(Log(0).start().trace(1, 0, OWN).trace(1, 1, OWN).ended(2, 0), log).verdict is Verdict.JOB


@pytest.mark.parametrize("whole", [True, False])
def test_a_process_whose_words_were_cut_off_is_not_called_silent(whole: bool) -> None:
    """The only silent process may have logged something before the log's first line."""
    log = (
        Log(0)
        if whole
        else Log(0).say(0, '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in f')
    )
    log = log.start().trace(1, 0, closed_by(1)).ended(2, 1, closed=(0,))
    found = diagnosed(log, Log(1).start().trace(1, 0, closed_by(0)).trace(1, 1, closed_by(0)).ended(2, 0, closed=(1,)))
    assert found.verdict is (Verdict.RANK if whole else Verdict.UNDECIDED)


def test_words_behind_the_agents_signal_say_nothing_of_a_peer() -> None:
    """A SIGTERM handler finds the closed connections; before that, the rank was elsewhere."""
    log = Log(0, processes=3, world=3).start().trace(5, 0, WAITED).trace(5, 2, WAITED).closing(6, 0, 1, 2)
    (cause,) = diagnosed(log.trace(7, 1, closed_by(0))).root_causes
    assert (cause.rank, cause.category) == (1, "hang")


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("NVRM: Xid (PCI:0000:5e:00): 79, pid=8812, name=python, GPU has fallen off the bus.", "gpu_hardware"),
        ("loading", "cuda_error_unknown"),
    ],
)
def test_a_line_of_the_driver_belongs_to_the_verdict(line: str, category: str) -> None:
    log = Log(0).say(0, line).start().trace(1, 0, "torch.AcceleratorError: CUDA error: unspecified launch failure")
    (cause,) = diagnosed(log.ended(2, 0, closed=(1,)), Log(1).start().closing(3, 0, 1)).root_causes
    assert cause.category == category
    assert ("Xid" in cause.proofs[-1].text) is (category == "gpu_hardware")


BLAME = "RuntimeError: rank 3 failed: KeyError: 'labels'"


@pytest.mark.parametrize(("message", "rank"), [(BLAME, 3), (BLAME.replace("rank 3 failed", "rank 0 failed"), 0)])
def test_a_rank_that_reports_anothers_failure_is_not_the_cause(message: str, rank: int) -> None:
    first = Log(0).start().trace(1, 0, message).ended(2, 0, closed=(1,))
    second = Log(1).start().closing(3, 0, 1)
    (cause,) = diagnosed(first, second).root_causes
    assert (cause.rank, cause.confidence) == (rank, "likely" if rank == 3 else "certain")
    if rank == 3:
        assert cause.message == "KeyError: 'labels'"
