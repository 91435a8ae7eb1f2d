"""Long lines as PyTorch prints them, put on one line. Names in braces are filled in by those who print them."""

from __future__ import annotations


def _line(text: str) -> str:
    return text.strip("\n").replace("\n", " ")


SOME = _line("""
Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations
might run on corrupted/incomplete data.
""")

AWAY = "To avoid data inconsistency, we are taking the entire process down."

DUMP = _line("""
Received a dump signal due to a collective timeout from {origin} and we will try our best to dump the debug info. Last
enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages of
collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the scheduled
collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other reasons such as
network errors or bugs in the communications library (e.g. NCCL), etc. """)

NO_STACK = _line("""
Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by
setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.
""")

STORE_GONE = _line("""
Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Failed
to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
""")

STUCK = _line("""
ProcessGroupNCCL's watchdog got stuck for {seconds} seconds without making progress in monitoring enqueued collectives.
This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by
another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors.If
you suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the timeout
(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor
(TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch about the
short timeout or false positive abort; otherwise, please attempt to debug the hang. """)

TERMINATING = _line("""
Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.
""")

#: At an exit without destroy_process_group: torch 2.4 and 2.5, and after that.
NOT_DESTROYED_FIRST = _line("""
Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the
application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process.
In rare cases this process can exit before this point and block the progress of another member of the process group.
This constraint has always been present,  but this warning has only been added since PyTorch 2.4 (function operator())
""")
NOT_DESTROYED = _line("""
Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info,
please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())
""")

OUT_OF_MEMORY = _line("""
CUDA out of memory. Tried to allocate 6.00 GiB. GPU {local} has a total {capacity} of 79.15 GiB of which 1.84 GiB is
free. Including non-PyTorch memory, this process has 77.30 GiB memory in use. Of the allocated memory 72.38 GiB is
allocated by PyTorch, and 3.91 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large
try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory
Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)
""")

CUDA_ASYNC = _line("""
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
""")
CUDA_SEARCH = _line("""
Search for `{symbol}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
""")

CONNECTION_LOST = _line("""
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See
inner exception for details.
""")
NO_BYTES = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"

THREADS = _line("""
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded,
please further tune the variable for optimal performance in your application as needed. """)

REMOTE = _line("""
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
""")

#: Behind a traceback that caused the next one.
CAUSED = "\n\nThe above exception was the direct cause of the following exception:\n\n"

#: The kernel's lines: Xid 48, 94 and 31, the memory killer.
XID_48 = "NVRM: Xid ({address}): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) on FBPA 3"
XID_94 = "NVRM: Xid ({address}): 94, pid={pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No"
XID_31 = _line("""
NVRM: Xid ({address}): 31, pid={pid}, name=python, Ch 00000018, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0
faulted @ 0x7f2c_4a000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ
""")
MEMORY_KILLER = _line("""
Memory cgroup out of memory: Killed process {pid} (python) total-vm:238707004kB, anon-rss:184736460kB, file-rss:4528kB,
shmem-rss:65536kB, UID:0 pgtables:483200kB oom_score_adj:996
""")
