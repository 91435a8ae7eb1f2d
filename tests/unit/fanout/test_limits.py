import resource

import pytest

from atlctl.fanout.limits import SPARE, raise_descriptor_limit
from atlctl.jobs.errors import AtlctlError

INFINITY = resource.RLIM_INFINITY


def limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: calls.append(pair))
    return calls


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "calls"),
    [
        (1024, 4096, 100, []),
        (1024, 4096, 1024 - SPARE, []),
        (1024, 4096, 2000, [(2000 + SPARE, 4096)]),
        (1024, 4096, 4096 - SPARE, [(4096, 4096)]),
        (1024, INFINITY, 5000, [(5000 + SPARE, INFINITY)]),
        (INFINITY, INFINITY, 10**9, []),
    ],
)
def test_the_soft_limit_is_raised_as_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, needed: int, calls: list[tuple[int, int]]
) -> None:
    made = limits(monkeypatch, soft, hard)
    raise_descriptor_limit(needed, 4)
    assert made == calls


def test_a_hard_limit_that_is_too_low_is_said_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = limits(monkeypatch, 256, 512)
    with pytest.raises(AtlctlError) as caught:
        raise_descriptor_limit(4000, 10)
    assert caught.value.message == "4064 open files are needed, the limit is 512 (soft 256)"
    assert "ulimit -n 4064" in str(caught.value.hint)
    assert "--batch 44" in str(caught.value.hint)
    assert made == []


def test_the_real_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        raise_descriptor_limit(300, 4)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300 + SPARE, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
