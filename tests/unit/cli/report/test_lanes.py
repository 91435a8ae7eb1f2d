from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.cli.report.page import Material, page, timeline, waits, words
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.flightrecorder import parse_dump
from atlctl.diagnosis.hang import with_look
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.logline import Moment
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Diagnosis, Verdict
from atlctl.diagnosis.telling.guide import Manner
from atlctl.jobs.model import State
from atlctl.recording.manifest import JobInfo, Manifest, WorkerInfo
from atlctl.recording.read import read_saved
from atlctl.recording.recorder.store import StateChange, read_states
from atlctl.render.page import Excerpts, Facts
from tests.support.saved import START, evidence
from tests.unit.diagnosis.causes import GUIDE
from tests.unit.diagnosis.hang.made import COLLECTIVE, NOW, job, rank, recorder, stack
from tests.unit.diagnosis.samples import matcher

TEXTS = words("en")

MANNER = Manner("en", True, GUIDE, lambda proof: proof.worker, lambda cause: None)


def drawn(folder, *, states=None):
    saved = read_saved([str(folder)], matcher())
    found = diagnose(saved.job, matcher())
    return timeline(
        material(found, replace(saved.job, events=()), read_states(str(folder)) if states is None else states),
        MANNER,
        TEXTS,
    )


def material(found, job, states=(), scene=None):
    return Material(found, job, None, states, {}, {}, {}, (), (), (), (), {}, scene)


def sorts(lane):
    return [mark.sort for mark in lane.marks]


def test_a_lane_for_each_worker_the_culprit_first(tmp_path):
    made = drawn(evidence(tmp_path / "saved", 4, culprit=2))
    assert made is not None
    assert [lane.name for lane in made.lanes] == ["worker-2", "worker-0", "worker-1", "worker-3"]
    assert [lane.culprit for lane in made.lanes] == [True, False, False, False]
    assert sorts(made.lanes[0]) == ["root", "state", "state"]
    assert sorts(made.lanes[1]) == ["victim", "state"]
    root, victim = made.lanes[0].marks[0], made.lanes[1].marks[0]
    assert (root.time, round(victim.time - root.time, 2)) == (made.zero, 0.65)
    assert made.zero_utc == "2026-11-20T17:46:00.250Z"
    assert "worker-0: lost its peer, 2026-11-20T17:46:00.900Z (+0.7 s): " in victim.told
    # The failure and its consequences, with some space on both sides.
    begin, end = made.focus
    assert made.zero - 1 < begin < made.zero
    assert made.lanes[3].marks[0].time < end < made.zero + 2


def test_workers_alike_share_a_lane_above_64(tmp_path):
    made = drawn(evidence(tmp_path / "saved", 70, culprit=5))
    assert made is not None
    assert [(lane.name, lane.note) for lane in made.lanes] == [("worker-5", ""), ("worker-[0-4,6-69]", "69 workers")]
    (victims,) = [mark for mark in made.lanes[1].marks if mark.sort == "victim"]
    assert victims.until is not None
    assert round(victims.until - victims.time, 2) == 0.6
    assert victims.told.startswith("69 marks, first: worker-")
    assert "70 workers in 2 lanes" in " ".join(made.notes)


def test_without_times_there_is_none(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "w.log").write_text("ValueError: x\n")
    assert drawn(folder, states=[]) is None
    made = drawn(folder, states=[StateChange(START.timestamp(), "w", "Failed", "OOMKilled")])
    assert made is not None
    assert [(mark.sort, mark.told) for mark in made.lanes[0].marks] == [
        ("state", "w: state changed, 2026-11-20T17:45:00Z: Failed (OOMKilled)")
    ]


FRAME = 'File "/workspace/train.py", line 260, in train'
DATA = Path(__file__).parents[3] / "corpus" / "data"


@pytest.mark.parametrize(
    ("case", "lanes"),
    [
        (
            "frozen_process",
            [
                ("rank 1 on worker-0", "never arrived", "absent"),
                ("rank 0 on worker-0", f"all_reduce: since 2026-11-20T21:49:17.514Z, for 5.0 s; {FRAME}", "waits"),
                ("rank 3 on worker-1", f"all_reduce: since 2026-11-20T21:49:17.536Z, for 5.0 s; {FRAME}", "waits"),
                ("rank 2 on worker-1", f"all_reduce: since 2026-11-20T21:49:17.538Z, for 5.0 s; {FRAME}", "waits"),
            ],
        ),
        ("killed_plain", None),
    ],
)
def test_who_waits_since_when_and_who_never_arrived(case, lanes):
    saved = read_saved([str(DATA / case)], matcher())
    found = waits(material(diagnose(saved.job, matcher()), saved.job), MANNER, TEXTS)
    made = None if found is None else [(lane.name, lane.said, lane.marks[0].sort) for lane in found.lanes]
    assert made == lanes


def test_dumps_of_flight_recorders_show_who_waits():
    """Without log lines, the wait lasts until the end."""
    evidence = []
    for number in range(3):
        data = json.dumps(recorder(6 if number else 5, pending=bool(number))["json"]).encode()
        dump, why = parse_dump(data, f"comm_lib_trace_rank_{number}")
        assert dump is not None, why
        log = LogFacts(last=Moment(NOW - 4, 0.001, absolute=True, dated=True))
        evidence.append(WorkerEvidence(f"w-{number}", number, log, dumps=(dump,)))
    whole = JobEvidence(tuple(evidence))
    found = waits(material(diagnose(whole, matcher()), whole), MANNER, TEXTS)
    assert found is not None
    told = "all_reduce number 6 of group default_pg: since 2033-05-18T03:31:46.000Z, for 90.0 s"
    assert [(lane.name, lane.said) for lane in found.lanes] == [
        ("rank 0", "never arrived"),
        ("rank 1 on w-1", told),
        ("rank 2 on w-2", told),
    ]


def test_many_that_wait_in_the_same_share_a_lane(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    lines = [
        f"2026-11-20T17:55:00.{rank:03}000000Z [rank{rank}]:[E] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600000 milliseconds before timing out."
        for rank in range(1, 20)
    ]
    (folder / "w.ts.log").write_text("\n".join(lines) + "\n")
    saved = read_saved([str(folder)], matcher())
    found = waits(material(diagnose(saved.job, matcher()), saved.job), MANNER, TEXTS)
    assert found is not None
    told = "ALLREDUCE number 12 of group default_pg: since 2026-11-20T17:45:00.001Z, for 600.0 s"
    assert [(lane.name, lane.said) for lane in found.lanes if not lane.culprit] == [("ranks 1-19 on w", told)]


def test_a_look_shows_who_waits_for_whom_and_the_stack_of_each_group():
    sleeps = stack(["sleep", "/opt/lib/python3.11/site-packages/x.py", 3], ["load", "/job/train.py", 12])
    scene = job({5: rank(5, "sleep", stack=sleeps)}, stack=stack(*COLLECTIVE))
    found = with_look(Diagnosis(Verdict.NONE), scene, 60.0)
    looked = material(found, JobEvidence(()), scene=scene)
    made = waits(looked, MANNER, TEXTS)
    assert made is not None
    assert [(lane.name, lane.said) for lane in made.lanes[:2]] == [
        ("rank 5 on worker-1", 'never arrived; hung in user code; File "/job/train.py", line 12, in load'),
        ("rank 0 on worker-0", "all_reduce: for at least 2 s"),
    ]
    assert len(made.lanes) == 16
    ((stacks,),) = [parts for key, parts in page(looked, MANNER, TEXTS).sections if key == "stacks"]
    assert isinstance(stacks, Excerpts)
    culprit, others = stacks.items
    assert culprit.place == "rank 5 on worker-1"
    assert [(line.text.partition(",")[0], line.tone) for line in culprit.lines] == [
        ('File "/job/train.py"', "own"),
        ('File "/opt/lib/python3.11/site-packages/x.py"', "faint"),
    ]
    assert others.place == "ranks 0-4,6-15 on worker-[0-3]"
    assert others.said == "waiting in a collective; its stack is in a collective: all_reduce"


def test_ranks_that_wait_for_a_gpu_are_known_by_their_recorders():
    """They use a CPU; the recorder shows the collective and its start."""
    waiting = {n: rank(n, "busy", recorder=recorder(6, pending=True), stack=stack(*COLLECTIVE)) for n in range(16)}
    scene = job(
        {
            **waiting,
            5: rank(5, "sleep", recorder=recorder(5, pending=False), stack=stack(["load", "/job/train.py", 12])),
        }
    )
    made = waits(material(with_look(Diagnosis(Verdict.NONE), scene, 60.0), JobEvidence(()), scene=scene), MANNER, TEXTS)
    assert made is not None
    assert {lane.said for lane in made.lanes if not lane.culprit} == {
        "all_reduce number 6 of group default_pg: since 2033-05-18T03:31:46.000Z, for 94.0 s"
    }


def test_the_environment_says_what_is_unknown_and_who_differs():
    workers = [
        WorkerInfo(f"w-{n}", n, n, None, State.FAILED, None, None, PlatformState(node=f"gpu-{n}")) for n in (0, 1)
    ]
    known = replace(
        material(Diagnosis(Verdict.NONE), JobEvidence(())),
        manifest=Manifest(JobInfo("train", command="torchrun train.py"), tuple(workers)),
        versions={"w-0": {"torch": "2.8.0", "NCCL": "2.27.3"}, "w-1": {"torch": "2.8.0", "NCCL": "2.21.5"}},
    )
    ((facts, _),) = [parts for key, parts in page(known, MANNER, TEXTS).sections if key == "environment"]
    assert isinstance(facts, Facts)
    assert {fact.label: fact.lines for fact in facts.items} == {
        "torch": ["2.8.0"],
        "NCCL": ["2.27.3 (w-0)", "2.21.5 (w-1)"],
        "command line": ["torchrun train.py"],
        "nodes": ["gpu-[0-1]"],
        "unknown": ["CUDA, driver, GPU, Python"],
    }
