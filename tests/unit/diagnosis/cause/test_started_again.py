"""A launch script starts torchrun again in the same log, or runs other programs before it."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import OWN, STORE, Log, closed_by, culprit, diagnosed, victim

LATE = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
MISSING = "ModuleNotFoundError: No module named 'flash_attn'"


def failed(index: int) -> Log:
    """A first run in which rank 1 fails."""
    return victim(0, of=1) if index == 0 else Log(1).start().trace(1.0, 1, OWN).ended(1.4, 1, closed=(0,))


@pytest.mark.parametrize("banner", [True, False])
def test_the_last_run_is_ended_from_outside(banner: bool) -> None:
    logs = [failed(index).restarted() for index in (0, 1)]
    for log in logs:
        if banner:
            log.agent(60)
        log.start(61).signalled(70)
    assert diagnosed(*logs).verdict is Verdict.EXTERNAL


@pytest.mark.parametrize("banner", [True, False])
def test_the_agents_of_the_last_run_never_meet(banner: bool) -> None:
    logs = [failed(index) for index in (0, 1)]
    for log in logs:
        if banner:
            log.agent(60)
        log.agent_died(90, LATE)
    found = diagnosed(*logs)
    assert all(cause.category == "rendezvous_timeout" for cause in (*found.root_causes, *found.candidates))


def test_the_last_runs_have_the_same_number_however_many_there_were_before() -> None:
    """Worker 0 was started three times, worker 1 twice."""
    first = failed(0).restarted().agent(20).start(21).trace(22, 0, closed_by(1)).ended(23, 0).restarted()
    second = failed(1).restarted()
    for log in (first, second):
        log.agent(60).start(61)
        for local in (0, 1):
            log.trace(62, local, MISSING)
        log.ended(63, 0, closed=(1,))
    assert culprit(diagnosed(first, second))[:2] == ("job", None)


def test_the_report_of_a_run_that_is_over_stays_with_it() -> None:
    """The summary is between the agent's last note and the next start."""
    log = failed(1).restarted().agent(60).start(61).signalled(70)
    causes = diagnosed(failed(0).restarted().agent(60).start(61).signalled(70), log).root_causes
    assert OWN not in [cause.message for cause in causes]


def test_a_program_that_fails_before_the_agent_is_no_cause() -> None:
    log = Log(0).trace(0, 0, "urllib.error.URLError: <urlopen error timed out>", prefix=False).agent(1).start(2)
    found = diagnosed(log.ended(9, 1, 3))
    assert [cause.rank for cause in found.root_causes] == [1]
    assert "URLError" not in found.root_causes[0].message


def test_an_agent_beside_one_that_did_not_come_again_is_undecided() -> None:
    """Its launch script failed the second time, so the other could not reach it."""
    error = "torch.distributed.DistNetworkError: The client socket has timed out while trying to connect to (w, 29500)."
    host = failed(0).say(60, "bash: line 1: cd: /mnt/code: No such file or directory")
    found = diagnosed(host, failed(1).agent(60).agent_died(90, error, STORE))
    assert found.verdict is Verdict.UNDECIDED
