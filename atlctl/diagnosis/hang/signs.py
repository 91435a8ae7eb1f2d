"""What /proc alone says of a rank's main thread."""

from __future__ import annotations

from enum import StrEnum

from atlctl.diagnosis.hang.report import Moment, RankReport, Report

#: Share of the window in which a thread ran on a CPU, from which on it is busy.
_BUSY = 0.5
#: Share of the window in which it was ready and had no CPU, from which on it is starved; and what it had at most.
_WAITED, _RAN = 0.5, 0.3
#: torch's threads that carry out the collectives of gloo. One that is in a collective waits with a time limit, one that
#: has nothing to do without.
_GLOO = "pt_gloo_runloop"

#: torch's threads of any process group. Names have 15 characters.
_OF_GROUPS = (_GLOO, "pt_nccl_", "pt_xccl_", "pt_mpi_", "pt_ucc_")

_SLEEP = frozenset({"nanosleep", "clock_nanosleep", "pause"})
_FILES = frozenset({
    "read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "open", "openat", "stat", "lstat", "fstat",
    "newfstatat", "statx", "flock", "fcntl", "fsync", "fdatasync", "getdents64", "sendfile", "io_getevents",
    "io_uring_enter",
})  # fmt: skip
_POLL = frozenset({
    "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg", "accept", "accept4",
    "connect", "ioctl",
})  # fmt: skip
_CHILD = frozenset({"wait4", "waitid"})
#: The beginnings of the kernel's own names, where system calls may not be read.
_WCHAN = (
    ("hrtimer_nanosleep", "clock_nanosleep"),
    ("do_nanosleep", "nanosleep"),
    ("futex", "futex"),
    ("pipe_", "read"),
    ("anon_pipe_", "read"),
    ("wait_for_partner", "openat"),
    ("fifo_open", "openat"),
    ("do_wait", "wait4"),
    ("do_epoll_wait", "epoll_wait"),
    ("ep_poll", "epoll_wait"),
    ("do_poll", "poll"),
    ("do_sys_poll", "poll"),
    ("poll_schedule_timeout", "poll"),
    ("do_select", "select"),
    ("folio_wait", "read"),
    ("wait_on_page", "read"),
    ("io_schedule", "read"),
    ("rpc_wait", "read"),
    ("nfs", "read"),
    ("fuse_", "read"),
    ("request_wait_answer", "read"),
)


class Sign(StrEnum):
    """A rank's main thread over the window."""

    ENDED = "ended"
    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    DISK = "disk"
    STARVED = "starved"
    BUSY = "busy"
    SLEEP = "sleep"
    FILE = "file"
    CHILD = "child"
    #: It waits for a thread of gloo that is in a collective.
    GLOO = "gloo"
    #: It waits for a lock, and no thread of gloo is in a collective.
    LOCK = "lock"
    FUTEX = "futex"
    POLL = "poll"
    OTHER = "other"


def idle(rank: RankReport) -> bool:
    """It did not run at all in the window."""
    return bool(rank.looks) and rank.main_ticks <= 1 and not rank.switches


def has_group(rank: RankReport) -> bool:
    """Whether the process has made a process group: torch names the threads of each, from 2.4 on."""
    return rank.recorder is not None or any(waits.at.name.startswith(_OF_GROUPS) for waits in rank.waits)


def call_of(moment: Moment) -> str | None:
    """The system call, told by the kernel's function where the call itself may not be read."""
    if moment.syscall not in (None, "none"):
        return moment.syscall
    wchan = moment.wchan or ""
    return next((call for begin, call in _WCHAN if wchan.startswith(begin)), None)


def sign_of(rank: RankReport, report: Report) -> Sign:
    """What the main thread did, the surest sign first."""
    if not rank.looks:
        return Sign.ENDED
    if rank.frozen:
        return Sign.FROZEN
    states = {look.state for look in rank.looks}
    if states == {"T"}:
        return Sign.STOPPED
    if states == {"t"}:
        return Sign.TRACED
    if states == {"D"}:
        return Sign.DISK
    if _starved(rank, report):
        return Sign.STARVED
    if rank.main_ticks >= _BUSY * report.seconds * report.ticks_per_second:
        return Sign.BUSY
    calls = {call_of(look) for look in rank.looks}
    for sign, family in ((Sign.SLEEP, _SLEEP), (Sign.FILE, _FILES), (Sign.CHILD, _CHILD), (Sign.POLL, _POLL)):
        if all(call in family for call in calls):
            # A pipe or a socket that is read is no file, yet the wait is the same.
            return sign
    if calls == {"futex"}:
        return _lock(rank)
    return Sign.OTHER


def _starved(rank: RankReport, report: Report) -> bool:
    if rank.run_ns is None or rank.wait_ns is None:
        return False
    window = report.seconds * 1e9
    denied = (report.throttled_us or 0) * 1e3 > _WAITED * window and bool(rank.wait_ns)
    return (rank.wait_ns > _WAITED * window or denied) and rank.run_ns < _RAN * window


def _lock(rank: RankReport) -> Sign:
    """Which wait on a futex it is, as far as the threads of gloo tell."""
    gloo = [waits.at for waits in rank.waits if waits.at.name == _GLOO]
    if not gloo or not idle(rank) or any(at.syscall is None for at in gloo):
        return Sign.FUTEX
    if any(at.syscall == "futex" and at.timed for at in gloo):
        return Sign.GLOO
    return Sign.LOCK if all(at.syscall == "futex" and not at.timed for at in gloo) else Sign.FUTEX
