"""A worker's peers from made-up file systems and environments: the method of every platform, and no guesses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.backends.hosts.hostfile import MAX_HOSTS, Host
from atlctl.backends.hosts.peers import Found, find, surroundings
from atlctl.jobs.errors import UsageError


class Root:
    """A made-up file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str | bytes) -> None:
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def find(self, hostname: str = "", **environ: str) -> Found | None:
        if hostname:
            self.write("/etc/hostname", f"{hostname}\n")
        return find(environ, str(self.folder))

    def found(self, hostname: str = "", **environ: str) -> Found:
        found = self.find(hostname, **environ)
        assert found is not None
        assert all(text.isprintable() for text in (found.used, *found.remarks))
        return found


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def names(found: Found) -> list[str]:
    return [host.name for host in found.hosts]


# --- files


def test_a_plain_shell_has_no_peers(root: Root) -> None:
    assert root.find("laptop", HOME="/home/user", WORLD_SIZE="4") is None
    assert root.find("laptop", MASTER_ADDR="127.0.0.1", WORLD_SIZE="4", RANK="1") is None


def test_hostfile_of_an_mpijob(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "j-worker-0.j.ns.svc slots=8\nj-worker-1.j.ns.svc slots=8\n")
    found = root.found("j-worker-1")
    assert found.hosts == (Host("j-worker-0.j.ns.svc", slots=8), Host("j-worker-1.j.ns.svc", slots=8))
    assert (found.own, found.remarks) == (1, ())
    assert found.used == "2 hosts in /etc/mpi/hostfile, in its order"
    assert root.found("j-launcher").own is None


def test_hostfile_that_a_variable_names(root: Root) -> None:
    root.write("/opt/hosts", "a:8\nb:8\n")
    found = root.found("b", OMPI_MCA_orte_default_hostfile="/opt/hosts")
    assert found.hosts == (Host("a", slots=8), Host("b", slots=8))
    assert found.own == 1
    assert "read as a host and its slots" in found.remarks[0]
    root.write("/etc/mpi/hostfile", "c\n")
    assert names(root.found("b", OMPI_MCA_orte_default_hostfile="/opt/hosts")) == ["c"]
    assert root.find("b", OMPI_MCA_orte_default_hostfile="opt/hosts") is not None
    os.remove(root.folder / "etc/mpi/hostfile")
    assert root.find("b", OMPI_MCA_orte_default_hostfile="opt/hosts") is None


def test_an_empty_hostfile_is_none(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "# workers come here\n\n")
    assert root.find("j-launcher") is None


@pytest.mark.parametrize(("count", "says"), [("4", ": some workers are missing"), ("1", "")])
def test_a_count_that_contradicts_the_hostfile(root: Root, count: str, says: str) -> None:
    root.write("/etc/mpi/hostfile", "a\nb\n")
    assert root.found("a", PET_NNODES=count).remarks == (
        f"/etc/mpi/hostfile has 2 hosts, but PET_NNODES is {count}{says}",
    )


def volcano(root: Root) -> None:
    root.write("/etc/volcano/worker.host", "j-worker-0.j\nj-worker-1.j\n")
    root.write("/etc/volcano/master.host", "j-master-0.j")
    root.write("/etc/volcano/VC_WORKER_NUM", "2")


def test_lists_that_volcano_mounts(root: Root) -> None:
    volcano(root)
    found = root.found("j-worker-0", VC_TASK_INDEX="0", WORLD_SIZE="3", RANK="1", VC_WORKER_NUM="2")
    assert names(found) == ["j-master-0.j", "j-worker-0.j", "j-worker-1.j"]
    assert (found.own, found.remarks) == (1, ())
    assert "/etc/volcano/*.host: master, then worker" in found.used


def test_lists_in_volcanos_variables(root: Root) -> None:
    hosts = {"VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j", "VC_MASTER_HOSTS": "j-master-0.j", "VC_PS_HOSTS": ""}
    found = root.found("j-master-0", **hosts)
    assert names(found) == ["j-master-0.j", "j-worker-0.j", "j-worker-1.j"]
    assert found.own == 0
    assert "VC_*_HOSTS" in found.used


def test_tasks_without_a_known_order_are_said(root: Root) -> None:
    volcano(root)
    root.write("/etc/volcano/ps.host", "j-ps-0.j\n")
    found = root.found("j-ps-0", VC_WORKER_NUM="3")
    assert names(found)[-1] == "j-ps-0.j"
    assert found.remarks == (
        (
            "/etc/volcano/*.host: the order of node ranks over the tasks is not given; "
            "assumed: master, then worker, then ps"
        ),
        "/etc/volcano/*.host has 2 hosts of the task worker, but VC_WORKER_NUM is 3",
    )


def test_files_go_before_variables_and_patterns(root: Root) -> None:
    volcano(root)
    environ = {"VC_WORKER_HOSTS": "x-worker-0.x", "PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "3"}
    assert names(root.found("j-worker-1", **environ))[0] == "j-master-0.j"
    root.write("/etc/mpi/hostfile", "a\n")
    assert names(root.found("j-worker-1", **environ)) == ["a"]


# --- patterns


@pytest.mark.parametrize(
    ("hostname", "environ", "expected", "own"),
    [
        (
            "tj-node-0-2",
            {"PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "3", "PET_NODE_RANK": "2"},
            ["tj-node-0-0.tj", "tj-node-0-1.tj", "tj-node-0-2.tj"],
            2,
        ),
        (  # host network: the rank decides
            "metal7",
            {"PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "2", "PET_NODE_RANK": "1"},
            ["tj-node-0-0.tj", "tj-node-0-1.tj"],
            1,
        ),
        (
            "p-worker-1",
            {
                "MASTER_ADDR": "p-master-0",
                "PET_NNODES": "3",
                "PET_NPROC_PER_NODE": "8",
                "WORLD_SIZE": "24",
                "RANK": "2",
            },
            ["p-master-0", "p-worker-0", "p-worker-1"],
            2,
        ),
        ("p-master-0", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "2"}, ["p-master-0", "p-worker-0"], 0),
        ("p-master-0", {"MASTER_ADDR": "localhost", "WORLD_SIZE": "2"}, ["p-master-0", "p-worker-0"], 0),
        ("p-master-0", {"MASTER_ADDR": "p-master-0.p", "WORLD_SIZE": "2"}, ["p-master-0.p", "p-worker-0.p"], 0),
        (
            "p-worker-1",
            {"PET_RDZV_ENDPOINT": "p-worker-0:29400", "PET_NNODES": "2:2"},
            ["p-worker-0", "p-worker-1"],
            1,
        ),
        (
            "js-trainer-0-1",
            {"MASTER_ADDR": "js-trainer-0-0.js", "WORLD_SIZE": "2", "JOB_COMPLETION_INDEX": "1"},
            ["js-trainer-0-0.js", "js-trainer-0-1.js"],
            1,
        ),
        ("job-1", {"MASTER_ADDR": "job-0.svc", "WORLD_SIZE": "2"}, ["job-0.svc", "job-1.svc"], 1),
        (
            "x-master-1",  # possible name of a StatefulSet
            {"MASTER_ADDR": "x-master-0.svc.ns", "WORLD_SIZE": "2"},
            ["x-master-0.svc.ns", "x-master-1.svc.ns"],
            1,
        ),
        (
            "lws-2-1",
            {"LWS_LEADER_ADDRESS": "lws-2.sub.ns", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "1"},
            ["lws-2.sub.ns", "lws-2-1.sub.ns", "lws-2-2.sub.ns"],
            1,
        ),
        (
            "metal7",
            {"LWS_LEADER_ADDRESS": "lws-0.s", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "MASTER_ADDR": "lws-0.s"},
            ["lws-0.s", "lws-0-1.s"],
            1,
        ),
    ],
)
def test_names_that_follow_a_pattern(
    root: Root, hostname: str, environ: dict[str, str], expected: list[str], own: int
) -> None:
    found = root.found(hostname, **environ)
    assert names(found) == expected
    assert found.own == own
    assert ("is assumed to be" in "".join(found.remarks)) == (hostname == "metal7")


@pytest.mark.parametrize(
    ("hostname", "environ"),
    [
        ("gpu07", {"MASTER_ADDR": "gpu00", "WORLD_SIZE": "8"}),
        ("gpu07", {"MASTER_ADDR": "10.0.0.0", "WORLD_SIZE": "8"}),
        ("metal7", {"MASTER_ADDR": "nb-0.svc", "WORLD_SIZE": "2"}),  # no evidence
        ("nb-5", {"MASTER_ADDR": "nb-0.svc", "WORLD_SIZE": "2"}),
        ("js-trainer-1-0", {"MASTER_ADDR": "js-trainer-0-0.js", "WORLD_SIZE": "4"}),  # several replicated jobs
        ("x-master-0", {"MASTER_ADDR": "x-master-0.svc", "WORLD_SIZE": "2"}),  # PyTorchJob or StatefulSet
        ("p-worker-7", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "2"}),
        ("tj-node-0-9", {"PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "2"}),
        ("lws-1", {"LWS_LEADER_ADDRESS": "lws-0.s", "MASTER_ADDR": "lws-0.s", "WORLD_SIZE": "2"}),
        ("lws-1", {"LWS_LEADER_ADDRESS": "?", "LWS_GROUP_SIZE": "2", "MASTER_ADDR": "lws-0.s"}),
        ("nb-0", {"MASTER_ADDR": "localhost", "WORLD_SIZE": "2", "RANK": "0"}),
        ("p-worker-1", {"MASTER_ADDR": "p-master-0"}),
        ("p-worker-1", {"PET_RDZV_ENDPOINT": "p-worker-0:1", "PET_NNODES": "2:4"}),  # elastic: number unknown
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "16", "PET_NPROC_PER_NODE": "8"}),
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "16", "LOCAL_RANK": "0"}),  # of a trainer
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "16", "RANK": "8"}),  # these count processes, too
        ("node-1", {"MASTER_ADDR": "node-0", "WORLD_SIZE": "16", "SLURM_PROCID": "8"}),
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": str(MAX_HOSTS + 1)}),
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "٤"}),
        ("p-worker-1", {"MASTER_ADDR": "p-master-0", "WORLD_SIZE": "-2"}),
        ("-oProxyCommand=x-1", {"MASTER_ADDR": "-oProxyCommand=x-0", "WORLD_SIZE": "2"}),
        ("a\x1b[2J-1", {"MASTER_ADDR": "a\x1b[2J-0", "WORLD_SIZE": "2"}),
        ("a", {"LWS_LEADER_ADDRESS": "$(id)-0.s", "LWS_GROUP_SIZE": "2"}),
        ("a" * 260 + "-1", {"MASTER_ADDR": "a" * 260 + "-0", "WORLD_SIZE": "2"}),
    ],
)
def test_what_does_not_fit_is_no_guess(root: Root, hostname: str, environ: dict[str, str]) -> None:
    assert root.find(hostname, **environ) is None


# --- the own index


def test_by_its_address(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "10.1.0.4\n10.1.0.5\n10.1.0.6\n")
    root.write("/etc/hosts", "127.0.0.1 localhost w5\n10.1.0.5 w5.j.ns.svc w5\n")
    assert root.found("w5").own == 1
    assert root.found("other", POD_IP="10.1.0.6").own == 2


def test_neither_loopback_nor_a_part_of_an_address_tells_who_this_is(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "127.0.1.1\n10.1.0.5\n")
    root.write("/etc/hosts", "127.0.1.1 w5\n")
    assert root.found("w5").own is None
    assert root.found("10").own is None


def test_a_rank_that_contradicts_the_name_is_said(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "a\nb\n")
    found = root.found("b", RANK="0")
    assert found.own == 1
    assert found.remarks == ("this worker is number 1 by its name or address, but RANK is 0",)


def test_a_rank_alone_counts_only_where_the_numbers_agree(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "a\nb\n")
    assert root.found("metal7", RANK="1", WORLD_SIZE="2").own == 1
    assert root.found("metal7", RANK="1").own is None
    assert root.found("metal7", RANK="1", WORLD_SIZE="3").own is None
    assert root.found("metal7", RANK="2", WORLD_SIZE="2").own is None
    assert root.found("metal7", RANK="1", PET_NNODES="2", LOCAL_RANK="1").own is None


def test_two_that_are_called_alike_are_told_by_rank(root: Root) -> None:
    root.write("/etc/mpi/hostfile", "w.east\nw.west\n")
    assert root.found("w").own is None
    assert root.found("w", RANK="1").own == 1
    assert root.found("w.west").own == 1


def test_the_variable_where_no_file_names_the_host(root: Root) -> None:
    assert root.found("", HOSTNAME="job-1", MASTER_ADDR="job-0", WORLD_SIZE="2").own == 1


# --- hostile and broken


@pytest.mark.parametrize("line", ["-oProxyCommand=id", "a;b", "a\x1b]0;x\x07", "a\u202eb", b"\xff"])
@pytest.mark.parametrize("path", ["/etc/mpi/hostfile", "/etc/volcano/worker.host"])
def test_names_that_are_refused(root: Root, path: str, line: str | bytes) -> None:
    root.write(path, line)
    with pytest.raises(UsageError, match=r"not a host name") as caught:
        root.find("w")
    assert caught.value.message.isprintable()
    assert caught.value.message.startswith("/etc/")
    assert caught.value.hint
    found = root.found("job-1", MASTER_ADDR="job-0", WORLD_SIZE="2")
    assert names(found) == ["job-0", "job-1"]
    assert found.remarks == (f"{caught.value.message}: skipped",)


def test_names_in_variables_that_are_refused(root: Root) -> None:
    with pytest.raises(UsageError, match=r"VC_\*_HOSTS: .* not a host name"):
        root.find("w", VC_WORKER_HOSTS="a,-l")


def test_at_most_as_many_as_a_hostfile_may_have(root: Root) -> None:
    hosts = [f"w{number}" for number in range(MAX_HOSTS)]
    assert len(root.found("w7", VC_WORKER_HOSTS=",".join(hosts)).hosts) == MAX_HOSTS
    with pytest.raises(UsageError, match=f"more than {MAX_HOSTS} hosts"):
        root.find("w7", VC_WORKER_HOSTS=",".join(hosts), VC_PS_HOSTS="one-more")


def test_files_that_are_not_to_be_read(root: Root) -> None:
    file = root.folder / "etc/mpi/hostfile"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    with pytest.raises(UsageError, match="/etc/mpi/hostfile is not a regular file"):
        root.find("a")
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match="is not a regular file"):
        root.find("a")
    file.rmdir()
    with file.open("wb") as grown:
        grown.truncate((1 << 20) + 1)
    with pytest.raises(UsageError, match="is larger than"):
        root.find("a")
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(UsageError, match="cannot read /etc/mpi/hostfile"):
        root.find("a")
    file.unlink()
    with pytest.raises(UsageError, match="not a path"):
        root.find("a", OMPI_MCA_orte_default_hostfile="/a\0b")


def test_a_folder_of_very_many_lists(root: Root) -> None:
    for number in range(65):
        root.write(f"/etc/volcano/t{number}.host", "a\n")
    with pytest.raises(UsageError, match="more than 64 lists"):
        root.find("a")


_WORDS = st.sampled_from(
    ["a", "job", "-worker-0", "-master-0", "-node-0-0", "-0", ".job", ".", "-", "\x1b", "\n", " ", "$"]
)
_VALUES = st.one_of(st.text(max_size=20), st.lists(_WORDS, max_size=6).map("".join), st.integers(-1, 20).map(str))
_NAMES = ["MASTER_ADDR", "PET_MASTER_ADDR", "WORLD_SIZE", "PET_NNODES", "RANK", "VC_A_HOSTS", "LWS_LEADER_ADDRESS"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(environ=st.dictionaries(st.sampled_from([*_NAMES, "LWS_GROUP_SIZE", "HOSTNAME", "POD_IP"]), _VALUES))
def test_no_environment_gives_a_name_that_a_shell_or_a_parser_would_understand(
    environ: dict[str, str], root: Root
) -> None:
    try:
        found = root.find(**environ)
    except UsageError:
        return
    if found is None:
        return
    assert all(text.isprintable() for text in (found.used, *found.remarks))
    assert found.own is None or 0 <= found.own < len(found.hosts)
    for host in found.hosts:
        assert set(host.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        assert not host.name.startswith("-")


# --- the environment of the first process


def test_the_first_process_speaks_where_the_shell_does_not(root: Root) -> None:
    root.write("/proc/1/environ", b"MASTER_ADDR=job-0\0WORLD_SIZE=2\0junk\0=x\0BYTES=\xff\0")
    shell = {"HOME": "/home/user"}
    first = surroundings(shell, str(root.folder))
    assert first == {"MASTER_ADDR": "job-0", "WORLD_SIZE": "2", "BYTES": "\ufffd"}
    assert names(root.found("job-1", **first)) == ["job-0", "job-1"]
    own = {"MASTER_ADDR": "other-0", "WORLD_SIZE": "3"}
    assert surroundings(own, str(root.folder)) is own
    assert surroundings({**own, "LOCAL_RANK": "1"}, str(root.folder)) == first


def test_a_first_process_that_says_nothing_or_is_not_to_be_read(root: Root) -> None:
    shell = {"HOME": "/home/user"}
    assert surroundings(shell, str(root.folder)) is shell
    root.write("/proc/1/environ", b"PATH=/bin\0")
    assert surroundings(shell, str(root.folder)) is shell
    os.remove(root.folder / "proc/1/environ")
    os.symlink("environ", root.folder / "proc/1/environ")
    assert surroundings(shell, str(root.folder)) is shell
