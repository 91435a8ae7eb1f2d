from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.selection import Selection, parse_numbers, resolve

TOKENS = st.lists(st.text(st.sampled_from("0123459-,[]*?!worke\x1b"), max_size=12), max_size=3).map(tuple)


def job_of(count: int) -> Job:
    workers = tuple(
        Worker(f"worker-{i}", i, State.FAILED if i % 3 == 0 else State.RUNNING, role="w", pod=f"p{i}")
        for i in range(count)
    )
    return Job("j", "local", "local", State.RUNNING, "u", count + 1, workers)


@settings(deadline=None, max_examples=300)
@given(TOKENS, TOKENS, TOKENS, st.booleans(), st.integers(0, 20))
@example(("0-9999999",), (), (), False, 3)
def test_any_text_gives_workers_in_order_or_a_clear_error(
    workers: tuple[str, ...], ranks: tuple[str, ...], exclude: tuple[str, ...], failed: bool, count: int
) -> None:
    job = job_of(count)
    selection = Selection(workers=workers, ranks=ranks, failed=failed, exclude=exclude)
    try:
        chosen = resolve(selection, job, RankMap({i: f"worker-{i // 2}" for i in range(2 * count)}, "test"))
    except (UsageError, NothingMatched) as error:
        event(error.kind)
        return
    indexes = [worker.index for worker in chosen]
    assert indexes == sorted(set(indexes))
    assert indexes


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=6), st.booleans())
def test_number_ranges_mean_indexes(spans: list[tuple[int, int]], split: bool) -> None:
    parts = [f"{first}-{first + more}" if more else str(first) for first, more in spans]
    wanted = {index for first, more in spans for index in range(first, first + more + 1)}
    assert parse_numbers(",".join(parts)) == [range(first, first + more + 1) for first, more in spans]
    texts = tuple(parts) if split else (",".join(parts),)
    job = job_of(60)
    assert {worker.index for worker in resolve(Selection(workers=texts), job)} == wanted
    if len(wanted) < 60:
        left = resolve(Selection(all=True, exclude=texts), job)
        assert {worker.index for worker in left} == set(range(60)) - wanted
