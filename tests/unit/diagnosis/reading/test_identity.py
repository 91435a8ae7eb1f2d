import pytest

from atlctl.diagnosis.reading import identity
from atlctl.diagnosis.reading.identity import Identity, read_address, read_identity


@pytest.mark.parametrize(
    ("line", "rank", "local", "world", "pid"),
    [
        ("2026-11-20 21:38:56,243 INFO train: rank=3 world=4 local_rank=1 host=worker-1 pid=13", 3, 1, 4, 13),
        ("2026-11-20 21:38:56,243 INFO train: rank 0 of 3: local rank 0 on worker-0", 0, 0, 3, None),
        ("Rank: 3, World size: 8, Local rank: 1", 3, 1, 8, None),
        ("local_rank: 1, global_rank: 3, world_size: 8", 3, 1, 8, None),
        ("RANK=3 LOCAL_RANK=1 WORLD_SIZE=8", 3, 1, 8, None),
        ("| distributed init (rank 3, local rank 1): env://", 3, 1, None, None),
        ("n1:10:20 [1] NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 1 busId 3b000 - Init COMPLETE", 3, 1, None, None),
        (
            "n1:10:20 [1] NCCL INFO ncclCommInitRank comm 0x55 rank 3 nranks 8 cudaDev 1 nvmlDev 1",
            3, 1, None, None,
        ),
    ],
)  # fmt: skip
def test_a_process_that_says_who_it_is(line, rank, local, world, pid):
    assert read_identity(line, 7) == [Identity(7, rank, local, world, pid)]


def test_the_agents_table_of_ranks():
    assert read_identity("  global_ranks=[2, 3]", 7) == [Identity(7, 2, 0, None), Identity(7, 3, 1, None)]
    assert read_identity("  global_ranks=[0]", 7) == [Identity(7, 0, 0, None)]
    assert read_identity("  global_world_sizes=[4, 4]", 7) == [Identity(7, None, None, 4)]


@pytest.mark.parametrize(
    "line",
    [
        "", "rank 3", "local_rank=1", "  rank      : 2 (local_rank: 0)", "  role_ranks=[2, 3]", "rank 3.5 local_rank 1",
        "failed (exitcode: 1) local_rank: 0 (pid: 14) of binary: python", "parser.add_argument('--local_rank', rank=0)",
        "myrank=3 xlocal_rank=1", "global_ranks=[]", "NCCL INFO comm 0x55 rank x nranks 8 cudaDev 1",
    ],
)  # fmt: skip
def test_lines_that_say_nothing_of_both_ranks(line):
    assert read_identity(line, 1) == []


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("n1:10:20 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>", "10.0.0.5"),
        ("n1:10:20 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>", "10.0.0.5"),
        ("n1:10:20 [0] NCCL INFO Bootstrap : Using ib0:fd00::1<0>", "fd00::1"),
        ("SO_ERROR: Connection refused, remote=[10.0.0.9]:21847, local=[10.0.0.5]:44", "10.0.0.5"),
        ("remote=[10.0.0.9]:21847", None),
        ("Connection closed by peer [10.0.0.9]:4242", None),
        ("NET/Socket : Using [0]eth0:10.0.0.5<0>", None),
        ("", None),
    ],
)
def test_the_workers_own_address(line, address):
    assert read_address(line) == address


@pytest.mark.parametrize(
    "line",
    [
        "rank=3 world=4 local_rank=1", "rank 0 of 3: local rank 0", "RANK=3 LOCAL_RANK=1", "global_ranks=[2, 3]",
        "NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 1", "NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>",
        "Rank: 3, Local rank: 1", "remote=[a], local=[10.0.0.5]:44", "Local Rank 1, Rank 3",
    ],
)  # fmt: skip
def test_each_such_line_holds_a_literal(line):
    assert read_identity(line, 1) or read_address(line)
    assert any(literal in line.encode() for literal in identity.LITERALS)
