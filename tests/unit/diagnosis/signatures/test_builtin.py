"""The built-in signatures, one by one: matches, non-matches, and texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from atlctl.diagnosis.signatures import FaultScope, LineRole, Matcher, Text, builtin, shape

from .examples import EXAMPLES, HEALTHY

BUILTIN = builtin()
SIGNATURES = {signature.id: signature for signature in BUILTIN.signatures}
MATCHER = Matcher(BUILTIN.signatures)
BYTES = MATCHER.literals()

#: Categories that no log text shows, only other evidence.
WITHOUT_TEXT = {
    "admission", "container_config", "deadline", "early_exit_zero", "elastic_scale_up_rendezvous_failure",
    "explicit_exit", "image_pull", "liveness_probe", "network_lost", "not_scheduled", "slow_start", "stale_restart",
    "success", "success_after_restart", "unknown", "unknown_python_exit", "volume_mount",
}  # fmt: skip


def winner(line: str) -> str | None:
    found = MATCHER.match(line)
    return found.signature.id if found else None


def each_example() -> Iterator[tuple[str, str]]:
    return ((name, line) for name in SIGNATURES for line in EXAMPLES[name]["match"])


def test_ids_are_unique_and_all_have_examples():
    assert len(SIGNATURES) == len(BUILTIN.signatures)
    assert SIGNATURES.keys() == EXAMPLES.keys()
    assert [name for name, lines in EXAMPLES.items() if not lines["match"]] == []


def test_each_wins_its_examples():
    assert [(name, line) for name, line in each_example() if winner(line) != name] == []


@pytest.mark.parametrize(
    "prefix",
    ["2025-01-02T03:04:05.123456789Z ", "[default3]:", "[pod/w-0/pytorch] ", "worker-1: ", "[rank2]: [rank2]: ", "0: "],
)
def test_each_wins_its_examples_behind_a_prefix(prefix):
    # "Killed" is the shell's message, and is significant only if it is the whole line.
    found = [(name, winner(prefix + line)) for name, line in each_example() if line != "Killed"]
    assert [pair for pair in found if pair[0] != pair[1]] == []


def test_none_wins_its_near_misses():
    assert [(name, line) for name in EXAMPLES for line in EXAMPLES[name].get("miss", ()) if winner(line) == name] == []


@pytest.mark.parametrize("line", HEALTHY.splitlines())
def test_healthy_lines_match_nothing(line):
    assert winner(line) is None


def test_every_match_contains_a_literal():
    assert [s.id for s in BUILTIN.signatures if not shape(s.pattern).covered(s.literals)] == []


def test_no_literal_is_short_or_idle():
    idle = []
    for signature in BUILTIN.signatures:
        ways = shape(signature.pattern).ways
        idle += [text for text in signature.literals if not any(text in way for way in ways)]
        idle += [text for text in signature.literals if not text.isascii() or len(text) < 5]
    assert idle == []


def test_the_prefilter_lets_every_example_through():
    for name, line in each_example():
        assert any(literal in line for literal in SIGNATURES[name].literals)
        assert any(literal in line.encode() for literal in BYTES)


def test_texts_are_there_in_both_languages():
    texts = [(s.id, text) for s in BUILTIN.signatures for text in (s.meaning, s.advice)]
    texts += [(c.id, text) for c in BUILTIN.categories.values() for text in (c.title, c.meaning, c.advice)]
    assert [(name, text) for name, text in texts if not well_written(text)] == []


def well_written(text: Text) -> bool:
    chinese = re.search(r"[\u4e00-\u9fff]", text.zh) is not None
    whole = all(one and one == one.strip() and not re.search(r"[\u2013\u2014]", one) for one in (text.en, text.zh))
    return chinese and whole and text.en.isascii() and len(text.en) <= 140


def test_categories_are_complete():
    used = {signature.category for signature in BUILTIN.signatures}
    assert used <= BUILTIN.categories.keys()
    assert BUILTIN.categories.keys() - used == WITHOUT_TEXT
    assert [name for name, category in BUILTIN.categories.items() if category.id != name] == []


def test_hardware_and_role_agree_with_the_category():
    for signature in BUILTIN.signatures:
        to_blame = signature.role in (LineRole.ROOT, LineRole.AMBIGUOUS)
        if to_blame and BUILTIN.categories[signature.category].hardware:
            assert signature.hardware, signature.id
        if signature.hardware:
            assert to_blame, signature.id
        assert (signature.category == "noise") == (signature.role is LineRole.NOISE), signature.id


def test_faults_of_a_whole_worker():
    worker = {name for name, signature in SIGNATURES.items() if signature.scope is FaultScope.WORKER}
    assert {"script_missing", "oom_killer", "xid_79", "driver_missing", "memory_failure", "agent_signal"} <= worker
    assert not {"cuda_oom", "python_exception", "exit_sigsegv", "gloo_peer_closed", "disk_full"} & worker


def groups(line: str) -> dict[str, str]:
    found = MATCHER.match(line)
    assert found is not None
    return dict(found.groups)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exit_sigkill", {"local_rank": "6", "pid": "2211"}),
        ("elastic_failed", {"code": "1", "local_rank": "2", "pid": "4400"}),
        ("agent_closes", {"pid": "414", "signal": "SIGTERM"}),
        ("agent_signal", {"signal": "15"}),
        ("mpirun_child", {"rank": "5", "peer": "gpu-a17", "signal": "11"}),
        ("mpirun_failed", {}),
        ("horovod_child", {"rank": "2", "code": "250"}),
        ("lightning_child", {"pid": "2077", "code": "-11"}),
        ("called_process", {"code": "2"}),
        ("srun_task", {"peer": "gpu-a17", "tasks": "12"}),
        ("watchdog_timeout", {"seq": "512", "op": "ALLGATHER"}),
        ("nccl_unique_id", {"kind": "NCCL", "ranks": "0"}),
        ("nccl_dump_from", {"rank": "6", "enqueued": "41", "completed": "40"}),
        ("nccl_progress", {"enqueued": "42", "completed": "41"}),
        ("nccl_desync_missing", {"ranks": "3, 17"}),
        ("nccl_desync_behind", {"ranks": "5"}),
        ("nccl_peer_closed", {"peer": "n4-ib0.local", "port": "40404"}),
        ("nccl_connect_refused", {"peer": "10.7.7.7", "port": "40404"}),
        ("ib_retry", {"peer": "10.7.7.7", "port": "40404"}),
        ("ib_flushed", {"peer": "10.7.7.7", "port": "40404"}),
        ("hccl_notify", {"ranks": "5"}),
        ("barrier_missing", {"ranks": "9, 10"}),
        ("barrier_waited", {"ranks": "0"}),
        ("collective_fingerprint", {"rank": "1"}),
        ("gloo_mesh_stale", {"peer": "10.7.7.7", "port": "40404"}),
        ("gloo_gave_up", {"peer": "10.1.2.4", "port": "4200"}),
        ("gloo_peer_closed", {"peer": "10.7.7.7", "port": "40404"}),
        ("client_timeout", {"peer": "head-0.job", "port": "29400"}),
        ("client_failed", {"peer": "head-0.job", "port": "29400"}),
        ("dns_of_store", {"peer": "head-0.job", "port": "29400"}),
        ("xid_13", {"pci": "0000:3b:00", "xid": "13", "pid": "4242"}),
        ("xid_79", {"pci": "0000:3b:00", "xid": "79"}),
        ("gpu_address", {"pci": "0000:3b:00", "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef"}),
        ("oom_cgroup", {"pid": "3210"}),
        ("nan_megatron", {"rank": "12"}),
        ("python_exception", {"exception": "ValueError"}),
    ],
)
def test_groups_of_the_first_example(name, expected):
    assert groups(EXAMPLES[name]["match"][0]) == expected
