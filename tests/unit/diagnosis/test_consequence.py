import pytest

from atlctl.diagnosis.consequence import is_consequence, own_text

from .samples import NO_FILE, PEER_GONE


@pytest.mark.parametrize(
    "text",
    [
        PEER_GONE,
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:42: Connection reset by peer",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:300] Write error [10.0.0.1]:42",
        "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: A call failed possibly",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600000 milliseconds",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: recvValue failed on SocketImpl(fd=4)",
        "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//cpu//0/2",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 clients joined.",
        "RendezvousConnectionError: The connection to the C10d store has failed.",
        "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 30000 ms",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_texts_of_those_who_waited(text):
    assert is_consequence(text, 1, None)
    assert is_consequence(text, -15, "SIGTERM") == is_consequence(text, 1, None)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad magic", "torch.OutOfMemoryError: CUDA out of memory", "ConnectionError: no route",
        "TimeoutError: the data server did not answer", "RendezvousTimeoutError", "Connection refused", "",
        "RuntimeError: Detected mismatch between collectives on ranks.",
    ],
)  # fmt: skip
def test_texts_that_are_ones_own(text):
    assert is_consequence(text, 1, None) is None


def test_an_own_exception_is_no_consequence_even_under_sigterm():
    assert is_consequence("ValueError: bad magic", -15, "SIGTERM") is None


@pytest.mark.parametrize("text", [None, "", "Signal 15 (SIGTERM) received by PID 3", NO_FILE])
def test_sigterm_without_an_own_text(text):
    assert "SIGTERM" in str(is_consequence(text, -15, "SIGTERM"))
    assert "SIGTERM" in str(is_consequence(text, 143, None))


@pytest.mark.parametrize("code", [-9, -11, -7, -6, -4, 1, 2, 17])
def test_other_ends_are_none_by_themselves(code):
    assert is_consequence(f"Signal {-code} (SIGX) received by PID 3" if code < 0 else NO_FILE, code, None) is None


def test_sigkill_by_the_agent_itself():
    assert "agent" in str(is_consequence(None, -9, "SIGKILL", forced=True))
    assert is_consequence(None, -11, "SIGSEGV", forced=True) is None


def test_own_text_is_not_torchelastics_stand_in():
    assert own_text("ValueError: x") == "ValueError: x"
    for text in ("Signal 9 (SIGKILL) received by PID 3", NO_FILE, "<N/A>", "", None, "Process failed with exitcode 1"):
        assert own_text(text) is None
