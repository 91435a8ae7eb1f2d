"""Files inside workers: listing, reading, and joining with the log."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import zstandard

from atlctl.backends.base import Exited, FailedToStart, Lost, Output, Started
from atlctl.cli.evidence import logpath
from atlctl.cli.evidence.logpath import Listed, Read, Story, join, owner_of, parse_list, read_files
from atlctl.diagnosis.logfacts import LogReader
from atlctl.diagnosis.result import Proof
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.torchelastic import Summary
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import State, Worker
from atlctl.recording import packed
from atlctl.remote.sending import shell
from tests.unit.diagnosis.samples import STACK, block, entry

MATCHER = Matcher(builtin().signatures)
NOTE = "E1120 17:45:05.000000 1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
NOTE += "local_rank: 0 (pid: 14) of binary: /opt/venv/bin/python"
AGENT = "\n".join([NOTE, *block(entry(rank=0, local=0))]) + "\n"
RANK = "".join(f"[rank0]: {line}\n" for line in STACK.splitlines())
TRAINING = "".join(f"step {step}/100 loss 0.5\n" for step in range(40))
TOKEN_LIKE = "e||||\0f|5||1 2|/etc/passwd\0" + RANK


def facts(text):
    reader = LogReader(MATCHER)
    for number, line in enumerate(text.encode().splitlines(), 1):
        reader.feed(number, line)
    return reader.facts()


def read(text, path="/logs/a.log", workers=("w-0",), cut=False, overwritten=None):
    return Read(workers, Listed(path, len(text)), facts(text), len(text.splitlines()), cut, overwritten)


def worker(name="w-0", state=State.RUNNING, **more):
    return Worker(name, 0, state, **more)


def added(log, *items):
    story = Story(None if log is None else facts(log))
    for item in items:
        story.add(item, item.facts)
    return story


def at(story, line_no):
    proof = story.place(Proof("w-0", line_no, "x"))
    return proof.file, proof.line_no


# Listing.


def listing(pattern, folder, limit=logpath.MAX_FILES):
    run = subprocess.run(
        ["/bin/sh", "-c", shell("list_files"), "sh", pattern, str(limit)], cwd=folder, capture_output=True, timeout=20
    )
    assert (run.returncode, run.stderr) == (0, b"")
    files, remarks = parse_list(run.stdout)
    return [file.path for file in files], remarks, files


def test_names_of_any_sort_survive_and_folders_are_passed_over(tmp_path):
    names = ["a b.log", "c\nd.log", "-n.log", "e\x1b[31m|f.log", "$(touch pwned).log", os.fsdecode(b"g\xff.log")]
    for name in names:
        (tmp_path / name).write_text("x\n")
    (tmp_path / "folder.log").mkdir()
    found, remarks, files = listing("*.log", tmp_path)
    assert (sorted(found), remarks) == (sorted(names), [])
    assert {file.size for file in files} == {2}
    assert "g\\xff.log" in [file.shown for file in files]


def test_a_pattern_is_matched_and_never_run(tmp_path):
    (tmp_path / "a").write_text("x\n")
    assert listing("$(touch pwned)*\n`touch pwned`\na;touch pwned", tmp_path)[:2] == ([], [])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")  # opening it would block
    (tmp_path / "gone.log").symlink_to("nowhere")
    assert listing("*.log", tmp_path)[:2] == ([], ["pipe.log is not a regular file and was not opened"])
    assert listing("/dev/null", tmp_path)[:2] == ([], ["/dev/null is not a regular file and was not opened"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said(tmp_path):
    (tmp_path / "a.log").touch(mode=0)
    assert listing("*", tmp_path)[:2] == ([], ["a.log could not be read"])


def test_more_files_than_are_read_is_said(tmp_path):
    for name in "abc":
        (tmp_path / name).touch()
    found, remarks, _ = listing("*", tmp_path, limit=2)
    assert (found, len(remarks), remarks[0].startswith("more than")) == (["a", "b"], 1, True)


@pytest.mark.parametrize("data", [b"", b"f|1||1 1|/a", b"f|1||1 1|/a\0", b"e||||\0more", b"\xff\0"])
def test_a_list_that_is_cut_off_is_an_error(data):
    with pytest.raises(AtlctlError, match="incomplete"):
        parse_list(data)


@pytest.mark.parametrize("record", [b"f", b"f|x||1|/a", b"f|99999999999999999999||1|/a", b"u||||/a", b"\xff|\xff"])
def test_a_record_that_is_none_gives_a_remark(record):
    files, remarks = parse_list(record + b"\0e||||\0")
    assert (files, len(remarks)) == ([], 1)


# Joining with the log.


def test_what_the_log_has_already_changes_nothing():
    log = facts(RANK + AGENT)
    story = Story(log)
    item = read("started by tee\n" + RANK + AGENT)
    story.add(item, item.facts)
    assert story.log is log
    assert at(story, 3) == (None, 3)


def test_the_platforms_stamps_are_no_difference():
    reader = LogReader(MATCHER)
    lines = (RANK + AGENT).encode().splitlines()
    for number, line in enumerate(lines, 1):
        reader.feed(number, b"2026-11-20T17:45:05.123456789Z " + line)
    story = Story(reader.facts())
    before = story.log
    item = read(RANK + AGENT)
    story.add(item, item.facts)
    assert story.log is before


def test_only_what_the_log_has_lost_is_added_in_front():
    story = added("x\n" + AGENT, read(RANK + AGENT))
    assert (len(story.log.summaries), len(story.log.notes), len(story.log.traces)) == (
        1,
        1,
        1 + len(facts(AGENT).traces),
    )
    trace = story.log.traces[0]
    assert at(story, trace.line_no) == ("/logs/a.log", 1)
    assert at(story, story.log.notes[0].line_no) == (None, 2)
    assert trace.line_no < story.log.notes[0].line_no


def test_words_that_are_there_more_often_are_kept_the_older_ones():
    story = added(AGENT, read(AGENT + "x\n" + AGENT))
    assert [at(story, note.line_no) for note in story.log.notes] == [("/logs/a.log", 1), (None, 1)]


def test_an_agent_that_spoke_only_in_the_file_comes_behind_the_log():
    story = added(RANK, read(AGENT))
    assert at(story, story.log.traces[0].line_no) == (None, 1)
    assert at(story, story.log.notes[0].line_no) == ("/logs/a.log", 1)
    assert story.log.summaries[0].line_no > story.log.notes[0].line_no > story.log.traces[0].line_no


@pytest.mark.parametrize("log", [None, "", TRAINING])
def test_a_log_that_says_nothing_gives_way(log):
    story = added(log, read("x\n" + AGENT))
    assert at(story, story.log.notes[0].line_no) == ("/logs/a.log", 2)
    assert story.log.last_text == facts(AGENT).last_text


def test_several_files_keep_their_places():
    other = RANK.replace("rank0", "rank1").replace("shard 3", "shard 4")
    story = added(AGENT, read(RANK, "/logs/a.log"), read("x\n" + other, "/logs/b.log"))
    places = {trace.origin.rank: at(story, trace.line_no) for trace in story.log.traces if trace.origin.known}
    assert places == {0: ("/logs/a.log", 1), 1: ("/logs/b.log", 2)}
    assert at(story, story.log.notes[0].line_no) == (None, 1)
    for entry_ in story.log.summaries[0].entries:
        assert at(story, entry_.line_no)[0] is None


def test_a_file_that_was_cut_gives_no_line():
    story = added(None, read(AGENT, cut=True))
    assert at(story, 1) == ("/logs/a.log", None)


def test_an_overwritten_file_counts_only_where_the_log_says_nothing():
    torn = read(RANK, overwritten="has 2 holes")
    assert len(added(AGENT, torn).log.traces) == len(facts(AGENT).traces)
    assert len(added("x\n", torn).log.traces) == 1


def test_torchelastics_own_file_is_that_processs_words():
    item = read("x\n" + STACK, "/logs/none_ab/attempt_1/3/stderr.log")
    story = added(AGENT, item)
    [log] = story.rank_logs
    assert (log.attempt, log.local_rank, len(log.facts.traces)) == (1, 3, 1)
    assert at(story, log.facts.traces[0].line_no) == (item.file.path, 2)
    assert story.log.last_line == facts(AGENT).last_line


def summaries(story: Story) -> list[Summary]:
    assert story.log is not None
    return story.log.summaries


def test_a_shared_file_goes_to_the_workers_whose_hosts_its_summaries_name():
    text = AGENT.replace("train-worker-1", "h-0.x") + AGENT.replace("train-worker-1", "h-9").replace("14", "15")
    workers = [worker("w-0", host="h-0"), worker("w-1", host="h-1")]
    stories = join({"w-0": None, "w-1": None}, [read(text, workers=("w-0", "w-1"))], workers)
    assert [entry.host for entry in summaries(stories["w-0"])[0].entries] == ["h-0.x"]
    assert stories["w-1"].log is None


def test_a_file_that_only_one_worker_sees_may_be_anothers():
    item = read(AGENT.replace("train-worker-1", "h-1"))
    workers = [worker("w-0", host="h-0"), worker("w-1", host="h-1")]
    stories = join({"w-0": None, "w-1": None}, [item], workers)
    assert (stories["w-0"].log, len(summaries(stories["w-1"]))) == (None, 1)
    assert len(summaries(join({"w-0": None}, [item], workers[:1])["w-0"])) == 1


def test_a_host_that_several_workers_have_is_none():
    workers = [worker("w-0", host="h", pod="p-0"), worker("w-1", host="h", pod="p-1")]
    assert [owner_of(host, workers) for host in ("h", "w-1", "p-0", "p-0.svc", "x")] == [
        None,
        "w-1",
        "w-0",
        "w-0",
        None,
    ]


# Reading, with unreachable workers.


class Fake:
    """An executor and its executions: each command gets the next event list of its worker."""

    def __init__(self, events, delay=0.0):
        self.events = events
        self.delay = delay
        self.ended = self.closed = 0

    def run(self, worker, request):
        self.request = request
        return FakeExecution(self, self.events[worker.name].pop(0))

    async def aclose(self):
        self.closed += 1


class FakeExecution:
    def __init__(self, fake, events):
        self.fake, self.events = fake, events

    async def __aiter__(self):
        for event in self.events:
            await asyncio.sleep(self.fake.delay)
            yield event

    async def end(self, grace):
        self.fake.ended += 1
        return True

    async def aclose(self):
        pass


def records(*files):
    rows = b"".join(b"f|%d|1|1 2|%s\0" % (size, path) for path, size in files)
    return [Started(True), Output("stdout", rows[:7]), Output("stdout", rows[7:] + b"e||||\0"), Exited(0)]


def content(data):
    return [Started(True), *(Output("stdout", data[at : at + 99]) for at in range(0, len(data), 99)), Exited(0)]


def run(fake, *workers):
    return asyncio.run(read_files(lambda: fake, workers, "/logs/*", MATCHER))


def problems(found):
    return [(name, error.kind, error.message) for name, error in found.problems]


def test_what_a_file_holds_is_never_taken_for_a_list():
    data = TOKEN_LIKE.encode()
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    assert [(item.file.path, len(item.facts.traces)) for item in found.files] == [("/a", 1)]


@pytest.mark.parametrize(
    ("event", "kind", "said"),
    [
        (FailedToStart(127, "no such file"), "failed", "no such file"),
        (FailedToStart(255, "not running"), "unreachable", "not running"),
        (Lost("the supervisor went away"), "unreachable", "went away"),
    ],
)
def test_a_worker_that_cannot_be_asked_is_a_problem_of_its_own(event, kind, said):
    data = RANK.encode()
    fake = Fake({"w-0": [[event]], "w-1": [records((b"/a", len(data))), content(data)]})
    found = run(fake, worker(), worker("w-1"))
    [(name, got, message)] = problems(found)
    assert (name, got) == ("w-0", kind)
    assert said in message
    assert (len(found.files), fake.ended, fake.closed) == (1, 0, 1)


def test_one_bad_file_does_not_keep_from_the_others():
    data = RANK.encode()
    bad = [Output("stderr", b"tail: /a: Input/output \x1b[31m error\n"), Exited(1)]
    found = run(Fake({"w-0": [records((b"/a", 5), (b"/b", len(data))), bad, content(data)]}), worker())
    assert [item.file.path for item in found.files] == ["/b"]
    assert problems(found)[0][2].startswith("/a could not be read: tail: ")


def test_what_is_the_same_of_many_workers_is_said_once():
    fake = Fake({name: [records((b"/a", 9)), content(b"BZh9 " + name.encode())] for name in ("w-0", "w-1")})
    fake.events["w-1"][0][2] = replace(fake.events["w-1"][0][2], data=b"9|8.5|1 2|/a\0e||||\0")
    fake.events["w-1"][0][1] = Output("stdout", b"f|")
    found = run(fake, worker(), worker("w-1"))
    assert found.remarks == ["w-[0-1]: /a is not a log but bzip2 data; it was not read"]


def test_a_worker_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(logpath, "PATIENCE", 0.05)
    fake = Fake({"w-0": [records((b"/a", 5))]}, delay=5)
    found = run(fake, worker())
    assert [item[:2] for item in problems(found)] == [("w-0", "timeout")]
    assert (fake.ended, fake.closed) == (1, 1)


def test_workers_that_ended_are_not_asked():
    fake = Fake({})
    found = run(fake, worker(state=State.FAILED), worker("w-1", state=State.LOST))
    assert (found.files, found.problems, fake.closed) == ([], [], 0)
    assert found.remarks == ["w-[0-1]: not running, so no files could be read there (--log-path)"]


def test_a_large_file_gives_its_end_from_the_first_whole_line(monkeypatch):
    monkeypatch.setattr(logpath, "LIMIT", 1 << 20)
    data = b"rest of a line\n" + RANK.encode()
    found = run(Fake({"w-0": [records((b"/a", 5 << 20)), content(data)]}), worker())
    assert [(item.cut, item.lines) for item in found.files] == [(True, len(RANK.splitlines()))]
    assert found.remarks == [f"w-0: only the last 1 MiB of /a were read; {4 << 20} bytes were skipped"]


def test_a_file_that_never_ends_is_read_to_the_limit(monkeypatch):
    monkeypatch.setattr(logpath, "LIMIT", 1000)
    fake = Fake({"w-0": [records((b"/a", 900)), content(b"123456789\n" * 500)]})
    found = run(fake, worker())
    assert (found.files[0].lines, fake.ended) == (100, 1)


JUNK = bytes(range(1, 32)) * 9


@pytest.mark.parametrize("data", [b"BZh9 bzip2", JUNK, gzip.compress(JUNK, mtime=0)], ids=["bzip2", "binary", "packed"])
def test_what_is_no_text_is_left_out(data):
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    assert (found.files, found.problems) == ([], [])
    assert found.remarks[0].startswith("w-0: /a is not a log but ")


PACKED = (TRAINING + RANK).encode()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_compressed_file_is_unpacked(pack):
    data = pack(PACKED)
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    [item] = found.files
    assert (item.lines, item.facts.cut, item.facts.traces) == (
        len(PACKED.splitlines()),
        False,
        read(TRAINING + RANK).facts.traces,
    )
    assert (found.remarks, found.problems) == ([], [])


def test_a_compressed_file_that_was_cut_gives_what_it_has():
    data = gzip.compress(PACKED + os.urandom(50_000).hex().encode())[:-9000]
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    [item] = found.files
    assert (len(item.facts.traces), item.facts.cut) == (1, True)
    assert found.remarks == ["w-0: /a is cut off: its gzip data has no end, and the last lines are missing"]


def test_a_compressed_file_without_any_text_says_why():
    found = run(Fake({"w-0": [records((b"/a", 8)), content(b"\x1f\x8b\x08 gzip")]}), worker())
    assert found.files == []
    assert found.remarks[0].startswith("w-0: /a has damaged gzip data: ")


def test_a_bomb_is_not_read(monkeypatch):
    monkeypatch.setattr(packed, "SMALL", 1 << 20)
    monkeypatch.setattr(packed, "RATIO", 10)
    data = gzip.compress(bytes(4 << 20))
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    assert found.files == []
    assert "unpacks to more than" in found.remarks[0]


def test_of_a_large_compressed_file_the_end_alone_cannot_be_read(monkeypatch):
    monkeypatch.setattr(logpath, "LIMIT", 1 << 20)
    found = run(Fake({"w-0": [records((b"/a.gz", 5 << 20))]}), worker())
    assert found.remarks == ["w-0: /a.gz is compressed and larger than 1 MiB; it was not read"]


def test_without_the_package_zstd_data_is_a_problem_and_other_files_are_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    data = zstandard.ZstdCompressor().compress(PACKED)
    fake = Fake({"w-0": [records((b"/a", len(data)), (b"/b", len(PACKED))), content(data), content(PACKED)]})
    found = run(fake, worker())
    assert problems(found)[0][1:] == ("usage", "/a is zstd data, and the package zstandard is not installed")
    assert [item.file.path for item in found.files] == ["/b"]


def test_a_file_that_several_workers_see_is_read_once():
    data = RANK.encode()
    fake = Fake({"w-0": [records((b"/a", len(data))), content(data)], "w-1": [records((b"/a", len(data)))]})
    found = run(fake, worker(), worker("w-1"))
    assert [item.workers for item in found.files] == [("w-0", "w-1")]
    assert found.remarks[0].startswith("w-[0-1]: 2 workers share /a;")


def test_holes_are_said():
    data = b"\0" * 5000 + b"\n" + b"\0" * 300 + RANK.encode()
    found = run(Fake({"w-0": [records((b"/a", len(data))), content(data)]}), worker())
    assert found.files[0].overwritten is not None
    assert found.remarks == [f"w-0: /a {found.files[0].overwritten}"]


def test_equal_names_alone_are_no_shared_file():
    data = RANK.encode()
    other = [
        replace(event, data=event.data.replace(b"1 2|", b"3 4|")) if isinstance(event, Output) else event
        for event in records((b"/a", len(data)))
    ]
    events = {"w-0": [records((b"/a", len(data))), content(data)], "w-1": [other, content(data)]}
    assert [item.workers for item in run(Fake(events), worker(), worker("w-1")).files] == [("w-0",), ("w-1",)]
