"""Classifies failures that are only the consequence of a peer's failure.

When one rank of a job exits, the kernel closes its sockets. Ranks that wait for it in a collective then fail too: at
once with a closed or reset connection, or, if the peer hangs, with a timeout. torchrun ends the other processes of its
worker with SIGTERM, after 30 s with SIGKILL. Such messages mean that another rank failed first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from atlctl.i18n import Message

_LIMIT = 4096


class Sort(StrEnum):
    """The implication of a victim's message for the peer."""

    #: It waited for a peer until a timeout: a rank did not join.
    WAITED = "waited"
    #: Its own watchdog thread made no progress: it is stuck in a call to the GPU, or its peers are.
    STUCK = "stuck"
    #: A peer's connection was closed: a rank has left.
    LEFT = "left"
    #: It waited in the store for a key that a peer should have set.
    STORE_WAITED = "store_waited"
    #: The process that hosts the store went away.
    STORE_LEFT = "store_left"
    #: It could not connect to its peers at a start: they are gone, or a restart read old addresses.
    MESH = "mesh"
    #: It received a different number of bytes than expected: it or its peer is wrong.
    SIZES = "sizes"
    #: Another message about the end of a peer or of the whole job.
    FOLLOWED = "followed"


@dataclass(frozen=True, slots=True)
class Consequence:
    """The reason why a text is a victim's. `peer` is the other end's address or host name, if the text has one."""

    sort: Sort
    reason: str
    peer: str | None = None


#: torch's report of different collectives under one number (TORCH_DISTRIBUTED_DEBUG=DETAIL).
COLLECTIVE_MISMATCH = "Detected mismatch between collectives"
_NCCL_WAITED = Message("NCCL: waited in a collective until the timeout")
#: gloo prints `[ADDRESS]:PORT`, NCCL `HOST<PORT>`.
_PEER = r"(?:\[(?P<peer>[^\]\s]{1,80})\]|(?P<host>[\w.:\-]{1,80})<\d)"

#: The first match wins.
_TEXTS: tuple[tuple[re.Pattern[str], Sort, str], ...] = tuple(
    (re.compile(pattern), sort, reason)
    for pattern, sort, reason in (
        # gloo: at a start all ranks connect to all; transport/tcp/pair.cc afterwards.
        (r"connectFullMesh failed", Sort.MESH, Message("gloo: could not connect to its peers")),
        (rf"Connection closed by peer(?: {_PEER})?", Sort.LEFT, Message("gloo: connection closed by a peer")),
        (
            rf"gloo/\S{{1,200}}\] (?:Read|Write|writev?) error(?: {_PEER})?",
            Sort.LEFT,
            Message("gloo: connection to a peer broke"),
        ),
        (
            r"Timed out waiting \d{1,12} ?ms for (?:recv|send) operation|Application timeout caused pair closure",
            Sort.WAITED,
            Message("gloo: waited for a peer until the timeout"),
        ),
        # NCCL: a peer's socket or process is gone, or its watchdog saw a collective that never ended.
        (rf"Connection closed by remote peer(?: {_PEER})?", Sort.LEFT, Message("NCCL: connection closed by a peer")),
        (
            r"ncclRemoteError|remote process exited or there was a network error",
            Sort.LEFT,
            Message("NCCL: a peer left"),
        ),
        (r"Watchdog caught collective operation timeout", Sort.WAITED, _NCCL_WAITED),
        (
            r"Heartbeat monitor timed out|watchdog got stuck for",
            Sort.STUCK,
            Message("NCCL: its own watchdog thread was stuck"),
        ),
        (r"collective timeout from +this local rank", Sort.WAITED, _NCCL_WAITED),
        (
            r"we are taking the entire process down|NCCL operations have failed or timed out",
            Sort.FOLLOWED,
            Message("NCCL: ended by its own watchdog after a failed collective"),
        ),
        (
            r"NCCL communicator was aborted",
            Sort.FOLLOWED,
            Message("NCCL: the communicator was aborted after a failure"),
        ),
        # TCPStore: its host left, or a key that a peer should have set never came.
        (
            r"recvValue failed|sendBytes failed|ailed to recv, got 0 bytes|Connection was likely closed",
            Sort.STORE_LEFT,
            Message("the store's host went away"),
        ),
        (r"wait timeout after \d{1,12} ?ms, keys:", Sort.STORE_WAITED, Message("waited in the store for a peer")),
        (
            r"Timed out after \d{1,9} seconds waiting for clients",
            Sort.STORE_WAITED,
            Message("waited for peers to join"),
        ),
        (r"RendezvousConnectionError", Sort.STORE_LEFT, Message("the rendezvous' host went away or cannot be reached")),
        (r"RendezvousClosedError", Sort.FOLLOWED, Message("another worker closed the rendezvous")),
        # monitored_barrier raises on the ranks that did arrive.
        (
            r"failed to pass monitoredBarrier|successfully reached monitoredBarrier",
            Sort.WAITED,
            Message("waited for peers in a barrier"),
        ),
        # gloo aborts the process that receives more or less than it expects: the sender may be at fault as well.
        (
            r"op\.preamble\.length <= op\.nbytes|op\.nwritten == op\.preamble\.nbytes",
            Sort.SIZES,
            Message("gloo: received another size than expected"),
        ),
        (COLLECTIVE_MISMATCH, Sort.FOLLOWED, Message("ran another collective than a peer")),
        # The kernel's error messages for a peer that is gone, in any library's message.
        (r"Connection reset by peer", Sort.LEFT, Message("connection reset by a peer")),
        (r"Broken pipe", Sort.LEFT, Message("wrote to a peer that was gone")),
    )
)

#: torchelastic's placeholder if a process left no error file.
_NO_TEXT = re.compile(
    r"Signal \d+ \([^)]*\) received by PID|To enable traceback see|Process failed with exitcode|<N/A>|<NONE>"
)


def own_text(text: str | None) -> str | None:
    """`text`, or None if it is torchelastic's placeholder for a process without an error text."""
    return None if not text or _NO_TEXT.match(text) else text


def consequence_of(text: str | None) -> Consequence | None:
    """The reason why this text is a victim's, or None. Only its first 4,096 characters are searched."""
    own = own_text(text)
    return None if own is None else _consequence_of(own[:_LIMIT])


@lru_cache(maxsize=1024)
def _consequence_of(head: str) -> Consequence | None:
    for pattern, sort, reason in _TEXTS:
        if match := pattern.search(head):
            groups = match.groupdict()
            return Consequence(sort, reason, groups.get("peer") or groups.get("host"))
    return None
