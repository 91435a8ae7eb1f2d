"""Sentences within sentences, and what they are joined by."""

from __future__ import annotations

import time

from atlctl.diagnosis.telling.phrasebook import Phrasebook

WHO = Phrasebook(((r"rank (\d{1,9})", r"第 \1 个"),))
BOOK = Phrasebook(
    (
        (r"lost", "丢失"),
        (r"(\d{1,9}) left", r"剩 \1 个"),
        (r"(?P<who>.{1,30}) failed: (?P<said>.{1,90}), (?P<said2>.{1,90})", r"\g<who> 出错：\g<said>，\g<said2>"),
        (r"it said (?P<words>.{1,90})(?P<said>; lost)?", r"消息：\g<words>\g<said>"),
        (r"why: (?P<said>.{1,900})", r"原因：\g<said>"),
    ),
    joints=(("; ", "；"), (", ", "，")),
    parts={"who": WHO},
)


def test_a_group_is_told_by_its_book_and_stays_where_that_does_not_know_it() -> None:
    assert BOOK.said("rank 3 failed: lost, oh no") == "第 3 个 出错：丢失，oh no"
    assert BOOK.said("somebody failed: 2 left, lost") == "somebody 出错：剩 2 个，丢失"
    assert BOOK.said("it said lost") == "消息：lost"  # a group of another name is nobody's sentence


def test_parts_are_divided_by_the_first_joint_that_is_there() -> None:
    assert BOOK.said("lost; 1 left, 2 left") == "丢失；剩 1 个，剩 2 个"
    assert BOOK.said("lost, 1 left") == "丢失，剩 1 个"
    assert BOOK.said("lost; 1 left, oh no") == "lost; 1 left, oh no"


def test_sentences_are_not_told_without_end() -> None:
    start = time.process_time()
    told = BOOK.said("why: " * 150 + "lost")
    assert told.startswith("原因：原因：")
    assert told.endswith("why: lost")
    assert time.process_time() - start < 0.5
