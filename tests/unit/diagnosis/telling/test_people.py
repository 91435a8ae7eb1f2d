"""A diagnosis as text: headline, rows, lists; in both languages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, GpuIdentity, Proof, Traceback, Verdict
from atlctl.diagnosis.telling.guide import Guide
from atlctl.diagnosis.telling.people import MAX_CANDIDATES, MAX_PROOFS
from atlctl.diagnosis.tracebacks import Frame
from atlctl.i18n import Language, Message
from atlctl.jobs.panel import Section
from tests.unit.diagnosis.causes import (
    CATEGORIES,
    CAUSE,
    KILLED,
    MESSAGE,
    ONE,
    SECOND,
    doubtful,
    found,
    lists,
    rows,
    title,
    told,
)

LANGUAGES: tuple[Language, ...] = ("en", "zh")
LIKELY = replace(CAUSE, confidence=Confidence.LIKELY)
WORKER = replace(CAUSE, rank=None, local_rank=None, frame=None)


def ranks(count: int, worker: str = "worker-1") -> list[Cause]:
    return [replace(LIKELY, rank=rank, local_rank=rank, worker=worker) for rank in range(count)]


HEADLINES: list[tuple[Diagnosis, str, str]] = [
    (
        ONE, "root cause: rank 3 (local rank 1) on worker-1, certain",
        "根因：worker-1 的 rank 3（local rank 1），确定",
    ),
    (found(Verdict.RANK, replace(LIKELY, rank=None)), "root cause: local rank 1 on worker-1, likely",
     "根因：worker-1 的 local rank 1，很可能"),
    (found(Verdict.RANK, replace(LIKELY, worker=None, local_rank=None)), "root cause: rank 3, likely",
     "根因：rank 3，很可能"),
    (found(Verdict.RANK, replace(WORKER, confidence=Confidence.GUESS)), "root cause: a process on worker-1, a guess",
     "根因：worker-1 的某个进程，推测"),
    (found(Verdict.WORKER, WORKER), "root cause: worker-1, certain", "根因：worker-1，确定"),
    (found(Verdict.WORKER, replace(WORKER, rank=3)), "root cause: worker-1 (rank 3), certain",
     "根因：worker-1（rank 3），确定"),
    (found(Verdict.WORKER, replace(WORKER, worker=None, host="10.9.0.1")),
     "root cause: a worker that these logs do not name (10.9.0.1), certain",
     "根因：日志中没有写明的某个 worker（10.9.0.1），确定"),
    (found(Verdict.RANKS, *ranks(3)), "root cause: ranks 0-2 on worker-1, likely",
     "根因：worker-1 的 rank 0-2，很可能"),
    (found(Verdict.RANKS, *ranks(2), *ranks(1, "worker-4")),
     "root cause: ranks 0-1 on worker-1, rank 0 on worker-4, likely",
     "根因：worker-1 的 rank 0-1，worker-4 的 rank 0，很可能"),
    (found(Verdict.RANKS, *(replace(LIKELY, worker=f"w-{n}", rank=8 * n) for n in range(5))),
     "root cause: ranks 0,8,16,24,32 on w-[0-4], likely", "根因：w-[0-4] 的 rank 0,8,16,24,32，很可能"),
    (found(Verdict.RANKS, *(replace(cause, worker=None) for cause in ranks(2))), "root cause: ranks 0-1, likely",
     "根因：rank 0-1，很可能"),
    (found(Verdict.JOB, replace(WORKER, worker=None)), "root cause: the whole job, certain", "根因：整个作业，确定"),
    (found(Verdict.EXTERNAL, replace(WORKER, worker=None)), "root cause: outside of the job, certain",
     "根因：作业外部，确定"),
    (Diagnosis(Verdict.NONE), "no failure in these logs", "这些日志中没有故障"),
    (Diagnosis(Verdict.NONE, partial=True), "no failure in what was read", "已读取的部分中没有故障"),
    (doubtful(CAUSE), "cannot be decided from these logs", "仅凭这些日志无法判定"),
]  # fmt: skip


@pytest.mark.parametrize(("diagnosis", "english", "chinese"), HEADLINES, ids=[item[1] for item in HEADLINES])
def test_headlines(diagnosis: Diagnosis, english: str, chinese: str) -> None:
    assert (title(diagnosis), title(diagnosis, "zh")) == (english, chinese)


def test_of_several_causes_the_least_sure_gives_the_word() -> None:
    assert title(found(Verdict.RANKS, CAUSE, replace(LIKELY, rank=4))).endswith(", likely")


def test_the_culprit_stands_out_and_a_weak_word_does_not() -> None:
    assert [piece.tone for piece in told(ONE).title] == ["strong", "culprit", "plain"]
    assert [piece.tone for piece in told(found(Verdict.RANK, LIKELY)).title] == ["strong", "culprit", "faint"]


def test_rows_of_one_rank() -> None:
    assert rows(told(ONE)) == {
        "what": [MESSAGE],
        "where": ["/job/data.py:38 in read_header"],
        "kind": ["Python exception [python_exception]"],
        "ended": ["exit code 1"],
        "when": ["2026-11-20T17:47:12.905Z"],
        "why": ["only this rank failed by itself; the other 3 lost their peer"],
        "evidence": [f"worker-1:25  {MESSAGE}", "/e/attempt_0/1/error.json"],
        "next": ["Check the shard.", "look at worker-1"],
    }


def test_rows_in_chinese() -> None:
    assert rows(told(ONE, "zh")) == {
        "现象": [MESSAGE],
        "位置": ["/job/data.py:38，函数 read_header"],
        "类别": ["Python 异常 [python_exception]"],
        "结束": ["退出码 1"],
        "时间": ["2026-11-20T17:47:12.905Z"],
        "判断依据": ["只有它自身出错；其余 3 个因对端断开而失败"],
        "证据": [f"worker-1:25  {MESSAGE}", "/e/attempt_0/1/error.json"],
        "下一步": ["检查该分片。", "look at worker-1"],
    }


def test_a_death_without_words_is_told_in_words() -> None:
    shown = rows(told(found(Verdict.RANK, KILLED)))
    assert shown["what"] == ["killed by SIGKILL; no traceback"]
    assert shown["evidence"] == ["worker-1:41  failed (exitcode: -9) local_rank: 1 (pid: 13) of binary: /opt/python"]
    assert "ended" not in shown
    silent = replace(KILLED, message="To enable traceback see: https://x", signal=None, exit_code=1)
    assert rows(told(found(Verdict.RANK, silent)))["what"] == ["exit code 1; no traceback"]


def test_a_crash_with_a_stack_is_told_by_its_words() -> None:
    stack = Traceback((Frame("/job/a.py", 3, "f"),), exception="Fatal Python error", message="Fatal Python error: Oops")
    shown = rows(told(found(Verdict.RANK, replace(KILLED, traceback=stack, exit_code=-11, signal="SIGSEGV"))))
    assert (shown["what"], shown["ended"]) == (["Fatal Python error: Oops"], ["SIGSEGV (exit code -11)"])


def test_a_long_message_is_whole_once() -> None:
    long = f"torch.OutOfMemoryError: CUDA out of memory. {'Tried to allocate. ' * 20}".strip()
    trace = Traceback((Frame("/job/a.py", 3, "f"),), exception="OutOfMemoryError", message=long)
    proofs = (Proof("worker-1", 25, long), Proof("worker-1", None, long, "/e/error.json"))
    report = replace(ONE.workers[0], worker="worker-1", said=long)
    cause = replace(CAUSE, message=long, proofs=proofs, traceback=trace)
    panel = told(replace(found(Verdict.RANK, cause), workers=(report, ONE.workers[1])))
    text = "\n".join([*(line for row in panel.rows for line in row.lines), *map(str, lists(panel).values())])
    assert text.count(long) == 1
    assert rows(panel)["what"] == [long]
    assert text.count(f"{long[:80]}") == 5
    verbose = told(found(Verdict.RANK, cause), verbose=True)
    assert rows(verbose)["evidence"] == [f"worker-1:25  {long}", f"/e/error.json  {long}"]


def test_what_a_loader_s_child_raised_is_what_people_read() -> None:
    cause = replace(CAUSE, message="KeyError: Caught KeyError in DataLoader worker process 0.", brief="KeyError: 'a'")
    assert rows(told(found(Verdict.RANK, replace(cause, detail="Original Traceback"))))["what"] == ["KeyError: 'a'"]


def test_what_is_in_front_of_a_message_is_left_out() -> None:
    bar = "Map:  70%|###   | 652/930 [6:39:53<4:31:33, 17.07 it/s][E ProcessGroupGloo.cpp:138] Rank 3 failed"
    for line, shown in ((bar, "Rank 3 failed"), ("  what():  CUDA error: x", "CUDA error: x")):
        cause = replace(CAUSE, exception=None, message=line, proofs=())
        assert rows(told(found(Verdict.RANK, cause)))["what"] == [shown]
    progress = "loss: 100%|###| 5/5 [00:01<00:00, 5.0it/s]"
    assert rows(told(found(Verdict.RANK, replace(CAUSE, message=progress))))["what"] == [progress]


def test_a_signal_beside_an_exception_is_told_too() -> None:
    shown = rows(told(found(Verdict.RANK, replace(CAUSE, exit_code=-15, signal="SIGTERM"))))
    assert (shown["what"], shown["ended"]) == ([MESSAGE], ["SIGTERM (exit code -15)"])


def test_a_signal_from_outside() -> None:
    line = (
        "W1120 17:59:43.470000 1 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting"
    )
    cause = replace(KILLED, worker=None, message=line, signal="SIGINT", exit_code=None)
    assert rows(told(found(Verdict.EXTERNAL, cause)))["what"] == ["received SIGINT from outside"]


def test_the_head_of_a_logger_is_left_out_unless_all_is_asked_for() -> None:
    line = "[rank1]: [E627 08:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught it"
    cause = replace(CAUSE, exception=None, message=line, proofs=())
    assert rows(told(found(Verdict.RANK, cause)))["what"] == ["[rank1]: [Rank 1] Watchdog caught it"]
    assert rows(told(found(Verdict.RANK, cause), verbose=True))["what"] == [line]


def test_further_lines_of_a_message_are_counted_without_v() -> None:
    cause = replace(CAUSE, detail="\n".join(f"line {n}" for n in range(9)) + "\n\n")
    assert rows(told(found(Verdict.RANK, cause)))["what"] == [
        MESSAGE, "line 0", "line 1", "line 2", "(and 6 more lines: -v)",
    ]  # fmt: skip
    assert len(rows(told(found(Verdict.RANK, cause), verbose=True))["what"]) == 10


def test_an_attempt_and_a_time_of_whole_seconds() -> None:
    cause = replace(CAUSE, attempt=2, time=SECOND)
    assert rows(told(found(Verdict.RANK, cause)))["when"] == ["2026-11-20T17:47:12Z, attempt 2 (counted from 0)"]
    assert "when" not in rows(told(found(Verdict.RANK, replace(CAUSE, time=None))))


def test_several_culprits_that_say_the_same_are_told_once() -> None:
    brief = Message("it did not reach the barrier")
    causes = [replace(cause, message=f"Rank {cause.rank}: {brief}", brief=brief) for cause in ranks(3)]
    assert rows(told(found(Verdict.RANKS, *causes)))["what"] == [brief]
    assert rows(told(found(Verdict.RANKS, *causes), "zh"))["现象"] == ["它没有到达 barrier"]


def test_several_culprits_that_say_different_things_are_told_apart() -> None:
    causes = [replace(cause, message=f"ValueError: {'ab'[cause.rank == 1]}") for cause in ranks(3)]
    assert rows(told(found(Verdict.RANKS, *causes)))["what"] == [
        "ranks 0,2 on worker-1: ValueError: a", "rank 1 (local rank 1) on worker-1: ValueError: b",
    ]  # fmt: skip


def test_many_culprits_whose_words_differ_in_numbers_are_told_once() -> None:
    causes = [replace(cause, message=f"ValueError: shard {cause.rank}") for cause in ranks(6)]
    assert rows(told(found(Verdict.RANKS, *causes)))["what"] == ["ValueError: shard 0"]
    assert len(rows(told(found(Verdict.RANKS, *causes), verbose=True))["what"]) == 6


def test_proofs_are_limited_one_of_each_cause_first() -> None:
    causes = [replace(c, proofs=(Proof("a", 10 + i, "x"), Proof("a", 20 + i, "y"))) for i, c in enumerate(ranks(2))]
    shown = rows(told(found(Verdict.RANKS, *causes)))["evidence"]
    assert shown == ["a:10  x", "a:11", "a:20  y", "and 1 more: -v"]
    assert len(shown) == MAX_PROOFS + 1
    assert len(rows(told(found(Verdict.RANKS, *causes), verbose=True))["evidence"]) == 4


def test_broken_hardware_has_an_address_and_a_command() -> None:
    cause = replace(
        CAUSE, category="gpu_ecc", node="gpu 17;x", host_ip="10.0.0.2", gpu=GpuIdentity(3, "GPU-1", "0000:3b:00.0")
    )
    shown = rows(told(found(Verdict.RANK, cause)))
    address = "gpu 17;x, 10.0.0.2, GPU 3, GPU-1, PCI 0000:3b:00.0"
    assert shown["node"] == [address]
    assert shown["next"] == [
        "Do gpu_ecc.", f"Take node {address} out of service:", "kubectl cordon 'gpu 17;x'", "look at worker-1",
    ]  # fmt: skip


def test_broken_hardware_whose_node_is_not_known() -> None:
    shown = rows(told(found(Verdict.RANK, replace(CAUSE, category="gpu_ecc"))))
    assert shown["next"][1].endswith("kubectl cordon NODE")
    assert "node" not in shown


def test_other_causes_get_no_cordon() -> None:
    shown = rows(told(found(Verdict.RANK, replace(CAUSE, node="gpu-17"))))
    assert shown["node"] == ["gpu-17"]
    assert not any("cordon" in line for line in shown["next"])


def test_an_unknown_category_is_told_by_its_id() -> None:
    shown = rows(told(found(Verdict.RANK, replace(CAUSE, category="made_up", signature="")), verbose=True))
    assert (shown["kind"], shown["next"]) == (["made_up"], ["look at worker-1"])
    assert "means" not in shown


def test_v_says_what_a_category_means() -> None:
    assert rows(told(ONE, verbose=True))["means"] == ["What python_exception means."]
    assert "means" not in rows(told(ONE))


def test_candidates_are_folded_and_limited() -> None:
    causes = [replace(cause, why="nothing decides", message=f"{'abcdefgh'[cause.rank or 0]}: x") for cause in ranks(8)]
    shown = rows(told(doubtful(*causes)))
    assert shown["why"] == ["nothing decides"]
    assert shown["candidate"][0] == "rank 0 (local rank 0) on worker-1 (worker-1:25): a: x"
    assert len(shown["candidate"]) == MAX_CANDIDATES + 1
    assert shown["candidate"][-1] == "and 3 more: -v"
    assert len(rows(told(doubtful(*causes), verbose=True))["candidate"]) == 8
    alike = rows(told(doubtful(*(replace(cause, message=f"x {cause.rank}") for cause in causes))))
    assert alike["candidate"] == ["ranks 0-7 on worker-1 (worker-1:25): x 0"]


def test_what_all_candidates_share_is_known() -> None:
    shown = rows(told(doubtful(CAUSE, replace(CAUSE, rank=4))))
    assert shown["kind"] == ["Python exception [python_exception]"]
    assert shown["next"][0] == "Check the shard."
    mixed = rows(told(doubtful(CAUSE, KILLED)))
    assert "kind" not in mixed
    assert len(mixed["next"]) == 2


def test_undecided_without_candidates_says_so() -> None:
    shown = rows(told(doubtful()))
    assert shown["why"] == ["the evidence names no process or worker"]
    assert len(shown["next"]) == 1


def test_none_tells_of_earlier_rounds() -> None:
    assert told(Diagnosis(Verdict.NONE)).rows == ()
    many = Diagnosis(Verdict.NONE, earlier=(CAUSE,) * 5, workers=ONE.workers)
    assert rows(told(many)) == {"earlier": ["5 failures in earlier rounds; the job was restarted after them"]}
    shown = lists(told(many))
    assert shown["earlier rounds"][0] == (
        "2026-11-20T17:47:12.905Z", "rank 3 (local rank 1) on worker-1", f"{MESSAGE} (worker-1:25)",
    )  # fmt: skip
    assert shown["earlier rounds"][-1] == ("", "", "and 2 more: -v")
    assert len(lists(told(many, verbose=True))["earlier rounds"]) == 5


def test_every_form_of_every_headline_can_be_told() -> None:
    for diagnosis, _, _ in HEADLINES:
        for language in LANGUAGES:
            for verbose in (False, True):
                telling = told(replace(diagnosis, cascade=ONE.cascade, workers=ONE.workers), language, verbose)
                assert all(row.label and row.lines for row in telling.rows)
                assert all(listing.label and _even(listing) for listing in telling.listings)


def _even(listing: Section) -> bool:
    return len({len(line.cells) for line in listing.lines}) == 1


def test_the_package_s_own_guide_tells_it_too() -> None:
    shown = rows(told(found(Verdict.RANK, replace(CAUSE, category="cuda_oom", signature="")), guide=Guide.builtin()))
    assert shown["kind"] == ["Out of GPU memory [cuda_oom]"]
    assert "cuda_oom" not in CATEGORIES


@given(st.text(max_size=40), st.text(max_size=40), st.none() | st.text(max_size=8), st.booleans())
def test_any_text_can_be_told(text: str, other: str, name: str | None, verbose: bool) -> None:
    """Texts, names and categories come from logs: they must not be interpreted as templates."""
    cause = replace(
        CAUSE, worker=name, message=text, detail=other, category=other, why=text, exception=None, node=name,
        proofs=(Proof(other, 1, text),), signature=other,
    )  # fmt: skip
    worker = replace(ONE.workers[0], worker=other, said=text)
    for verdict in (Verdict.RANK, Verdict.WORKER, Verdict.RANKS, Verdict.JOB):
        diagnosis = replace(ONE, verdict=verdict, root_causes=(cause, CAUSE), workers=(worker,), remarks=(text,))
        for language in LANGUAGES:
            assert told(diagnosis, language, verbose).rows
    assert told(doubtful(cause, CAUSE), verbose=verbose).rows
