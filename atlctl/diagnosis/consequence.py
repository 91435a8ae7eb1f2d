"""Is a failure only the consequence of a peer's?

When one rank of a job leaves, the kernel closes its sockets. Whoever waits for it in a collective
then fails too: at once with a closed or reset connection, or, where the peer hangs, with a timeout.
torchrun ends the other processes of its worker with SIGTERM, after 30 s with SIGKILL. Such texts
say that somebody else was first. They do not say who.
"""

from __future__ import annotations

import re

_LIMIT = 4096

#: Text of an exception -> why it is a peer's consequence. The first that matches is taken.
_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        # gloo/transport/tcp/pair.cc: the other end is gone.
        (r"Connection closed by peer", "gloo: connection closed by a peer"),
        (r"gloo/\S+\] (?:Read|Write|writev?) error", "gloo: connection to a peer broke"),
        (r"Timed out waiting \d+ ?ms for (?:recv|send) operation", "gloo: waited for a peer until the timeout"),
        (r"Application timeout caused pair closure", "gloo: waited for a peer until the timeout"),
        # NCCL: a peer's socket or process is gone, or its watchdog saw a collective that never ended.
        (r"Connection closed by remote peer", "NCCL: connection closed by a peer"),
        (r"ncclRemoteError|remote process exited or there was a network error", "NCCL: a peer left"),
        (r"Watchdog caught collective operation timeout", "NCCL: waited in a collective until the timeout"),
        # TCPStore: its host left, or a key that a peer should have set never came.
        (r"recvValue failed|sendBytes failed|[Ff]ailed to recv, got 0 bytes", "the store's host went away"),
        (r"Connection was likely closed\. Did the remote server", "the store's host went away"),
        (r"wait timeout after \d+ ?ms, keys:", "waited in the store for a peer until the timeout"),
        (r"Timed out after \d+ seconds waiting for clients", "waited for peers to join until the timeout"),
        (r"RendezvousConnectionError", "the rendezvous' host went away or cannot be reached"),
        (r"RendezvousClosedError", "another worker closed the rendezvous"),
        # monitored_barrier raises on the ranks that did arrive.
        (r"failed to pass monitoredBarrier|successfully reached monitoredBarrier", "waited for peers in a barrier"),
        # The kernel's own words for a peer that is gone, whoever passes them on.
        (r"Connection reset by peer", "connection reset by a peer"),
        (r"Broken pipe", "wrote to a peer that was gone"),
    )
)

_SIGTERM = re.compile(r"Signal 15 \(SIGTERM\) received by PID")
#: What torchelastic writes where a process left no error file: nothing of the process's own.
_NO_TEXT = re.compile(
    r"Signal \d+ \([^)]*\) received by PID|To enable traceback see|Process failed with exitcode|<N/A>|<NONE>"
)


def own_text(text: str | None) -> str | None:
    """`text`, or None where it is torchelastic's stand-in for a process that left no text."""
    return None if not text or _NO_TEXT.match(text) else text


def is_consequence(text: str | None, exit_code: int | None, signal: str | None, *, forced: bool = False) -> str | None:
    """Why this failure is a peer's consequence, or None.

    `text` is the exception's line, `exit_code` torchelastic's (minus the signal's number),
    `forced` whether the agent said that it killed this process itself. A process that raised
    an exception of its own and was ended by SIGTERM on its way out is judged by its text. SIGKILL,
    SIGSEGV and other deaths by signal are no consequence by themselves.
    """
    own = own_text(text)
    if own is not None:
        head = own[:_LIMIT]
        return next((reason for pattern, reason in _TEXTS if pattern.search(head)), None)
    if exit_code == -15 or signal == "SIGTERM" or (text and _SIGTERM.match(text)):
        return "ended by SIGTERM, as its agent does after another failure"
    if exit_code == 143:  # 128 + 15: it caught SIGTERM and left by itself
        return "left on SIGTERM, as its agent sends after another failure"
    if exit_code == -9 and forced:
        return "killed by its agent, because it did not end on SIGTERM"
    return None
