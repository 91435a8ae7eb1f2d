"""Launchers other than torchrun: the process named in their output is the cause; without it, none is invented."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict
from atlctl.jobs.model import State

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


TITAN = "[rank0]:[titan] 2026-11-20 17:44:59,755 - root - INFO - Building 2-D device mesh with ['pp', 'tp'], [2, 2]"
TITAN_PAIRS = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=1, cp=1, tp=2, ep=2, etp=1"
MEGATRON = (
    "using world size: 4, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None, "
    "tensor-model-parallel size: 2, pipeline-model-parallel size: 1"
)


@pytest.mark.parametrize(
    ("mesh", "blamed", "rank"),
    [
        (TITAN, "TP1", 1),
        (TITAN, "pp 1", 2),
        (TITAN, "pp1/tp1", 3),
        (TITAN, "tp rank 1", 1),
        (TITAN_PAIRS, "TP1/PP1", 3),
        (MEGATRON, "dp 1", 2),
        (MEGATRON, "PP0 TP1", 1),
    ],
)
def test_a_rank_that_is_reported_by_its_groups_is_found_if_the_log_has_the_mesh(
    mesh: str, blamed: str, rank: int
) -> None:
    first = Log(0).say(0, mesh).start().trace(1, 0, f"RuntimeError: {blamed} failed: KeyError: 'labels'")
    (cause,) = diagnosed(first.ended(2, 0, closed=(1,)), Log(1).start().closing(3, 0, 1)).root_causes
    assert (cause.rank, cause.confidence, cause.message) == (rank, "likely", "KeyError: 'labels'")


@pytest.mark.parametrize("mesh", ["loading", TITAN.replace("[2, 2]", "[2, 4]")])
def test_a_rank_that_is_reported_by_its_groups_stays_open_without_a_mesh_that_fits(mesh: str) -> None:
    first = Log(0).say(0, mesh).start().trace(1, 0, "RuntimeError: TP1 failed: KeyError: 'labels'")
    found = diagnosed(first.ended(2, 0, closed=(1,)), Log(1).start().closing(3, 0, 1))
    assert found.verdict is Verdict.UNDECIDED
    assert "by its groups" in found.candidates[0].why


THREAD = (
    "Exception in thread Thread-3 (prefetch):",
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 12, in prefetch',
    "KeyError: 'batch'",
)


def test_a_thread_that_dies_last_leaves_it_open_whether_its_process_failed() -> None:
    found = diagnosed(Log(0, processes=1).start().say(2, *THREAD))
    (cause,) = found.candidates
    assert (found.verdict, cause.message, cause.exception) == (Verdict.UNDECIDED, "KeyError: 'batch'", "KeyError")


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.RUNNING])
def test_a_thread_that_dies_is_no_failure_if_its_worker_goes_on_or_ends_well(state: State) -> None:
    log = Log(0, processes=1).start().say(2, *THREAD)
    if state is State.RUNNING:
        log.start(3)
    assert diagnosed(log.evidence(state=state)).verdict is Verdict.NONE


MAP = "[2026-11-20 17:44:00,1] [INFO] [launch.py:169:main] global_rank_mapping=defaultdict(<class 'list'>, {%s})"
NODE = "[2026-11-20 17:44:00,0] [INFO] [launch.py:158:main] nnodes=%d, num_local_procs=2, node_rank=%d"
KILLED = "[2026-11-20 17:46:00,0] [ERROR] [launch.py:259:sigkill_handler]"
EXIT = KILLED + " ['python', '--local_rank=3'] exits with return code = %d"
TRACE = ("Traceback (most recent call last):", '  File "/job/t.py", line 9, in f')


def deepspeed(prefix: str = "") -> Log:
    return Log(0).say(0, prefix + NODE % (1, 0), prefix + MAP % "'localhost': [0, 1, 2, 3]")


@pytest.mark.parametrize(
    ("code", "sure", "category"),
    [
        (7, "certain", "explicit_exit"),
        (-9, "certain", "killed"),
        (1, "likely", "unknown_python_exit"),
        (-6, "likely", "unknown_python_exit"),
    ],
)
def test_deepspeeds_exit_code_is_that_of_the_only_silent_rank(code: int, sure: str, category: str) -> None:
    """The `--local_rank` beside it is always the last one; victims end with 1, too, or NCCL's watchdog aborts them."""
    (cause,) = diagnosed(victims(0, 1, 3, log=deepspeed()).say(5, EXIT % code)).root_causes
    assert (cause.rank, cause.local_rank, str(cause.confidence), cause.category) == (2, 2, sure, category)


def test_deepspeeds_exit_code_of_one_of_two_silent_ranks_stays_open() -> None:
    found = diagnosed(victims(0, 1, log=deepspeed()).say(5, EXIT % -9))
    assert found.verdict is Verdict.UNDECIDED
    assert [cause.rank for cause in found.candidates] == [2, 3]
    assert {cause.why for cause in found.candidates} == {
        "one of them ended by SIGKILL; its launcher does not say which"
    }


def test_hosts_of_deepspeed_over_pdsh_are_kept_apart() -> None:
    """Local ranks of both hosts are in the log: none is used. Tracebacks without a rank do not mix."""
    hosts = ("gpu-a", "gpu-b")
    ranks = "'gpu-a': [0, 1], 'gpu-b': [2, 3]"
    log = Log(0)
    for number, host in enumerate(hosts):
        log.say(0, f"{host}: {NODE % (2, number)}", f"{host}: {MAP % ranks}")
    log.say(1, *(f"{host}: {line}" for line in TRACE for host in hosts))
    log.say(1, "gpu-b: KeyError: 'lr'", "gpu-a: KeyError: 'lr'")
    said = [trace.frames[-1].line for trace in (item.last for item in log.facts().traces)]
    assert said == [9, 9]
    lost = Log(0).say(0, f"gpu-a: {MAP % ranks}")
    for rank in (0, 1, 3):
        host = hosts[rank // 2]
        lost.say(4, *(f"{host}: [rank{rank}]: {line}" for line in (*TRACE, LOST)))
    (cause,) = diagnosed(lost.say(5, f"gpu-b: {EXIT % 7}")).root_causes
    assert (cause.rank, cause.local_rank, cause.exit_code) == (2, None, 7)


@pytest.mark.parametrize(("count", "sure"), [(4, "certain"), (3, "likely"), (2, None)])
def test_a_message_of_most_processes_is_the_jobs(count: int, sure: str | None) -> None:
    log = deepspeed()
    for _ in range(count):
        log.say(1, *TRACE, "KeyError: 'lr'")
    found = diagnosed(log.say(5, EXIT % 1))
    assert (found.verdict is Verdict.JOB) is (sure is not None)
    if sure:
        (cause,) = found.root_causes
        assert (str(cause.confidence), cause.exception, bool(cause.traceback)) == (sure, "KeyError", True)


def test_srun_lists_tasks() -> None:
    log = victims(3).say(5, "srun: error: gpu-[1-2]: tasks 0-1,2: Exited with exit code 3")
    assert [cause.rank for cause in diagnosed(log).candidates] == [0, 1, 2]


@pytest.mark.parametrize(
    ("lines", "signal"),
    [
        (["srun: interrupt (one more within 1 sec to abort)", "srun: forcing job termination"], "SIGINT"),
        (["srun: forcing job termination", "srun: error: gpu-1: tasks 0-3: Killed"], "SIGTERM"),
        (["pdsh@head: interrupt (one more within 1 sec to abort)"], "SIGINT"),
        (["[2026-11-20 17:46:00,0] [INFO] [launch.py:262:sigkill_handler] Main process received SIGTERM, exiting"],
         "SIGTERM"),
        (["[rank: 0] Received SIGTERM: 15", "[rank: 1] Received SIGTERM: 15"], "SIGTERM"),
        (["Detected KeyboardInterrupt, attempting graceful shutdown ..."], "SIGINT"),
        (["*** SIGTERM received at time=1764604667 on cpu 0 ***"], "SIGTERM"),
        (["Process 1 exit with status code 143.", "Process 0 exit with status code 143."], "SIGTERM"),
        ([*TRACE, "KeyboardInterrupt"], "SIGINT"),
    ],
)  # fmt: skip
def test_a_launcher_that_was_ended_from_outside(lines: list[str], signal: str) -> None:
    found = diagnosed(Log(0).say(0, "loading").say(5, *lines))
    (cause,) = found.root_causes
    assert (found.verdict, cause.signal) == (Verdict.EXTERNAL, signal)


@pytest.mark.parametrize(
    "lines",
    [
        ["Process 1 exit with status code 143.", "Terminating remaining workers after failure of Process 1.",
         "Process 0 exit with status code 143."],
        ["srun: error: gpu-1: task 1: Terminated", "srun: launch/slurm: _step_signal: Terminating StepId=1.0",
         "srun: error: gpu-1: task 0: Terminated"],
        ["[rank: 1] Received SIGTERM: 15", *(f"[rank0]: {line}" for line in (*TRACE, LOST)),
         "srun: error: gpu-1: task 1: Terminated"],
    ],
)  # fmt: skip
def test_a_rank_that_was_ended_from_outside_is_not_the_launcher(lines: list[str]) -> None:
    assert [cause.rank for cause in diagnosed(Log(0).say(0, "loading").say(5, *lines)).root_causes] == [1]


def test_a_shells_exit_code_is_a_signal() -> None:
    (cause,) = diagnosed(victims(0, 2).say(5, "Process 1 exit with status code 139.")).root_causes
    assert (cause.signal, cause.category) == ("SIGSEGV", "native_crash")


def handled(rank: int, *later: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in (*TRACE, "KeyError: 'shard'", *later)]


STEP = "2026-11-20 17:45:01,123 INFO step 5/300 loss 1.5"


@pytest.mark.parametrize("later", [STEP, "step 5/300 loss 1.5"])
def test_a_rank_that_trains_on_has_handled_its_exception(later: str) -> None:
    """A step without a time of its own may have waited in a buffer until the process ended."""
    log = Log(0).say(0, "loading").say(3, *handled(0, later))
    found = diagnosed(
        victims(2, log=log).say(
            5, "mpirun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed)."
        )
    )
    assert ({cause.rank for cause in found.root_causes} == {1}) is (later is STEP)
    alone = diagnosed(Log(0).say(0, "loading").say(3, *handled(0, later)))
    assert (alone.verdict is Verdict.NONE) is (later is STEP)


def test_a_rank_that_its_launcher_reports_has_not_handled_its_exception() -> None:
    log = Log(0).say(0, "loading").say(3, *handled(1, STEP))
    (cause,) = diagnosed(log.say(5, "srun: error: gpu-1: task 1: Exited with exit code 1")).root_causes
    assert (cause.rank, cause.exception) == (1, "KeyError")


def test_a_traceback_without_its_exception_is_neither_silence_nor_success() -> None:
    cut = [f"[rank1]: {line}" for line in TRACE]
    found = diagnosed(victims(0, log=Log(0).say(0, "loading").say(4, *cut)))
    assert found.verdict is Verdict.UNDECIDED
    assert "its traceback is in the log, without the exception" in {cause.why for cause in found.candidates}
    alone = diagnosed(Log(0).say(0, "loading").say(4, *TRACE))
    assert (alone.verdict, alone.candidates[0].frame is not None) == (Verdict.UNDECIDED, True)


@pytest.mark.parametrize("word", ["Terminated", "Killed", "Aborted"])
def test_what_a_shell_prints_is_no_exception(word: str) -> None:
    assert not Log(0).say(4, *TRACE, word).facts().traces


@pytest.mark.parametrize("words", [["W1120 17:45:05.757000 1 spawn.py:165] Terminating process 12 via signal SIGTERM"],
                                   ["ray.train.WorkerGroupError: Training failed due to worker errors:"]])  # fmt: skip
def test_a_launchers_report_of_a_death_forbids_no_failure(words: list[str]) -> None:
    assert diagnosed(Log(0).say(0, "loading").say(5, *words)).verdict is Verdict.UNDECIDED


def test_local_ranks_of_two_nodes_in_one_log_are_not_used() -> None:
    log = Log(0).say(0, *(f"INFO rank {rank} of 4: local rank {rank % 2}" for rank in range(4)))
    log = victims(1, 2, 3, log=log.say(4, *(f"[rank0]: {line}" for line in (*TRACE, OWN))))
    (cause,) = diagnosed(log.say(5, "srun: error: gpu-1: task 0: Exited with exit code 1")).root_causes
    assert (cause.rank, cause.local_rank, cause.message) == (0, None, OWN)


def test_ctrl_c_on_every_rank_comes_from_outside() -> None:
    log = Log(0, world=2).start().trace(1, 0, "KeyboardInterrupt").trace(1, 1, "KeyboardInterrupt").ended(2, 0)
    assert diagnosed(log).verdict is Verdict.EXTERNAL


def test_options_that_a_program_refuses_before_it_starts_processes_are_the_jobs() -> None:
    line = "train.py: error: unrecognized arguments: --warmup-ratio 0.03"
    found = diagnosed(Log(0).say(0, "usage: train.py [-h] [--steps STEPS]", line))
    assert (found.verdict, found.root_causes[0].message) == (Verdict.JOB, line)
