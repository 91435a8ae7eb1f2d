"""Host lists as jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atlctl.backends.hosts import lists
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.peers import Found
from atlctl.jobs.config import SshJob
from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import HOSTS, State


def test_a_hostfile_is_a_job_named_after_it(tmp_path: Path) -> None:
    file = tmp_path / "my hosts.txt"
    file.write_text("gpu[01-02] slots=8\n")
    job = lists.of_file(str(file)).job
    assert (job.name, job.kind, job.state, job.expected) == ("my-hosts.txt", HOSTS, State.UNKNOWN, 2)
    assert [(w.name, w.index, w.node_rank, w.gpus) for w in job.workers] == [("gpu01", 0, 0, 8), ("gpu02", 1, 1, 8)]
    assert job.uid == lists.of_file(str(file)).job.uid
    file.write_text("gpu[01-03]\n")
    assert job.uid != lists.of_file(str(file)).job.uid, "other hosts are another job"


def test_some_of_the_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=4\nb slots=4\n")
    setting = SshJob("config", hostfile=str(file), include="b:0,2")
    assert lists.of_config("lab", setting).hosts == (Host("b", slots=2, devices=(0, 2)),)
    setting = SshJob("config", hostfile=str(file), exclude="a")
    assert [host.name for host in lists.of_config("lab", setting).hosts] == ["b"]
    assert lists.of_config("lab", SshJob("config", ("x", "me@y:2222"))).job.name == "lab"


def test_a_pipe_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"gpu1\n")
    os.close(writer)
    try:
        found = lists.of_file(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert (found.name, found.hosts) == ("hosts", (Host("gpu1"),))


def test_what_is_no_hostfile(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(5 << 20)
    os.mkfifo(tmp_path / "fifo")
    for path, says in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "fifo", "not a regular file"),
        (big, "larger than 4 MiB"),
    ]:
        with pytest.raises(UsageError, match=says):
            lists.of_file(str(path))


def test_a_small_file_that_names_one_host_over_and_over_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("gpu[1-9999]\n" * 40)
    with pytest.raises(UsageError, match="more than"):
        lists.of_file(str(file))


def test_peers_know_which_one_this_is() -> None:
    found = lists.of_peers(Found((Host("w-0"), Host("w-1")), 1, "a file"))
    assert (found.name, found.own, found.source) == ("peers", 1, "a file")
