from hypothesis import example, given, settings
from hypothesis import strategies as st

from atlctl.jobs.model import Job, State, Worker
from atlctl.jobs.naming import MAX_FILE_NAME, fold_names, natural_key, safe_file_name
from atlctl.jobs.selection import Selection, resolve

PLAIN = st.text(st.sampled_from("ab-.01239"), min_size=1, max_size=8).filter(
    lambda name: not set(name) <= set("0123456789-")
)
NUMBERED = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["worker-", "gpu", "n1-"]),
    st.integers(0, 120),
    st.integers(1, 4),
)
ANY = st.text(st.characters(codec=None), max_size=300)


def job_of(names: list[str]) -> Job:
    workers = tuple(Worker(name, index, State.RUNNING) for index, name in enumerate(names))
    return Job("j", "local", "local", State.RUNNING, "u", len(names), workers)


@settings(deadline=None, max_examples=200)
@given(st.lists(PLAIN | NUMBERED, min_size=1, max_size=30, unique=True), st.data())
def test_folded_names_select_exactly_what_was_folded(names: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    folded = fold_names(chosen)
    selected = resolve(Selection(workers=(folded,)), job_of(names))
    assert {worker.name for worker in selected} == set(chosen)


@settings(deadline=None, max_examples=100)
@given(st.lists(ANY, max_size=10))
@example(["", "["])
def test_folding_ignores_order_and_doubles(names: list[str]) -> None:
    assert fold_names(names) == fold_names([*reversed(names), *names])


@settings(deadline=None, max_examples=200)
@given(ANY, ANY)
def test_file_names_are_safe_and_injective(one: str, two: str) -> None:
    first, second = safe_file_name(one), safe_file_name(two)
    assert (first == second) == (one == two)
    assert 0 < len(first) <= MAX_FILE_NAME
    assert first.isascii()
    assert not set(first) & set("/\0 \n\\'\"$`")
    assert first[0] not in ".-"


@settings(deadline=None, max_examples=100)
@given(st.lists(ANY | NUMBERED, max_size=10, unique=True))
def test_natural_order_is_total(names: list[str]) -> None:
    keys = [natural_key(name) for name in names]
    assert len(set(keys)) == len(keys)
    ordered = sorted(names, key=natural_key)
    names.reverse()
    assert sorted(names, key=natural_key) == ordered
