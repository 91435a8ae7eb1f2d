"""What changed in the printed lines from PyTorch 2.1 to 2.13: line numbers, prefixes, whether dumps are announced.

The numbers of `ProcessGroupNCCL.cpp` come from public logs of wheels of that version where there are any. An engine
must not depend on them; they vary here because they vary in real logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Watchdog:
    """Line numbers in ProcessGroupNCCL.cpp; 0 where that version has no such line."""

    caught: int
    thrown: int
    some: int
    away: int
    ended: int
    rethrown: int
    #: `Exception (either an error or timeout) detected by watchdog`
    detected: int = 0
    #: `Timeout at NCCL work`
    timeout_at: int = 0
    #: `failure detected by watchdog at work sequence id`
    failure: int = 0
    #: `Stack trace of the failed collective`; `stack_found` where the recorder is on by default
    stack: int = 0
    stack_found: bool = False
    #: `raised the following async exception`
    raised: int = 0
    #: where checkForNCCLErrorsInternal throws
    checked: int = 1723
    #: the dump signal: first to signal, observed, received, preparing, store is gone
    first: int = 0
    observed: int = 0
    received: int = 0
    preparing: int = 0
    store_gone: int = 0
    #: the warning at an exit without destroy_process_group
    not_destroyed: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """torchrun's lines. `style`: how Python's loggers of that version print; lines are of the torchelastic files."""

    style: str
    closing: int
    failed: int
    death: int
    shutdown: int
    run: tuple[int, int]
    wrapper: int
    launch: tuple[int, int, int]
    agent_run: int
    invoke: tuple[int, int, int]
    path: str = "torch"
    #: All processes of the worker are in the summary, also those that the agent ended.
    lists_all: bool = False
    signal_names: bool = False
    #: Seconds between two looks at the processes.
    interval: float = 0.1


@dataclass(frozen=True, slots=True)
class Profile:
    """One version of PyTorch with the Python and NCCL that came with it."""

    torch: str
    python: str
    nccl: str
    group: str
    watchdog: Watchdog
    agent: Agent
    #: `[rank3]:` in front of C++ lines and of uncaught tracebacks; date and time in C++ lines.
    rank_prefix: bool = True
    stamped: bool = True
    #: Seconds that a watchdog waits for dumps before it ends its process.
    dump_wait: float = 0.0
    new_frames: bool = False

    @property
    def number(self) -> tuple[int, int]:
        major, _, minor = self.torch.partition(".")
        return int(major), int(minor)

    @property
    def carets(self) -> bool:
        """Python 3.11 marks the failing part of a line in tracebacks."""
        return self.python != "3.10"


PROFILES: tuple[Profile, ...] = (
    Profile(
        "2.1",
        "3.10",
        "2.18.1+cuda12.1",
        "",
        Watchdog(474, 476, 488, 494, 915, 0),
        Agent("brackets", 729, 703, 692, 1227, (806, 797), 346, (134, 241, 264), 723, (858, 870, 877), interval=5.0),
        rank_prefix=False,
        stamped=False,
    ),
    Profile(
        "2.2",
        "3.10",
        "2.19.3+cuda12.1",
        "",
        Watchdog(523, 525, 537, 543, 1182, 1186, checked=1436),
        Agent("brackets", 734, 708, 693, 1232, (812, 803), 347, (135, 255, 268), 727, (862, 873, 880), interval=5.0),
        stamped=False,
    ),
    Profile(
        "2.3",
        "3.10",
        "2.20.5+cuda12.1",
        "PG {id} ",
        Watchdog(563, 565, 577, 583, 1414, 1418, timeout_at=1537),
        Agent("thread", 851, 826, 688, 1218, (879, 870), 347, (132, 255, 263), 680, (835, 852, 878)),
        stamped=False,
    ),
    Profile(
        "2.4",
        "3.11",
        "2.20.5+cuda12.4",
        "PG {id} ({desc}) ",
        Watchdog(
            607,
            609,
            621,
            627,
            1515,
            1521,
            detected=1664,
            timeout_at=1709,
            raised=538,
            checked=1857,
            not_destroyed=1168,
        ),
        Agent("thread", 858, 833, 695, 1218, (901, 892), 348, (133, 256, 264), 680, (835, 855, 882)),
    ),
    Profile(
        "2.5",
        "3.11",
        "2.21.5+cuda12.4",
        "PG ID {id} PG GUID {guid}({desc}) ",
        Watchdog(
            616,
            618,
            630,
            636,
            1595,
            1601,
            detected=1785,
            timeout_at=1834,
            raised=542,
            checked=2027,
            not_destroyed=1250,
        ),
        Agent("pid", 897, 869, 704, 1267, (919, 910), 355, (138, 260, 269), 696, (849, 862, 899)),
    ),
    Profile(
        "2.6",
        "3.12",
        "2.21.5+cuda12.4",
        "PG ID {id} PG GUID {guid}({desc}) ",
        Watchdog(629, 632, 681, 695, 1895, 1901, failure=2168, stack=667, raised=552, checked=2363, not_destroyed=1496),
        Agent("pid", 897, 869, 704, 1267, (918, 909), 355, (138, 260, 269), 696, (849, 862, 899)),
    ),
    Profile(
        "2.7",
        "3.12",
        "2.26.2+cuda12.6",
        "PG ID {id} PG GUID {guid}({desc}) ",
        Watchdog(
            632,
            635,
            684,
            698,
            1899,
            1905,
            failure=2271,
            stack=670,
            raised=555,
            checked=2377,
            first=2106,
            observed=1682,
            received=1746,
            preparing=1536,
            store_gone=1662,
            not_destroyed=1476,
        ),
        Agent(
            "pid",
            900,
            874,
            719,
            1292,
            (892, 883),
            355,
            (139, 261, 270),
            711,
            (864, 881, 914),
            path="site-packages/torch",
        ),
        new_frames=True,
    ),
    Profile(
        "2.9",
        "3.12",
        "2.27.5+cuda12.8",
        "PG ID {id} PG GUID {guid}({desc}) ",
        Watchdog(
            683,
            686,
            744,
            758,
            2059,
            2065,
            failure=2241,
            stack=730,
            raised=604,
            checked=2400,
            first=2573,
            observed=1794,
            received=1858,
            preparing=1575,
            store_gone=1783,
            not_destroyed=1538,
        ),
        Agent("pid", 908, 882, 725, 1298, (936, 927), 357, (156, 284, 293), 717, (881, 894, 924)),
        dump_wait=60.0,
        new_frames=True,
    ),
    Profile(
        "2.13",
        "3.12",
        "2.28.9+cuda12.9",
        "PG ID {id} PG GUID {guid}({desc}) ",
        Watchdog(
            757,
            760,
            818,
            832,
            2197,
            2203,
            failure=2395,
            stack=801,
            stack_found=True,
            raised=672,
            checked=2492,
            first=2732,
            observed=1922,
            received=1987,
            preparing=1700,
            store_gone=1826,
            not_destroyed=1575,
        ),
        Agent(
            "pid",
            1028,
            1002,
            753,
            1298,
            (1028, 1019),
            367,
            (194, 374, 383),
            745,
            (916, 923, 959),
            lists_all=True,
            signal_names=True,
        ),
        dump_wait=60.0,
        new_frames=True,
    ),
)


def pick(rng: Random, least: tuple[int, int] = (2, 1)) -> Profile:
    """Any version from `least` on."""
    return rng.choice([profile for profile in PROFILES if profile.number >= least])
