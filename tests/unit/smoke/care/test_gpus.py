"""The agent's nvidia-smi queries, with fake scripts, and the client's judgement of the answers."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlctl.jobs.model import Worker
from atlctl.remote.smoke import gpus
from atlctl.smoke import care
from atlctl.smoke import facts as gathering
from atlctl.smoke.care import check_gpus, ill, in_use, look_before, too_little, trusted
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Report, Severity, SmokeVerdict
from atlctl.smoke.session import Session
from tests.support.pace import within
from tests.support.plainhosts import PlainHosts, workers

#: Two GPUs in the format of an H100's driver; `$FAKE` selects faults.
SMI = """\
#!/bin/sh
case "$*" in *"${FAKE_HANG:-nothing}"*) exec sleep 1000 ;; esac
row() {
  echo "$1, GPU-$1, NVIDIA H100 80GB HBM3, $2, 81559, 70.12, 31, ${3:-0}, 00000000:${1}B:00.0"
}
case "$*" in
  *query-compute-apps*) [ -z "$FAKE_APPS" ] || echo "$FAKE_APPS" ;;
  *remapped_rows*) echo "0, No, No"; echo "1, ${FAKE_REMAP:-No}, No" ;;
  *mig.mode*) echo "0, [N/A]"; echo "1, ${FAKE_MIG:-[N/A]}" ;;
  *retired_pages*) echo "Field \\"retired_pages.pending\\" is not a valid field to query."; exit 2 ;;
  *clocks_*_reasons*)
    case "$*" in
      *clocks_${FAKE_KNOWN:-event}_reasons.active*)
        echo "0, 0x0000000000000001"; echo "1, ${FAKE_THROTTLE:-0x0000000000000001}" ;;
      *) echo "Field \\"clocks_reasons\\" is not a valid field to query."; exit 2 ;;
    esac ;;
  *ecc.errors.uncorrected.aggregate*) echo "0, 0"; echo "1, 12" ;;
  *query-gpu*)
    row 0 "0, 4"
    if [ -n "$FAKE_LOST" ]; then
      echo "Unable to determine the device handle for GPU 0000:1B:00.0: Unknown Error"
    else
      row 1 "${FAKE_USE:-0, 4}" "$FAKE_ECC"
    fi ;;
  *nvlink*)
    for gpu in 0 1; do
      echo "GPU $gpu: NVIDIA H100 80GB HBM3 (UUID: GPU-$gpu)"
      printf '\\t Link 0: 26.562 GB/s\\n\\t Link 1: %s\\n' "${FAKE_LINK:-26.562 GB/s}"
    done ;;
  *TEMPERATURE*) for gpu in 0 1; do
      printf 'GPU 00000000:%sB:00.0\n  Temperature\n    GPU Slowdown Temp   : 89 C\n' "$gpu"
    done ;;
  *topo*)
    printf '\\tGPU0\\tGPU1\\tNIC0\\tCPU Affinity\\n'
    printf 'GPU0\\t X \\tNV18\\tPIX\\t0-63\\nGPU1\\tNV18\\t X \\tSYS\\t0-63\\n' ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "nvidia-smi"
    file.write_text(SMI)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_all_of_it(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_APPS", "GPU-1, 4711, 512")
    monkeypatch.setenv("FAKE_LINK", "<inactive>")
    found = gpus.look(5.0, more=True)
    assert found["hung"] == ""
    assert found["topology"] == {"NV18": 1}
    one = found["gpus"][1]
    assert one == {
        "index": 1, "uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "bus": "00000000:1B:00.0", "utilisation": 0.0,
        "memory_used": 4.0, "memory_total": 81559.0, "power": 70.12, "temperature": 31.0, "ecc": 0.0,
        "clock_reasons": 1, "processes": 1, "remap_pending": "No", "remap_failure": "No", "ecc_ever": 12.0, "mig": None,
        "links": {"up": 1, "down": 1}, "slowdown": 89.0,
    }  # fmt: skip


@pytest.mark.parametrize(("known", "bits"), [("event", 0x48), ("throttle", 0x48), ("no_more", None)])
def test_a_field_that_a_driver_does_not_know_costs_that_field_only(
    smi: Path, monkeypatch: pytest.MonkeyPatch, known: str, bits: int | None
) -> None:
    """NVIDIA renamed it; an unknown name makes a whole query fail."""
    monkeypatch.setenv("FAKE_KNOWN", known)
    monkeypatch.setenv("FAKE_THROTTLE", "0x48")
    one = gpus.look(5.0, more=False)["gpus"][1]
    assert (one["name"], one["power"], one.get("clock_reasons")) == ("NVIDIA H100 80GB HBM3", 70.12, bits)


def test_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = gpus.look(5.0, more=True)
    assert (found["tool"], found["gpus"]) == (False, [{"index": n, "name": None} for n in range(found["devices"])])


def test_one_that_hangs_is_told_and_ended(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "query-gpu=index,uuid")
    begun = time.monotonic()
    assert gpus.look(0.5, more=False)["hung"] == "no answer in 0.5 s (process state S)"
    assert within(time.monotonic() - begun, 5)


def test_one_question_that_hangs_costs_only_its_answer(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "nvlink")
    found = gpus.look(0.5, more=True)
    assert found["hung"] == ""
    assert "links" not in found["gpus"][0]
    assert found["gpus"][0]["processes"] == 0


@pytest.mark.parametrize("output", ["", "\0\xff, , ,", "0, a", "No devices were found", "ERR!\n" * 99, "1" * 99999])
def test_nonsense_of_the_tool_is_survived(output: str) -> None:
    found, odd, _ = gpus._rows(("index", "name"), output)
    assert len(found) < 2
    assert len(odd) <= 16
    gpus.parse_links(output)
    assert gpus.parse_slowdowns(output) == {}
    gpus.parse_topology(output)
    gpus.parse_xids([(0.0, line) for line in output.splitlines()], 0.0)


def test_where_clocks_are_slowed_for_heat() -> None:
    """GPUs up to Ampere report the temperature, later ones the remaining degrees."""
    output = """
Timestamp                                 : Thu Nov 26 03:00:00 2026
Attached GPUs                             : 3

GPU 00000000:0B:00.0
    Temperature
        GPU Current Temp                  : 34 C
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 85 C
        Memory Current Temp               : 41 C
GPU 00000000:1B:00.0
    Temperature
        GPU Current Temp                  : 86 C
        GPU T.Limit Temp                  : 1 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        GPU Target Temperature            : N/A
GPU 00000000:2B:00.0
    Temperature
        GPU Current Temp                  : 40 C
        GPU T.Limit Temp                  : N/A
        GPU Slowdown Temp                 : N/A
"""
    assert gpus.parse_slowdowns(output) == {"00000000:0b:00.0": 89.0, "00000000:1b:00.0": 89.0}


def test_xids_of_the_last_day() -> None:
    log = [
        (1.0, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."),
        (90000.0, "NVRM: Xid (PCI:0000:1b:00): 31, pid=2, name=python, MMU Fault"),
        (90001.0, "eth0: link up"),
        (90002.0, "nonsense Xid"),
    ]
    assert [(xid["bus"], xid["xid"], xid["age"]) for xid in gpus.parse_xids(log, 90060.0)] == [("0000:1b:00", 31, 60)]


def fact(*, smi: Mapping[str, Any] | None = None, **gpu: Any) -> dict[str, Any]:
    fine = {"name": "H100", "bus": "00000000:1B:00.0", "utilisation": 0.0, "memory_used": 4.0, "processes": 0}
    listed = [{"index": 0, **fine, "bus": "00000000:0B:00.0"}, {"index": 1, **fine, **gpu}]
    return {"gpus": listed, "smi": {"tool": True, **(smi or {})}, "memory": {"room": 64 << 30, "of": "cgroup"}}


def xid(number: int, text: str = "", bus: str = "0000:1b:00") -> dict[str, Any]:
    """The agent's report for a kernel log line from two minutes ago."""
    line = f"NVRM: Xid (PCI:{bus}): {number}, pid=7, {text}"
    return {"xids": [{"bus": bus, "xid": number, "age": 120, "text": line}]}


@pytest.mark.parametrize(
    ("facts", "stated", "kind", "severity", "text"),
    [
        (fact(ecc=3.0), 2, "gpu", Severity.FAIL, "3 memory errors that ECC could not correct"),
        (fact(remap_failure="Yes"), 2, "gpu", Severity.FAIL, "could not be remapped"),
        (fact(remap_pending="Yes"), 2, "gpu", Severity.FAIL, "waits for the GPU to be reset"),
        (fact(throttled=["heat"], temperature=91.0), 2, "gpu", Severity.WARN, "heat, 91 degrees"),
        (fact(temperature=92.0), 2, "gpu", Severity.FAIL, "92 degrees, and its clocks are slowed at 92"),
        (fact(temperature=88.0, slowdown=87.0), 2, "gpu", Severity.FAIL, "88 degrees, and its clocks are slowed at 87"),
        (fact(smi=xid(74)), 2, "gpu", Severity.WARN, "Xid 74 2 min ago: An NVLink error"),
        (fact(smi=xid(94)), 2, "gpu", Severity.WARN, "Xid 94 2 min ago: A contained memory error"),
        (fact(smi=xid(140)), 2, "gpu", Severity.WARN, "Xid 140 2 min ago: A memory error that ECC could not correct"),
        (fact(smi=xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")), 2, "gpu",
         Severity.WARN, "asks for a reset of the GPU"),
        (fact(), 8, "worker", Severity.FAIL, "2 GPUs are there, the platform states 8"),
        (fact(smi={"odd": ["Unable to determine the device handle"]}), None, "worker", Severity.FAIL,
         "Unable to determine"),
        (fact(smi={"hung": "no answer in 5 s"}), None, "worker", Severity.FAIL, "nvidia-smi hangs"),
    ],
)  # fmt: skip
def test_what_is_wrong(facts: dict[str, Any], stated: int | None, kind: str, severity: Severity, text: str) -> None:
    (finding,) = ill("worker-0", facts, stated, True, facts)
    assert finding.culprit is not None
    assert (finding.culprit.kind, finding.severity, finding.confirmed) == (kind, severity, True)
    assert finding.culprit.gpu == (1 if kind == "gpu" else None)
    assert text in finding.evidence


@pytest.mark.parametrize(
    ("facts", "stated"),
    [
        (fact(), 2),
        (fact(throttled=[]), None),
        # A GPU of another container on the same machine; a program's error.
        (fact(smi=xid(79, bus="0000:9b:00")), 2),
        (fact(smi=xid(31)), 2),
        (fact(smi=xid(-1)), 2),
        (fact(smi=xid(10**30)), 2),
        (fact(smi=xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")), 2),
        # Slices of one GPU; a timeout does not mean a missing GPU; cards of another vendor.
        (fact(mig="Enabled"), 14),
        ({"gpus": [], "smi": {"problem": "no answer", "late": True}}, 8),
        ({"gpus": [], "smi": {"tool": False, "devices": 0}}, None),
    ],
)
def test_what_is_not_wrong(facts: dict[str, Any], stated: int | None) -> None:
    assert ill("worker-0", facts, stated, True, facts) == []


def test_the_platforms_number_is_trusted_where_it_agrees_somewhere() -> None:
    none = {"gpus": [], "smi": {"tool": False, "devices": 0}}
    assert ill("w0", none, 8, trusted({"w0": none}, {"w0": 8}), {}) == []
    assert trusted({"w0": none, "w1": fact()}, {"w0": 2, "w1": 2})
    assert [f.severity for f in ill("w0", none, 2, True, {})] == [Severity.FAIL]
    # The platform may count two shares of each GPU, but not seven GPUs.
    assert [f.severity for f in ill("w0", fact(), 4, False, {})] == [Severity.WARN]
    assert [f.severity for f in ill("w0", fact(), 7, False, {})] == [Severity.FAIL]


def test_throttling_must_be_seen_twice() -> None:
    hot = fact(throttled=["heat"])
    assert ill("w0", hot, None, True, fact(throttled=[])) == []


@pytest.mark.parametrize(
    ("facts", "text", "fleeting"),
    [
        (fact(), "", False),
        (fact(utilisation=97.0), "GPU 1 in use, up to 97 %", True),
        (fact(memory_used=70000.0), "memory of GPU 1 is held, up to 70000 MiB", False),
        (fact(processes=2, memory_used=70000.0), "processes compute on GPU 1", False),
        ({"ranks": [{"rank": 9}, {"rank": 8}, {"rank": 10}]}, "ranks run there (8, 9, 10)", False),
        (
            {"ranks": [], "ranks_problem": "no answer in 4 s"},
            "it is unknown whether ranks run there: no answer in 4 s",
            False,
        ),
        ({"gpus": [], "ranks": "nonsense"}, "", False),
    ],
)
def test_somebody_trains(facts: dict[str, Any], text: str, fleeting: bool) -> None:
    found = in_use(facts, None)
    assert text in "; ".join(found.reasons)
    assert bool(found.reasons) == bool(text)
    assert found.fleeting is fleeting


def test_only_chosen_gpus_count() -> None:
    assert in_use(fact(processes=1), [0]).reasons == ()
    assert in_use(fact(processes=1), [1]).reasons


def test_memory() -> None:
    scarce = fact() | {"memory": {"room": 900 << 20, "of": "cgroup", "group_kill": True}}
    assert too_little({"w0": scarce, "w1": fact()}, Options()) == {
        "w0": "900 MiB of memory are left to its cgroup, 1.25 GiB are needed, and all of its processes would be killed"
    }
    assert too_little({"w0": {"memory": {"room": None}}, "w1": {"memory": "x"}, "w2": {}}, Options()) == {}


# With real agents

Test = Callable[[Run], Any]


def over(
    env: Callable[[Worker], Mapping[str, str]], *tests: Test, options: Options | None = None, stated: int | None = None
) -> Run:
    """Run `tests` one after another on three workers with this environment."""

    async def main() -> Run:
        hosts = [replace(worker, gpus=stated) for worker in workers(3)]
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        marks = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": "care-test"}
        own = PlainHosts(env=lambda w: {**marks, "ATLCTL_WORKER": w.name, **env(w)})
        async with Session(own, hosts, config) as session:
            assert await session.roll_call(20) == {}
            run = Run(session, tuple(hosts), options or Options(), Report("quick"))
            for test in tests:
                await test(run)
        return run

    return asyncio.run(main())


def bad(**env: str) -> Callable[[Worker], Mapping[str, str]]:
    return lambda worker: env if worker.index == 1 else {}


def test_healthy_gpus_pass_and_nobody_is_quiet(smi: Path) -> None:
    run = over(bad(), look_before, check_gpus, stated=2)
    assert (run.quiet, run.report.findings) == ("", [])
    assert [(check.name, check.verdict, check.note) for check in run.report.checks] == [
        ("gpus", SmokeVerdict.PASS, "2 GPUs on 3 workers")  # each worker sees the GPUs of this machine
    ]


@pytest.mark.parametrize(
    ("env", "culprit", "text"),
    [
        ({"FAKE_ECC": "2"}, ("gpu", 1), "2 memory errors"),
        ({"FAKE_THROTTLE": "0x0000000000000048"}, ("gpu", 1), "clock is held down: heat"),
        ({"FAKE_THROTTLE": "0x08", "FAKE_KNOWN": "throttle"}, ("gpu", 1), "clock is held down: hardware"),
        ({"FAKE_LOST": "1"}, ("worker", None), "Unable to determine the device handle"),
        ({"FAKE_HANG": "query-gpu=index,uuid"}, ("worker", None), "nvidia-smi hangs"),
    ],
)
def test_the_bad_gpu_is_named(
    smi: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], culprit: tuple[str, int | None], text: str
) -> None:
    monkeypatch.setattr(gathering, "GPU_SECONDS", 1.0)
    monkeypatch.setattr(care, "_SECOND_LOOK", 1.5)
    (finding,) = over(bad(**env), check_gpus, stated=2).report.findings
    assert finding.culprit is not None
    assert (finding.culprit.kind, finding.culprit.gpu, finding.culprit.worker) == (*culprit, "worker-1")
    assert text in finding.evidence
    assert finding.confirmed


def test_power_capping_alone_is_no_throttling(smi: Path) -> None:
    assert over(bad(FAKE_THROTTLE="0x0000000000000004"), check_gpus).report.findings == []


def test_a_busy_gpu_makes_the_run_quiet(smi: Path) -> None:
    run = over(bad(FAKE_USE="98, 70000"), look_before)
    assert run.quiet.startswith(
        "training in progress: worker-1: memory of GPU 1 is held, up to 70000 MiB; GPU 1 in use"
    )
    assert over(bad(FAKE_USE="98, 70000"), look_before, options=Options(allow_busy=True)).quiet == ""
    chosen = Options(gpus={"worker-1": [0], "worker-0": [0, 1]})
    assert over(bad(FAKE_USE="98, 70000"), look_before, options=chosen).quiet == ""


def test_no_gpu_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = over(bad(), check_gpus)
    if not any(fact["gpus"] for fact in run.facts.values()):
        assert [check.verdict for check in run.report.checks] == [SmokeVerdict.NOT_JUDGED]
