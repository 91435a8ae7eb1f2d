"""The client's records: complete or absent, and names reserved during a start."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.backends.hosts import records
from atlctl.backends.hosts.records import Claim
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, UsageError
from tests.unit.hosts.fake import RECORD


def write(record: records.Record = RECORD) -> Path:
    claim = Claim(record.name)
    claim.write(record)
    claim.release()
    return Path(records.RECORDS.root, record.name, "job.json")


def test_what_is_written_is_read() -> None:
    path = write()
    assert records.load("job") == RECORD
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    words = replace(RECORD, argv=(os.fsdecode(b"\xff"), "中"), name="words")
    write(words)
    assert records.load("words") == words
    assert [record.name for record in records.load_all()[0]] == ["job", "words"]
    records.forget(words)
    records.forget(words)
    with pytest.raises(NothingMatched, match="no job named words") as caught:
        records.load("words")
    assert caught.value.hint == "jobs on hosts: job"


@pytest.mark.parametrize("level", range(3))
def test_nothing_is_read_or_removed_in_a_folder_that_may_be_forged(level: int) -> None:
    path = write()
    forged = path.parents[level]
    forged.chmod(0o770)
    for ask in (lambda: records.load("job"), lambda: records.forget(RECORD), lambda: Claim("job")):
        with pytest.raises(NotAllowed, match=f"^{forged} can be written by others"):
            ask()
    forged.chmod(0o700)
    assert records.load("job") == RECORD


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"name": 3}', "[" * 100_000, None])
def test_a_damaged_record_hides_no_other(text: str | None) -> None:
    path = write(replace(RECORD, name="bad"))
    if text is None:
        text = path.read_text().replace('"port": 2222', '"port": [2222]')
        assert "[2222]" in text
    path.write_text(text)
    write()
    found, errors = records.load_all()
    assert [record.name for record in found] == ["job"]
    assert [error.message.split(":")[0] for error in errors] == ["the record of job bad cannot be read"]


def test_a_record_is_read_again_only_where_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    kept = records.Kept()
    assert kept.load("job") == RECORD
    with monkeypatch.context() as patched:
        patched.setattr(records, "load", lambda name: pytest.fail(f"{name} is read again"))
        assert kept.load("job") == RECORD
    other = replace(RECORD, uid="two")
    write(other)
    assert kept.load("job") == other
    records.forget(other)
    with pytest.raises(NothingMatched):
        kept.load("job")


def test_a_name_is_no_path() -> None:
    for name in ("../job", "", ".", "a/b", "-x"):
        with pytest.raises(UsageError):
            records.load(name)


def test_a_name_is_claimed_once() -> None:
    first = Claim("job")
    with pytest.raises(AtlctlError, match="another atlctl is starting job job"):
        Claim("job")
    first.release()
    second = Claim("job")
    assert second.old is None
    second.release()
    assert not Path(records.RECORDS.root, "job").exists()


def test_names_that_nobody_chose() -> None:
    claims = [Claim(None), Claim(None), Claim(None, 7)]
    assert [claim.name for claim in claims] == ["ssh-1", "ssh-2", "ssh-7"]
    for claim in claims:
        claim.release()


def test_a_start_that_failed_gives_the_old_record_back() -> None:
    path = write()
    before = path.read_bytes()
    claim = Claim("job")
    assert claim.old == RECORD
    claim.write(replace(RECORD, uid="two"))
    assert json.loads(path.read_bytes())["uid"] == "two"
    claim.withdraw()
    claim.release()
    assert path.read_bytes() == before
    claim = Claim("new")
    claim.write(replace(RECORD, name="new"))
    claim.withdraw()
    claim.release()
    assert not Path(records.RECORDS.root, "new").exists()
