import pytest

from atlctl.diagnosis.first_observed import first_observed
from atlctl.jobs.model import State

from .samples import DATA, NO_FILE, PEER_GONE, STACK, block, entry, record, worker

RENDEZVOUS = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed."


def failed(code=1, local=0, pid=14, time="17:45:05"):
    return (
        f"E1120 {time}.000000 1 torch/x.py:1002] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary"
    )


def one(text=STACK, **rows):
    return block(entry(text=text, **rows))


def named(finding):
    return [(item.worker, item.rank) for item in finding.candidates]


def test_an_own_failure_comes_before_earlier_consequences():
    finding = first_observed([
        worker("worker-0", one(PEER_GONE, time="2026-11-20_17:44:00")),
        worker("worker-1", one(rank=3, local=1), index=1),
    ])  # fmt: skip
    assert named(finding) == [("worker-1", 3)]
    (first,) = finding.candidates
    assert (first.exception, first.message, first.tie) == ("ValueError", "ValueError: bad magic in shard 3", False)
    assert str(first.frame) == 'File "/work/train.py", line 20, in main'
    assert first.evidence[0].worker == "worker-1"
    assert [item.consequence for item in finding.followed] == ["gloo: connection closed by a peer"]
    assert not finding.nothing_found
    assert not finding.only_consequences


def test_the_earlier_of_two_own_failures():
    early, late = one(rank=1, time="2026-11-20_17:45:04"), one(rank=0, time="2026-11-20_17:45:05")
    finding = first_observed([worker("a", late), worker("b", early, index=1)])
    assert named(finding) == [("b", 1)]


def test_equal_seconds_are_a_tie_over_workers_and_inside_one():
    both = block(entry(rank=0, text=STACK), [entry(1, rank=1, local=1, text=STACK)])
    finding = first_observed([worker("b", one(rank=2), index=1), worker("a", both)])
    assert named(finding) == [("a", 0), ("a", 1), ("b", 2)]
    assert all(item.tie for item in finding.candidates)


def test_only_consequences_name_nobody():
    finding = first_observed([worker("a", one(PEER_GONE)), worker("b", [], index=1, state=State.LOST)])
    assert finding.only_consequences
    assert finding.silent == ("b",)


def test_nothing_at_all():
    finding = first_observed([worker("a", ["loss 0.1"], state=State.RUNNING)])
    assert finding.nothing_found
    assert (finding.candidates, finding.followed, finding.silent) == ((), (), ())
    assert first_observed([]).nothing_found


@pytest.mark.parametrize(("code", "signal"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-7, "SIGBUS")])
def test_a_death_by_signal_is_an_own_failure(code, signal):
    text = f"Signal {-code} ({signal}) received by PID 15"
    lines = block(entry(rank=1, local=1, code=code, text=text), [entry(1, rank=0, text=PEER_GONE)])
    (first,) = first_observed([worker("a", lines)]).candidates
    assert (first.rank, first.signal, first.consequence) == (1, signal, None)


def test_sigkill_by_the_agent_is_a_consequence():
    text = "Signal 9 (SIGKILL) received by PID 15"
    forced = "W1120 17:45:35.000000 1 x.py:1] Unable to shutdown process 15 via SIGTERM, forcefully exiting via SIGKILL"
    lines = block(
        entry(rank=0, text=NO_FILE), [entry(1, rank=1, code=-9, pid=15, time="2026-11-20_17:45:04", text=text)]
    )
    assert named(first_observed([worker("a", lines)])) == [("a", 1)]
    assert named(first_observed([worker("a", [forced, *lines])])) == [("a", 0)]


def test_an_own_exception_under_sigterm_wins():
    lines = block(entry(rank=0, text=PEER_GONE), [entry(1, rank=1, code=-15, signal="SIGTERM", text=STACK)])
    assert named(first_observed([worker("a", lines)])) == [("a", 1)]


def test_the_ranks_own_traceback_stands_in_for_a_missing_error_file():
    lines = [
        "[rank0]: Traceback (most recent call last):", f"[rank0]: {PEER_GONE}",
        "[rank1]: Traceback (most recent call last):", "[rank1]: KeyError: 'lr'",
        *block(entry(rank=0), [entry(1, rank=1, local=1)]),
    ]  # fmt: skip
    finding = first_observed([worker("a", lines)])
    assert named(finding) == [("a", 1)]
    assert finding.candidates[0].exception == "KeyError"
    assert [proof.line_no for proof in finding.candidates[0].evidence] == [10, 4]


def test_an_error_file_completes_its_entry_whatever_its_folder_is_now():
    inside, outside = (
        "/tmp/torchelastic_a/job_b/attempt_0/1/error.json",
        "/evidence/w1/torchelastic_a/job_b/attempt_0/1/error.json",
    )
    files = {outside: record("ValueError: whole text", time=1795196705)}
    finding = first_observed([worker("a", one(NO_FILE, rank=1, local=1, file=inside), files=files)])
    (first,) = finding.candidates
    assert (first.rank, first.message, first.time) == (1, "ValueError: whole text", 1795196705)
    assert [proof.file for proof in first.evidence] == [None, outside]
    assert finding.followed == ()


def test_a_workers_zone_is_told_by_an_error_file_beside_its_entry():
    # Worker b's clock shows UTC+8. Its killed rank has no file, but its other one has: 17:45:04 UTC is 1795196704.
    path = "/t/job_b/attempt_0/0/error.json"
    victim = entry(rank=2, time="2026-11-21_01:45:04", text=PEER_GONE, file=path)
    killed = entry(1, rank=3, local=1, code=-9, time="2026-11-21_01:45:03", text="Signal 9 (SIGKILL) received by PID 9")
    lines, files = block(victim, [killed]), {path: record(PEER_GONE, time=1795196704)}
    utc = worker("a", one(rank=0, time="2026-11-20_17:45:05"))

    known = first_observed([worker("b", lines, files=files, index=1)])
    assert [item.time for item in known.candidates] == [1795196703]
    assert first_observed([worker("b", lines, index=1), utc]).candidates[0].worker == "a"  # zones assumed equal
    path_a = "/t/job_a/attempt_0/0/error.json"
    utc_known = worker(
        "a", one(rank=0, time="2026-11-20_17:45:05", file=path_a), files={path_a: record(time=1795196705)}
    )
    assert named(first_observed([utc_known, worker("b", lines, files=files, index=1)])) == [("b", 3)]


def test_error_files_alone():
    files = {
        "/e/job_a/attempt_0/0/error.json": record(PEER_GONE, time=100),
        "/e/job_a/attempt_0/3/error.json": record("ValueError: x", time=105),
        "/e/agent_error.json": record("ValueError: x", time=105),  # torchrun's copy
    }
    finding = first_observed([worker("a", [], files=files)])
    assert [(item.local_rank, item.rank, item.time) for item in finding.candidates] == [(3, None, 105)]
    assert len(finding.followed) == 1


def test_an_agents_line_stands_in_for_a_missing_summary():
    finding = first_observed([worker("a", [failed(code=-11, local=2)])])
    (first,) = finding.candidates
    assert (first.local_rank, first.signal, first.time_text) == (2, "SIGSEGV", "11-20 17:45:05")


def test_a_restarted_attempt_comes_behind_an_own_failure_of_the_last():
    earlier = ["[rank1]: Traceback (most recent call last):", "[rank1]: KeyError: 1", failed(local=1, time="17:00:00")]
    lines = [*earlier, failed(code=-11, pid=31), *one("Signal 11 (SIGSEGV) received by PID 31", code=-11, pid=31)]
    finding = first_observed([worker("a", lines)])
    assert [item.signal for item in finding.candidates] == ["SIGSEGV"]
    (before,) = finding.followed
    assert (before.exception, before.rank, before.local_rank, before.attempt, before.earlier_attempt) == (
        "KeyError", 1, 1, 0, True,
    )  # fmt: skip


def test_a_restart_that_never_came_up_points_back_to_the_attempt_before():
    mesh = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused"
    earlier = ["[rank1]: Traceback (most recent call last):", "[rank1]: KeyError: 1", failed(local=1)]
    finding = first_observed([worker("a", [*earlier, failed(pid=31), *one(mesh, pid=31)])])
    assert [(item.exception, item.earlier_attempt) for item in finding.candidates] == [("KeyError", True)]
    alone = first_observed([worker("a", [failed(pid=31), *one(mesh, pid=31)])])
    assert not alone.only_consequences


def test_a_failed_line_among_several_ranks_is_not_given_a_wrong_local_rank():
    lines = [
        "[rank4]: Traceback (most recent call last):", f"[rank4]: {PEER_GONE}",
        "[rank5]: Traceback (most recent call last):", "[rank5]: KeyError: 1",
        failed(local=0),
    ]  # fmt: skip
    (first,) = first_observed([worker("a", lines)]).candidates
    assert (first.rank, first.local_rank, first.exception) == (5, None, "KeyError")
    known = [*lines, failed(pid=31), *one("Signal 11 (SIGSEGV) received by PID 31", rank=4, local=0, code=-11, pid=31)]
    (before,) = first_observed([worker("a", known)]).followed
    assert (before.rank, before.local_rank) == (5, 1)


def test_success_after_a_restart_is_no_failure():
    finding = first_observed([worker("a", [failed()], state=State.SUCCEEDED)])
    assert finding.nothing_found
    assert len(finding.followed) == 1


def test_a_launch_script_that_exits_0_hides_nothing():
    finding = first_observed([worker("a", one(rank=2), state=State.SUCCEEDED)])
    assert named(finding) == [("a", 2)]


def test_a_signal_to_one_agent():
    finding = first_observed([
        worker("a", one(PEER_GONE, time="2026-11-20_17:59:20")),
        worker("b", (DATA / "evicted-agent.log").read_bytes().split(b"\n"), index=1),
    ])  # fmt: skip
    (first,) = finding.candidates
    assert (first.worker, first.rank, first.signal) == ("b", None, "SIGTERM")
    assert first.message == "torchrun's agent received SIGTERM"


def test_an_agent_that_lost_its_store_is_a_consequence():
    files = {"/e/agent_error.json": record(RENDEZVOUS.rpartition("api.")[2], time=50)}
    finding = first_observed([worker("a", [RENDEZVOUS], files=files)])
    (first,) = finding.candidates
    assert finding.only_consequences
    assert (first.rank, first.local_rank, first.time) == (None, None, 50)


def test_two_workers_of_a_real_job():
    workers = [
        worker(f"worker-{n}", (DATA / f"peer-gone-worker-{n}.log").read_bytes().split(b"\n"), index=n) for n in (0, 1)
    ]
    finding = first_observed(workers)
    assert named(finding) == [("worker-1", 3)]
    assert len(finding.followed) == 3
    assert all(item.consequence for item in finding.followed)
