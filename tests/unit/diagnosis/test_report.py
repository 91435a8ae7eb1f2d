import json

from atlctl.diagnosis.first_observed import first_observed
from atlctl.diagnosis.report import SHOWN_FOLLOWED, to_data, to_text
from atlctl.jobs.model import State

from .samples import PEER_GONE, STACK, block, entry, record, worker


def finding_of(*blocks, **kwargs):
    return first_observed([worker(f"worker-{n}", lines, index=n, **kwargs) for n, lines in enumerate(blocks)])


OWN = block(entry(rank=3, local=1, text=STACK))
VICTIM = block(entry(rank=0, text=PEER_GONE))


def test_data_of_one_first():
    data = to_data(finding_of(VICTIM, OWN))
    assert json.loads(json.dumps(data)) == data
    assert (data["verdict"], data["label"]) == ("first_observed", "first observed (heuristic)")
    (first,) = data["candidates"]
    keys = ("worker", "rank", "local_rank", "exit_code", "signal", "exception", "time")
    assert {key: first[key] for key in keys} == {
        "worker": "worker-1", "rank": 3, "local_rank": 1, "exit_code": 1, "signal": None, "exception": "ValueError",
        "time": "2026-11-20T17:45:05Z",
    }  # fmt: skip
    assert first["frame"] == {"file": "/work/train.py", "line": 20, "function": "main"}
    assert first["evidence"] == [
        {"worker": "worker-1", "line": 9, "text": "ValueError: bad magic in shard 3", "file": None}
    ]
    assert data["followed"][0]["consequence"] == "gloo: connection closed by a peer"


def test_text_of_one_first():
    assert to_text(finding_of(VICTIM, OWN)) == [
        "first observed (heuristic):",
        "  worker-1, rank 3, local rank 1, 2026-11-20 17:45:05: ValueError: bad magic in shard 3 (exit code 1)",
        '    at File "/work/train.py", line 20, in main',
        "    evidence: worker-1, line 9 of its log",
        "Followed by 1 more, 1 of them a peer's consequence:",
        f"  worker-0, rank 0, local rank 0, 2026-11-20 17:45:05: {PEER_GONE} (exit code 1)",
    ]


def test_a_tie_is_called_one():
    finding = finding_of(OWN, OWN)
    assert to_data(finding)["verdict"] == "tie"
    assert [item["tie"] for item in to_data(finding)["candidates"]] == [True, True]
    assert "2 failures in the same second; which was first is not known" in to_text(finding)[0]


def test_a_tie_without_times():
    rendezvous = ["torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"]
    assert "2 failures without a time" in to_text(finding_of(rendezvous, rendezvous))[0]


def test_only_consequences_say_so_and_name_the_silent():
    finding = finding_of(VICTIM, [], state=State.LOST)
    data, text = to_data(finding), to_text(finding)
    assert (data["verdict"], data["silent_workers"]) == ("consequences_only", ["worker-1"])
    assert text[0] == "Every failure that was seen is a peer's consequence."
    assert any("consequence: gloo" in line for line in text)
    assert any(line.endswith(": worker-1") for line in text)


def test_none():
    assert to_data(finding_of([]))["verdict"] == "none"
    assert to_text(finding_of([], state=State.SUCCEEDED)) == ["No failure of torchrun's was found."]


def test_none_after_a_restart():
    line = "E1120 17:45:05.000000 1 x.py:1] failed (exitcode: -11) local_rank: 0 (pid: 14) of binary"
    finding = finding_of([line], state=State.SUCCEEDED)
    assert to_data(finding)["verdict"] == "none"
    assert to_text(finding) == [
        "All workers succeeded. Earlier attempts failed and were restarted:",
        "  worker-0, local rank 0, 11-20 17:45:05: ended by SIGSEGV",
    ]


def test_signals_and_bare_codes_in_words():
    killed = entry(code=-9, text="Signal 9 (SIGKILL) received by PID 14")
    assert to_text(finding_of(block(killed)))[1].endswith(": ended by SIGKILL")
    assert to_text(finding_of(block(entry(code=17))))[1].endswith(": exit code 17")


def test_long_messages_and_long_lists_are_cut_visibly():
    victims = [entry(n, rank=n, local=n, text=PEER_GONE) for n in range(1, 10)]
    long = STACK.replace("bad magic", "x" * 5000)
    text = to_text(finding_of(block(entry(text=long), victims)))
    assert text[1].endswith("... (exit code 1)")
    assert text[-1] == f"  and {9 - SHOWN_FOLLOWED} more"


def test_an_error_file_is_evidence_by_its_path():
    path = "/e/job_a/attempt_0/3/error.json"
    finding = first_observed([worker("a", [], files={path: record(time=1795196705)})])
    assert f"    evidence: a, {path}" in to_text(finding)
    assert to_text(finding)[1] == "  a, local rank 3, 2026-11-20T17:45:05Z: ValueError: x"


def test_hostile_text_is_passed_on_raw():
    stack = STACK.replace("bad magic", "[bold]\x9b31m")
    data = to_data(finding_of(block(entry(text=stack))))
    assert data["candidates"][0]["message"] == "ValueError: [bold]\x9b31m in shard 3"
