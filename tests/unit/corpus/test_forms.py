"""The answer does not depend on the program that saved the logs."""

from __future__ import annotations

import pytest

from tests.corpus.forms import APART, MERGED, answer
from tests.corpus.score import DATA, judge, truths

#: Those that an unknown prefix changes.
CASES = (
    "agent_killed",
    "bad_arguments",
    "clm_hangup_one",
    "four_workers",
    "ft_guard_exits_three",
    "log_folder_not_writable",
    "lost_while_restarting",
    "port_in_use",
)


@pytest.mark.parametrize("form", [*MERGED, *APART])
def test_the_answer_is_the_same(form: str) -> None:
    known = truths(DATA)
    assert {name: judge(known[name], answer(DATA / name, form)) for name in CASES} == dict.fromkeys(CASES, "right")
