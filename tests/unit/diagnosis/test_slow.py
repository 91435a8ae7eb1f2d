"""The judge of slow jobs, on written reports: each cause class, none, contradictions, hostile fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis.rankreport import StackReport, parse_report
from atlctl.diagnosis.result import Confidence
from atlctl.diagnosis.slow import CauseClass, Laggard, SlowVerdict, judge, named, with_network_test
from atlctl.diagnosis.tracebacks import Frame
from tests.unit.diagnosis.hang import made

SITE = made.SITE
WAITS = f"main (/job/train.py:17);all_reduce ({SITE}/torch/distributed/distributed_c10d.py:3252)"
LOADS = f"main (/job/train.py:12);__next__ ({SITE}/torch/utils/data/dataloader.py:700)"
DEVICE = f"main (/job/train.py:19);synchronize ({SITE}/torch/cuda/__init__.py:900)"
WORKS = "main (/job/train.py:14);tokenize (/job/data.py:41)"
#: A sample's state and call.
_DOING: Mapping[str, tuple[str, str, bool]] = {
    "wait": ("S", "futex", True),
    "lock": ("S", "futex", False),
    "run": ("R", "running", False),
    "sleep": ("S", "clock_nanosleep", False),
    "read": ("S", "read", False),
    "write": ("S", "write", False),
    "receive": ("S", "recvfrom", False),
    "child": ("S", "wait4", False),
}


def samples(target: str | None = None, mount: str | None = None, **doing: int) -> list[list[Any]]:
    found = []
    for name, count in doing.items():
        state, call, gloo = _DOING[name]
        file = target if call in ("read", "write") else None
        found.append(
            ["python", state, call, gloo and call == "futex", None, file, gloo, mount if file else None, count]
        )
    return found


def rank(number: int, stacks: Any = None, **more: Any) -> dict[str, Any]:
    """A rank that waits for others 80 % of the time, if `more` does not say otherwise. `stacks`: folded ones."""
    watched: dict[str, Any] = {
        "samples": samples(wait=128, run=32),
        "children": [],
        "counters": {"throttled_us": 0, "major_faults": 0, "wchar": 1000, "syscw": 10},
        "cpu_quota": None,
        "links": [],
        "addresses": [f"10.0.0.{number}", "127.0.0.1"],
        "interfaces": {"eth0": {"rx_errors": 0}},
        "gpu": "0",
        "lines": {},
    }
    times = {name: more.pop(name) for name in ("wait_ns", "run_ns") if name in more}
    counters = {**watched["counters"], **more.pop("counters", {})}
    counted = [[stack, count] for stack, count in (stacks or {WAITS: 64, WORKS: 16}).items()]
    stack = {"source": "py-spy", "counted": counted} if stacks != {} else None
    made_rank = made.rank(number, "moving", 1, 4, stack=stack, watched={**watched, **more, "counters": counters})
    return made_rank | times


def worker(one: dict[str, Any], **more: Any) -> StackReport:
    watched = {"seconds": 8.0, "machine": {"ticks": dict.fromkeys(("user", "idle", "steal"), 0) | {"idle": 1600}},
               "gpus": [], "gpu_problem": "", "others": []}  # fmt: skip
    return made.report(one, seconds=8.1, watched={**watched, **more})


def verdict(odd: Any = None, usual: Any = None, **more: Any) -> SlowVerdict:
    """Four workers with a rank each, of which `odd` are special: fields of `rank`. `usual`: fields of the others."""
    reports = {}
    for number in range(4):
        fields = {**(usual or {}), **((odd or {}).get(number) or {})}
        reports[f"worker-{number}"] = worker(rank(number, **fields), **more.get(f"w{number}", {}))
    return judge(reports)


SLOW = {"samples": samples(wait=8, run=152), "stacks": {WAITS: 4, WORKS: 76}}


def told(found: SlowVerdict) -> tuple[CauseClass, Confidence | None, list[str | None]]:
    return found.cause, found.confidence, [culprit.worker for culprit in found.culprits]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, CauseClass.CODE),
        ({"lines": {"collects": [["/job/data.py", 41]]}}, CauseClass.GARBAGE),
        ({"samples": samples(wait=8, sleep=120, run=32)}, CauseClass.SLEEP),
        ({"samples": samples("/data/x", "/data (nfs)", wait=8, read=120, run=32)}, CauseClass.INPUT),
        ({"samples": samples(wait=8, receive=120, run=32)}, CauseClass.INPUT),
        ({"samples": samples("pipe:[7]", wait=8, write=120, run=32)}, CauseClass.OUTPUT),
        ({"counters": {"wchar": 40_000_000}}, CauseClass.OUTPUT),
        ({"counters": {"syscw": 80_000}}, CauseClass.OUTPUT),
        ({"samples": samples(wait=8, lock=120, run=32)}, CauseClass.CODE),
        ({"samples": samples(wait=8, lock=120), "stacks": {LOADS: 70, WAITS: 10}}, CauseClass.INPUT),
        ({"counters": {"throttled_us": 4_000_000}, "cpu_quota": 0.5}, CauseClass.CPU_LIMIT),
        ({"counters": {"major_faults": 4000}}, CauseClass.MEMORY),
        ({"wait_ns": 5_000_000_000, "run_ns": 200_000_000}, CauseClass.CPU_SHARED),
        ({"wait_ns": 4_000_000_000, "run_ns": 3_000_000_000}, CauseClass.CODE),
    ],
)
def test_judge_names_a_late_rank_and_its_cause(fields: dict[str, Any], cause: CauseClass) -> None:
    found = verdict({2: {**SLOW, **fields}})
    assert told(found) == (cause, Confidence.CERTAIN, ["worker-2"])
    assert [culprit.rank for culprit in found.culprits] == [2]
    assert not found.contradictions


def test_judge_names_a_starved_rank_on_a_busy_machine() -> None:
    usual = {"wait_ns": 5_000_000_000, "run_ns": 500_000_000}
    found = verdict({2: {**SLOW, "wait_ns": 7_400_000_000, "run_ns": 400_000_000}}, usual)
    assert told(found) == (CauseClass.CPU_SHARED, Confidence.CERTAIN, ["worker-2"])
    asleep = {"samples": samples(wait=8, sleep=120, run=32), "wait_ns": 5_500_000_000, "run_ns": 400_000_000}
    assert verdict({2: asleep}, usual).cause is CauseClass.SLEEP


def test_judge_names_no_rank_by_a_small_difference_on_a_busy_machine() -> None:
    usual, odd = {"samples": samples(wait=84, run=76)}, {"samples": samples(wait=56, sleep=68, run=36)}
    assert told(verdict({2: odd}, usual))[2] == ["worker-2"]
    full = {"machine": {"ticks": {"user": 1500, "idle": 20, "iowait": 20}}}
    assert told(verdict({2: odd}, usual, w0=full))[2] == []
    assert told(verdict({2: SLOW}, usual, w0=full))[2] == ["worker-2"]


def test_judge_names_line_and_mount() -> None:
    found = verdict({1: {**SLOW, "samples": samples("/data/x", "/data (nfs)", wait=8, read=120, run=32)}})
    (culprit,) = found.culprits
    assert culprit.mount == "/data (nfs)"
    assert str(culprit.frame) == 'File "/job/data.py", line 41, in tokenize'
    assert any(": /data/x" in witness.text for witness in found.witnesses)


def test_judge_shows_what_the_processes_of_a_dataloader_do() -> None:
    below = samples("/data/shard", "/data (nfs)", read=30, sleep=2)
    found = verdict({1: {"samples": samples(wait=8, lock=120), "stacks": {LOADS: 70, WAITS: 10}, "children": below}})
    assert found.culprits[0].mount == "/data (nfs)"
    assert "its child processes: reads: 94% of the time: /data/shard" in [one.text for one in found.witnesses]


def gpu(clock: float = 1900.0, slowed: tuple[str, ...] = (), *, corrected: int = 0, lost: int = 0) -> dict[str, Any]:
    """A GPU in two looks; `corrected`, `lost`: new ECC errors in the second one."""
    found = {"index": 0, "uuid": "GPU-1", "utilization.gpu": 95.0, "power.draw": 300.0, "temperature.gpu": 70.0,
             "ecc.errors.corrected.volatile.total": 400.0, "ecc.errors.uncorrected.volatile.total": 2.0,
             "clocks.sm": clock, "slowed": list(slowed)}  # fmt: skip
    errors = {"ecc.errors.corrected.volatile.total": 400.0 + corrected,
              "ecc.errors.uncorrected.volatile.total": 2.0 + lost}  # fmt: skip
    return {"gpus": [[found], [found | errors]]}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (gpu(900, ("heat",)), "heat slows its clocks"),
        (gpu(900), "its clock is low"),
        (gpu(corrected=30), "its memory has ECC errors"),
        (gpu(lost=1), "its memory has ECC errors"),
        (gpu(900, corrected=30), "its clock is low; its memory has ECC errors"),
    ],
)
def test_judge_names_a_slow_gpu(bad: dict[str, Any], why: str) -> None:
    others = {f"w{number}": gpu() for number in (0, 1, 3)}
    found = verdict({2: SLOW}, w2=bad, **others)
    assert told(found) == (CauseClass.GPU, Confidence.CERTAIN, ["worker-2"])
    assert (found.why, found.culprits[0].gpu) == (why, 0)


def test_judge_forgives_old_and_few_ecc_errors() -> None:
    assert verdict({2: SLOW}, w2=gpu(corrected=5)).cause is CauseClass.CODE


def test_judge_names_a_slow_gpu_for_which_all_wait_in_their_own() -> None:
    usual: Any = {"samples": samples(run=160), "stacks": {DEVICE: 80}}
    for item in usual["samples"]:
        item[6] = None  # no thread of gloo
    others = {f"w{number}": gpu() for number in (0, 1, 3)}
    for bad in (gpu(900, ("power brake",)), gpu(900), gpu(corrected=30)):
        found = verdict(usual=usual, w2=bad, **others)
        assert told(found) == (CauseClass.GPU, Confidence.LIKELY, ["worker-2"])
    assert told(verdict(usual=usual, w2=gpu(1700), **others))[2] == []


def test_judge_goes_by_stacks_if_the_group_of_gloo_is_idle() -> None:
    usual = {"samples": samples(run=160), "stacks": {DEVICE: 80}}
    found = verdict({1: {"stacks": {WORKS: 70, DEVICE: 10}}}, usual)
    assert told(found) == (CauseClass.CODE, Confidence.CERTAIN, ["worker-1"])
    found = verdict({1: {"stacks": {LOADS: 70, DEVICE: 10}}}, usual)
    assert told(found)[::2] == (CauseClass.INPUT, ["worker-1"])
    backward = f"main (/job/train.py:1);backward ({SITE}/torch/autograd/__init__.py:9)"
    found = verdict({1: {"stacks": {backward: 80}}}, usual)
    assert (found.cause, found.why) == (CauseClass.UNKNOWN, "it arrives last, and nothing shows why")
    found = verdict({1: {"samples": samples(sleep=100, run=60), "stacks": {WORKS: 70, DEVICE: 10}}}, usual)
    assert told(found) == (CauseClass.SLEEP, Confidence.CERTAIN, ["worker-1"])


def test_judge_reports_a_slowed_gpu_of_another_worker() -> None:
    found = verdict({2: SLOW}, w1=gpu(900, ("heat",)))
    assert told(found) == (CauseClass.CODE, Confidence.LIKELY, ["worker-2"])
    assert found.contradictions == ("GPU 0 of worker-1 is slowed, and the others do not wait for it",)


def test_judge_names_a_worker_whose_host_is_shared() -> None:
    ticks = {"machine": {"ticks": {"user": 800, "idle": 600, "steal": 200}}}
    assert told(verdict({2: SLOW}, w2=ticks)) == (CauseClass.STEAL, Confidence.CERTAIN, ["worker-2"])


def test_judge_names_a_worker_under_memory_pressure() -> None:
    ticks = {"machine": {"pressure": {"memory": {"some": 5_000_000, "full": 3_000_000}}}}
    assert told(verdict({2: SLOW}, w2=ticks)) == (CauseClass.MEMORY, Confidence.CERTAIN, ["worker-2"])


def link(peer: int, rate: float = 400.0, busy: float = 0.5, again: int = 0) -> dict[str, Any]:
    """A connection to worker `peer`; `rate` in MB/s while it is busy."""
    acked = int(rate * 1e6 * busy)
    return {"inode": 1, "host": "10.0.0.9", "port": 1, "peer": f"10.0.0.{peer}", "peer_port": 2,
            "busy": int(busy * 1e6), "acked": acked, "retransmitted": again, "sent_segments": 10_000}  # fmt: skip


def ring(**slow: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Links from each rank to the next one; `slow`: other figures of the link of rank `r0`."""
    return {number: {"links": [link((number + 1) % 4, **slow.get(f"r{number}", {}))]} for number in range(4)}


def test_judge_names_a_slow_link() -> None:
    found = verdict(ring(r1={"rate": 1.0, "busy": 6.0}))
    assert told(found) == (CauseClass.NETWORK, Confidence.CERTAIN, ["worker-1"])
    assert found.culprits[0].peer == "worker-2"


def test_judge_names_the_worker_of_all_slow_links() -> None:
    found = verdict(ring(r1={"rate": 1.0, "busy": 6.0}, r2={"rate": 1.1, "busy": 6.0}))
    assert told(found) == (CauseClass.NETWORK, Confidence.CERTAIN, ["worker-2"])
    assert found.culprits[0].peer is None


def test_judge_names_a_link_that_loses_data() -> None:
    found = verdict(ring(r3={"again": 200}))
    assert told(found) == (CauseClass.NETWORK, Confidence.CERTAIN, ["worker-3"])
    assert (found.why, found.culprits[0].peer) == ("data is lost and sent again", "worker-0")


def port(number: int, **counts: int) -> dict[str, Any]:
    return {"links": [link((number + 1) % 4)], "interfaces": {"eth0": {"rx_packets": 100_000}, "mlx5_0/1": counts}}


@pytest.mark.parametrize(
    "counts",
    [
        {"link_downed": 1},
        {"carrier_changes": 2},
        {"local_ack_timeout_err": 1},
        {"symbol_error": 10},
        {"rx_errors": 5},
        {"packet_seq_err": 400},
        {"rx_dropped": 500, "rx_packets": 50_000},
    ],
)
def test_judge_names_a_worker_whose_interface_has_errors(counts: dict[str, int]) -> None:
    found = verdict({number: port(number, **(counts if number == 2 else {})) for number in range(4)})
    assert told(found) == (CauseClass.NETWORK, Confidence.LIKELY, ["worker-2"])
    kind, *_ = counts
    assert found.witnesses[-1].text == f"faults of worker-2: mlx5_0/1: {kind} {counts[kind]}"


@pytest.mark.parametrize(
    "counts", [{"symbol_error": 9}, {"rx_dropped": 79}, {"rx_dropped": 500, "rx_packets": 200_000}, {"rx_packets": 7}]
)
def test_judge_forgives_counters_of_healthy_interfaces(counts: dict[str, int]) -> None:
    found = verdict({number: port(number, **(counts if number == 2 else {})) for number in range(4)})
    assert found.culprits == ()


def test_judge_forgives_interfaces_that_all_count_alike() -> None:
    assert verdict({number: port(number, symbol_error=50 + number) for number in range(4)}).culprits == ()
    assert verdict({number: port(number, link_downed=1) for number in range(4)}).culprits == ()


def test_judge_compares_interfaces_with_links() -> None:
    ends = ring(r1={"rate": 1.0, "busy": 6.0})
    ends[2]["interfaces"] = {"eth0": {"rx_errors": 70}}
    found = verdict(ends)
    assert told(found) == (CauseClass.NETWORK, Confidence.CERTAIN, ["worker-1"])
    assert found.witnesses[-1].text == "faults of worker-2: eth0: rx_errors 70"
    ends[3]["interfaces"] = ends[2].pop("interfaces")
    found = verdict(ends)
    assert told(found) == (CauseClass.NETWORK, Confidence.LIKELY, ["worker-1"])
    assert found.contradictions == ("faults of worker-3: eth0: rx_errors 70; its links are not slow",)


LOSSY = {Laggard("worker-1", peer="worker-2"): "3 % of the packets are lost"}


def test_with_network_test_agrees_with_the_connections() -> None:
    found = with_network_test(verdict(ring(r1={"again": 200})), LOSSY, "")
    assert told(found) == (CauseClass.NETWORK, Confidence.CERTAIN, ["worker-1"])
    assert found.witnesses[-1].text == "network test: link from worker-1 to worker-2: 3 % of the packets are lost"
    assert found.contradictions == ()
    likely = verdict({number: port(number, **({"link_downed": 1} if number == 2 else {})) for number in range(4)})
    assert (likely.confidence, with_network_test(likely, LOSSY, "").confidence) == ("likely", "certain")


def test_with_network_test_names_a_link_that_the_connections_do_not_show() -> None:
    waiting = verdict(usual={"samples": samples(wait=150, run=10)})
    found = with_network_test(waiting, LOSSY, "")
    assert told(found) == (CauseClass.NETWORK, Confidence.LIKELY, ["worker-1"])
    found = with_network_test(waiting, {}, "median 12 MB/s")
    assert told(found) == told(waiting)
    assert found.witnesses[-1].text == "network test: no slow or lossy link (median 12 MB/s)"


@pytest.mark.parametrize(
    ("odd", "faults", "against"),
    [
        (ring(r3={"again": 200}), LOSSY, "the network test does not confirm it"),
        (ring(r3={"again": 200}), {}, "the network test does not confirm it"),
        ({2: SLOW}, LOSSY, "the network test found a fault, and the ranks do not wait for the network"),
    ],
)
def test_with_network_test_contradicts(odd: Any, faults: dict[Laggard, str], against: str) -> None:
    before = verdict(odd)
    found = with_network_test(before, faults, "")
    assert (before.confidence, found.confidence) == (Confidence.CERTAIN, Confidence.LIKELY)
    assert (found.culprits, found.contradictions) == (before.culprits, (against,))


def test_with_network_test_of_a_verdict_without_a_cause() -> None:
    assert with_network_test(judge({}), LOSSY, "").confidence is None


def test_judge_names_no_link_if_several_without_a_common_end_are_slow() -> None:
    found = verdict(ring(r0={"again": 200}, r2={"again": 200}))
    assert told(found)[2] == []


@pytest.mark.parametrize(
    ("usual", "cause"),
    [
        ({"samples": samples(run=150, wait=10)}, CauseClass.CODE),
        ({"samples": samples("/data/x", read=150, wait=10)}, CauseClass.INPUT),
        ({"samples": samples(receive=150, wait=10)}, CauseClass.INPUT),
        ({"samples": samples(write=150, wait=10)}, CauseClass.OUTPUT),
        ({"samples": samples(sleep=150, wait=10)}, CauseClass.SLEEP),
        ({"samples": samples(wait=150, run=10)}, CauseClass.NETWORK),
        ({"samples": samples(lock=150, wait=10), "stacks": {LOADS: 75, WAITS: 5}}, CauseClass.INPUT),
    ],
)
def test_judge_names_no_worker_if_all_do_the_same(usual: dict[str, Any], cause: CauseClass) -> None:
    found = verdict(usual={"stacks": {WORKS: 75, WAITS: 5}, **usual})
    assert (found.cause, found.culprits, found.why) == (cause, (), "no worker is slower than the others")


def test_judge_names_a_machine_that_is_short_of_cpus() -> None:
    busy = {"samples": samples(run=150, wait=10), "wait_ns": 4_000_000_000, "run_ns": 3_000_000_000}
    found = verdict(usual=busy, w1={"others": [[7, "python", 400]]})
    assert told(found) == (CauseClass.CPU_SHARED, Confidence.LIKELY, [])
    assert found.why == "the machine is short of CPUs for all of its ranks"


def test_judge_names_a_limit_that_all_have() -> None:
    found = verdict(usual={"samples": samples(run=150, wait=10), "counters": {"throttled_us": 4_000_000}})
    assert told(found) == (CauseClass.CPU_LIMIT, Confidence.LIKELY, [])


def test_judge_reports_witnesses_that_contradict_each_other() -> None:
    other = {"stacks": {WAITS: 4, WORKS: 76}}
    found = verdict({1: {"samples": samples(wait=8, run=152)}, 2: other})
    assert told(found) == (CauseClass.UNKNOWN, None, [])
    assert found.contradictions == ("by samples rank 1 on worker-1 arrive last, by stacks rank 2 on worker-2",)


def test_judge_goes_by_samples_if_stacks_alone_differ() -> None:
    found = verdict({1: {"stacks": {WAITS: 30, WORKS: 50}}})
    assert (found.cause, found.culprits) == (CauseClass.NETWORK, ())


def test_judge_takes_a_wait_in_recv_for_one_of_the_late_rank() -> None:
    recv = f"main (/job/train.py:17);recv ({SITE}/torch/distributed/distributed_c10d.py:2500)"
    receives = {"samples": samples(lock=155, run=5), "stacks": {recv: 78, WORKS: 2}}
    asleep = {"samples": samples(wait=2, sleep=150, run=8), "stacks": {WORKS: 78, WAITS: 2}}
    assert told(verdict({1: asleep, 3: receives})) == (CauseClass.SLEEP, Confidence.CERTAIN, ["worker-1"])
    bare: dict[int, Any] = {number: {"stacks": {}} for number in range(4)}
    found = verdict(bare | {1: asleep | {"stacks": {}}, 3: receives | {"stacks": {}}})
    assert told(found) == (CauseClass.SLEEP, Confidence.LIKELY, ["worker-1"])


def test_judge_without_stacks_is_likely_or_has_another_witness() -> None:
    bare: dict[int, Any] = {number: {"stacks": {}} for number in range(4)}
    found = verdict(bare | {2: {"stacks": {}, "samples": samples(wait=8, run=152)}})
    assert told(found) == (CauseClass.CODE, Confidence.LIKELY, ["worker-2"])
    found = verdict(
        bare | {2: {"stacks": {}, "samples": samples(wait=8, run=152), "counters": {"throttled_us": 8_000_000}}}
    )
    assert told(found) == (CauseClass.CPU_LIMIT, Confidence.CERTAIN, ["worker-2"])


#: Reports of slow jobs with NCCL 2.28.9, recorded in November 2026 on one H200 that four ranks shared
#: (`NCCL_HOSTID`), with torch 2.11.0; paths were shortened, fields without use in the verdict removed.
RECORDED = [json.loads(line) for line in (Path(__file__).parent / "data/slow-h200.jsonl").read_text().splitlines()]
#: The cause and its confidence without a late rank, or of the late one; `+`: with Python stacks.
EXPECTED = {
    "none+": (CauseClass.GPU, Confidence.LIKELY),
    "none": (CauseClass.UNKNOWN, None),
    "gpu+": (CauseClass.GPU, Confidence.LIKELY),
    "sleep+": (CauseClass.SLEEP, Confidence.CERTAIN),
    "sleep": (CauseClass.SLEEP, Confidence.CERTAIN),
    "code+": (CauseClass.CODE, Confidence.CERTAIN),
    "code": (CauseClass.UNKNOWN, None),
    "loader+": (CauseClass.INPUT, Confidence.CERTAIN),
    "read+": (CauseClass.INPUT, Confidence.CERTAIN),
    "gc+": (CauseClass.CODE, Confidence.CERTAIN),
    "write+": (CauseClass.OUTPUT, Confidence.CERTAIN),
}


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['fault']}{'+' * case['stacks']}-{case['ras']}")
def test_judge_names_the_late_rank_of_a_real_job_with_nccl(case: dict[str, Any]) -> None:
    reports = {}
    for name, found in case["workers"].items():
        report = parse_report(json.dumps(found).encode())
        assert report is not None
        reports[name] = report
    found = judge(reports)
    cause, confidence = EXPECTED[case["fault"] + "+" * case["stacks"]]
    if not case["ras"] and not case["stacks"]:  # The others are not known to wait.
        confidence = Confidence.LIKELY
    assert (found.cause, found.confidence) == (cause, confidence)
    # A GPU that computes longer than the others cannot be told from those that wait for it.
    late = [] if case["fault"] in ("none", "gpu") else [case["rank"]]
    assert [culprit.rank for culprit in found.culprits] == late


#: A job with NCCL: no thread of gloo, and main threads that wait for a GPU run.
SPINS = {"samples": [["python", "R", "running", None, None, None, False, None, 160]], "stacks": {}}


def lags(looks: int, **late: int) -> dict[str, Any]:
    """`late`: how often by rank (`r2`). Ranks have the process id of `made`."""
    every = [[f"10.0.0.{name[1:]}", 100 + int(name[1:]), count] for name, count in late.items()]
    return {"lags": {"looks": looks, "late": every}}


def nccl(odd: Any = None, usual: Any = None, **more: Any) -> SlowVerdict:
    reports = {}
    for number in range(4):
        report = worker(rank(number, **{**SPINS, **(usual or {}), **((odd or {}).get(number) or {})}),
                        **more.get(f"w{number}", {}))  # fmt: skip
        (own,) = report.ranks
        inner, address = (7, "10.9.9.9") if more.get("shared") else (100 + number, f"10.0.0.{number}")
        reports[f"worker-{number}"] = replace(report, ranks=(replace(own, inner=inner),), addresses=(address,))
    return judge(reports)


def test_judge_names_no_rank_if_nothing_shows_who_waits() -> None:
    found = nccl()
    assert told(found) == (CauseClass.UNKNOWN, None, [])
    assert found.why == "nothing shows which rank the others wait for"
    assert nccl(usual={"stacks": {WORKS: 80}}).why == found.why
    assert nccl(w0=lags(5, r2=5)).why == found.why  # too few looks


def test_judge_shows_a_late_rank_that_was_not_looked_at() -> None:
    found = nccl(w0=lags(20, r2=3, r9=15, r8=14))
    assert told(found) == (CauseClass.UNKNOWN, None, [])
    assert found.why == "a rank on 10.0.0.9 that was not looked at launches last"
    assert found.witnesses[0].text.startswith("pid 109 on 10.0.0.9 had launched less than others in 75% of ")
    assert told(nccl(w0=lags(20, r2=15, r9=3)))[2] == ["worker-2"]
    # Two workers with one address and the same process ids.
    twin = {"lags": {"looks": 20, "late": [["10.9.9.9", 7, 15]]}}
    assert nccl(w0=twin, shared=True).why == "nothing shows which rank the others wait for"


def test_judge_names_the_rank_that_launches_last() -> None:
    assert told(nccl(w0=lags(20, r2=15, r1=2))) == (CauseClass.UNKNOWN, None, ["worker-2"])
    found = nccl({2: {"stacks": {WORKS: 70}}}, {"stacks": {DEVICE: 70}}, w0=lags(20, r2=15), w3=lags(20, r2=17))
    assert told(found) == (CauseClass.CODE, Confidence.CERTAIN, ["worker-2"])
    assert found.witnesses[0].text.startswith("rank 2 on worker-2: had launched less than others in 80% of ")
    alike = nccl(w0=lags(20, r2=3, r1=2))
    assert alike.why == "all ranks launch alike; only stacks show whether they compute or wait"


def test_judge_reports_launches_that_contradict_the_stacks() -> None:
    found = nccl({1: {"stacks": {WORKS: 70}}}, {"stacks": {DEVICE: 70}}, w0=lags(20, r2=15))
    assert told(found) == (CauseClass.UNKNOWN, None, [])
    assert found.contradictions == ("by NCCL's counts rank 2 on worker-2 arrive last, by stacks rank 1 on worker-1",)


def test_judge_takes_a_line_that_waits_for_a_gpu_as_such() -> None:
    item = "main (/job/train.py:19)"
    waits = {"stacks": {item: 70, WORKS: 10}, "lines": {"syncs": [["/job/train.py", 19]]}}
    found = nccl({2: {"stacks": {item: 5, WORKS: 75}}}, waits)
    assert told(found) == (CauseClass.CODE, Confidence.CERTAIN, ["worker-2"])
    assert found.ranks[0].frame == Frame("/job/data.py", 41, "tokenize")


def test_judge_without_ranks() -> None:
    assert judge({}).why.startswith("no rank process was found")
    assert judge({"worker-0": made.report()}).cause is CauseClass.UNKNOWN


def test_judge_names_unseen_ranks_and_ranks_without_a_number() -> None:
    found = judge({"worker-1": worker(rank(1))})
    assert found.unseen == (0, 2, 3)
    nameless = {**rank(1), "rank": None}
    found = judge({"w": worker(nameless), "v": worker({**rank(2, **SLOW), "rank": None})})
    assert named(found.ranks[:1]).startswith("a rank of unknown number on ")


@pytest.mark.parametrize("junk", [None, 1, "x", [], {}, [[]], [None] * 9, {"a": {"b": 1}}, -1, 1e300, "\ud800"])
def test_judge_takes_any_field(junk: Any) -> None:
    whole = {"atlctl_stacks": 1, "seconds": 8.0, "ranks": [rank(0), rank(1, **SLOW)], "watched": worker_fields()}
    for path in _paths(whole):
        data = json.loads(json.dumps(whole))
        _put(data, path, junk)
        report = parse_report(json.dumps(data).encode())
        if report is not None:
            judge({"worker-0": report})


def worker_fields() -> dict[str, Any]:
    return {"seconds": 8.0, "machine": {"ticks": {"user": 1}, "pressure": {"cpu": {"some": 1}}},
            "others": [[1, "x", 2]], "gpu_problem": "", **gpu()}  # fmt: skip


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in items for found in [(*path, key), *_paths(value, (*path, key))]]


def _put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value
