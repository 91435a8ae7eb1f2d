import pytest

from atlctl.cli.sinks import outcome_label, summary_lines
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import Message, specific
from atlctl.render.sanitize import clean
from tests.unit.output.helpers import exited, worker


def test_every_way_to_end() -> None:
    outcomes = [
        exited(0), exited(1), exited(2), exited(3, 1), exited(4, 2),
        Outcome(worker(5), EndKind.EXITED, signal=9, guarded=False),
        Outcome(worker(6), EndKind.TIMEOUT, guarded=True),
        Outcome(worker(7), EndKind.LOST, reason="reset\x1b[2J", guarded=True, may_still_run=True),
        Outcome(worker(8), EndKind.FAILED_TO_START, 127, reason="not found"),
        Outcome(worker(9), EndKind.FAILED_TO_START, 127, reason="not found"),
        Outcome(worker(10), EndKind.CANCELLED, reason="not started"),
        Outcome(worker(11), EndKind.EXITED, 0, guarded=True, truncated=True),
    ]  # fmt: skip
    # Reasons are sanitised when a line is written.
    assert [clean(line.text) for line in summary_lines(outcomes, truncated={"worker-2", "unknown"})] == [
        "ok: worker-[0-2,11] (4)",
        "exit 1: worker-3 (1)",
        "exit 2: worker-4 (1)",
        "killed by SIGKILL: worker-5 (1)",
        "failed to start: worker-[8-9] (2): not found",
        "timed out: worker-6 (1)",
        "lost: worker-7 (1): reset^[[2J",
        "cancelled: worker-10 (1): not started",
        "not guarded: worker-5 (1)",
        "may still run: worker-7 (1)",
        "output truncated: worker-2 (1)",
        "later output not shown: worker-11 (1)",
    ]


def test_reasons_are_bounded_and_no_worker_is_left_out() -> None:
    outcomes = [Outcome(worker(i), EndKind.LOST, reason=f"host {i}") for i in range(1000)]
    lines = summary_lines(outcomes)
    assert len(lines) == 8
    assert lines[0].text == "lost: worker-0 (1): host 0"
    assert lines[-1].text == "lost: worker-[7-999] (993): other reasons"


def test_the_same_reason_on_several_hosts_is_one_line() -> None:
    why = Message("connection refused")
    reasons = [specific(Message("{host}: {why}", host=f"gpu{index}:22", why=why), why) for index in range(3)]
    outcomes = [Outcome(worker(i), EndKind.FAILED_TO_START, 255, reason=reason) for i, reason in enumerate(reasons)]
    assert [line.text for line in summary_lines(outcomes)] == ["failed to start: worker-[0-2] (3): connection refused"]
    (line,) = summary_lines(outcomes[:1])
    assert line.text == "failed to start: worker-0 (1): gpu0:22: connection refused"


def test_nothing_selected_is_nothing_said() -> None:
    assert summary_lines([]) == []


@pytest.mark.parametrize(("signal", "label"), [(15, "killed by SIGTERM"), (99, "killed by signal 99")])
def test_signals(signal: int, label: str) -> None:
    assert outcome_label(Outcome(worker(0), EndKind.EXITED, signal=signal)) == label
