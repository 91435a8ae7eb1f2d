import pytest

from atlctl.diagnosis.consequence import Sort, consequence_of, own_text

from .samples import NO_FILE, PEER_GONE

GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] "


@pytest.mark.parametrize(
    ("text", "sort", "peer"),
    [
        (PEER_GONE, Sort.LEFT, "10.0.0.1"),
        (f"{GLOO}Connection closed by peer [fd00::1]:42", Sort.LEFT, "fd00::1"),
        (f"{GLOO}Read error [10.0.0.1]:42: Connection reset by peer", Sort.LEFT, "10.0.0.1"),
        (f"{GLOO}Write error [10.0.0.1]:42", Sort.LEFT, "10.0.0.1"),
        ("RuntimeError: Gloo connectFullMesh failed with [/x/pair.cc:1] timed out connecting", Sort.MESH, None),
        (f"{GLOO}Timed out waiting 8000ms for recv operation", Sort.WAITED, None),
        (f"{GLOO}Application timeout caused pair closure", Sort.WAITED, None),
        ("NCCL WARN socketProgress: Connection closed by remote peer gpu-7.train<4242>", Sort.LEFT, "gpu-7.train"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: A call failed", Sort.LEFT, None),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600000 ms", Sort.WAITED, None),
        ("Heartbeat monitor timed out! Process will be terminated", Sort.STUCK, None),
        ("To avoid data inconsistency, we are taking the entire process down.", Sort.FOLLOWED, None),
        ("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection", Sort.STORE_LEFT, None),
        ("RuntimeError: recvValue failed on SocketImpl(fd=4)", Sort.STORE_LEFT, None),
        ("torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /0/2", Sort.STORE_WAITED, None),
        ("DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 joined.", Sort.STORE_WAITED, None),
        ("RendezvousConnectionError: The connection to the C10d store has failed.", Sort.STORE_LEFT, None),
        ("RendezvousClosedError", Sort.FOLLOWED, None),
        ("RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 30000 ms", Sort.WAITED, None),
        ("RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors", Sort.WAITED, None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Sort.LEFT, None),
        ("BrokenPipeError: [Errno 32] Broken pipe", Sort.LEFT, None),
    ],
)  # fmt: skip
def test_texts_of_those_who_waited_or_were_left(text, sort, peer):
    found = consequence_of(text)
    assert found is not None
    assert (found.sort, found.peer) == (sort, peer)
    assert found.reason


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad magic", "torch.OutOfMemoryError: CUDA out of memory", "ConnectionError: no route", "",
        "TimeoutError: the data server did not answer", "RendezvousTimeoutError", "Connection refused", None, NO_FILE,
        "Signal 9 (SIGKILL) received by PID 3",
    ],
)  # fmt: skip
def test_texts_that_are_ones_own(text):
    assert consequence_of(text) is None


def test_only_the_beginning_of_a_text_is_looked_at():
    assert consequence_of("x" * 5000 + PEER_GONE) is None


def test_own_text_is_not_torchelastics_stand_in():
    assert own_text("ValueError: x") == "ValueError: x"
    for text in ("Signal 9 (SIGKILL) received by PID 3", NO_FILE, "<N/A>", "", None, "Process failed with exitcode 1"):
        assert own_text(text) is None
