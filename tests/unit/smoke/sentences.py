"""Every note and evidence that the smoke test can write, once. OWN WORDS stands where a worker has the say."""

from __future__ import annotations

ANSWERS = (
    "3 of 4 workers answer",
    "it is not running (failed)",
    "it is not running (failed: OWN WORDS)",
    "the job has no worker of index 3",
    "no answer within 4 s: not connected",
    "no answer within 4.1 s: its agent was started and says nothing",
    (
        "no answer within 4 s: a shell answers there, and no Python that it starts does; "
        "its machine has too much to do to tell"
    ),
    "no answer within 4 s: not connected; asked once more it answered, and was not tested",
    "its agent was lost while it was tested: lost: OWN WORDS; the agent may still run there; another one answers",
    "its agent was lost while it was tested: the agent ended with exit 3",
    "its agent was lost while it was tested: no answer yet",
    "there is no shell",
    "no Python 3.8 or newer is there",
    "no Python 3.8 or newer is there; not run, as other users can change it: /data/env/bin/python3.11",
    "no time left",
    "no worker answers any more",
    "one worker: there is nobody to talk to",
    "--no-gpu",
    "the check failed itself: KeyError: 'OWN'",
)
_TRAINS = "somebody trains: worker-[0-1,3],w-7"
GPUS = (
    f"{_TRAINS}: whether ranks run there cannot be told: no answer in 4 s (process state D, in nfs_wait)",
    f"{_TRAINS}: whether ranks run there cannot be told: no answer in 6 s; GPU 1 in use, up to 97 %",
    (
        f"{_TRAINS}: ranks run there (0, 1, 2, ...); processes compute on GPU 0, 1; memory of GPU 2 is held, "
        "up to 70000 MiB; GPU 0, 2 in use, up to 97 %, and on 2 more"
    ),
    "900 MiB of memory are left to its cgroup, 1.25 GiB are needed, and all of its processes would be killed",
    "0 B of memory are left to its machine, 1 GiB are needed",
    "there is no GPU on any worker",
    "16 GPUs on 2 workers; there is no nvidia-smi to ask",
    "nvidia-smi hangs: no answer in 5 s (process state D)",
    "7 GPUs are there, the platform states 8",
    "7 GPUs are there, the platform states 8; OWN WORDS; OTHERS",
    "7 GPUs are there, the platform states 8; Xid 79 2 min ago: The GPU has left the PCIe bus",
    "nvidia-smi tells of a GPU that does not answer: OWN WORDS; OTHERS",
    "nvidia-smi ended with 9: OWN WORDS",
    "nvidia-smi ended with 9: ",
    (
        "a bad row of its memory could not be remapped; bad memory waits for the GPU to be reset; "
        "3 memory errors that ECC could not correct since the driver was loaded; Xid 74: An NVLink error; "
        "its clock is held down: heat, power brake, 91 degrees"
    ),
    "its clock is held down: hardware",
    *(
        f"Xid 1 0 min ago: {why}"
        for why in (
            "A memory error that ECC could not correct",
            "A contained memory error that ends only the process it hit",
            "After an earlier Xid, the driver asks for a reset of the GPU or a reboot of the node",
        )
    ),
)
FACTS = (
    "torch: 2.4.0 (the others: 2.5.1); CUDA: 12.1 (the others: 12.4); NCCL: 2.20.5 (the others: 2.21.5); 3 more",
    "torch: none (the others: 2.5.1)",
    "GPU driver: 535.1 (the others: 550.2); kernel: 5 (the others: 6); machine: x86_64 (the others: OWN)",
    "memlock: 64 KiB (the others: no limit); /dev/shm: 64 MiB (the others: 16 GiB)",
    "GPUs: 7 x NVIDIA H100 (the others: 8 x NVIDIA H100); GPUs: none (the others: 2 x of unknown kind)",
    (
        "GPU topology: NV18 x 28, PIX x 1 (the others: NV18 x 28); NVLinks of GPU 3: 17 up, 1 down (the others: 18 up, "
        "0 down)"
    ),
    "RDMA port mlx5_0/1: not there (the others: ACTIVE, 400 Gb/s, OWN, 4 GIDs); RDMA: not told: OWN (the others: OWN)",
    "setting NCCL_ALGO: not set (the others: none); setting NCCL_PROTO: none (the others: not set)",
    "setting NCCL_DEBUG: INFO (the others: WARN)",
    (
        "not alike, and no value is that of most: torch: worker-[0-1] 2.4.0, w-2 none; GPUs: worker-[0-1,3] none, "
        "w-2 8 x NVIDIA H100; setting NCCL_DEBUG: worker-0 INFO, w-2 not set; RDMA port mlx5_0/1: worker-0 not there; "
        "2 more"
    ),
    "its name OWN stands for 127.0.1.1, ::1 there",
    "clocks differ: worker-0 by +1.5 s, w-1 by -20.0 s",
    "its clock is 3.2 s ahead of the others', at least",
    "its clock is 3.2 s behind the others', at least",
    "it told nothing of itself: no answer within 12 s",
    "it told nothing of itself: its agent failed",
    "it told nothing of itself: OWN WORDS; OTHERS",
    "one worker, nothing to compare with: torch 2.4.0+cu124, CUDA 12.4, NCCL 2.21.5, GPUs 8 x NVIDIA H100 80GB HBM3",
    "one worker, nothing to compare with",
    "one worker, nothing to compare with: torch none, GPUs none",
    "torch 2.4.0, GPUs 1 x A + 2 x B",
)
_SPEED = "no transfer gets through, alone, where others have 900 MB/s,"
NETWORK = (
    "one worker alone has nobody to call",
    "fewer than two workers can be called",
    "it has no address but loopback, while other workers are on other hosts",
    "its agent gave no usable answer: its answer is not understood",
    "its agent gave no usable answer: no answer within 6.2 s",
    "11 of 12 connections, round trip 0.05 ms, 1 passed only the second time",
    "12 of 12 connections, all workers share one machine's loopback: no network was tested",
    "3 of 3 connections to it fail, 3 of 3 connections from it fail: no connection (nothing came for 1.4 s)",
    "1 of 3 connections from it fail: connections are refused (OWN WORDS)",
    "only connections from w-2 to w-0 fail: connected, and then no answer (hung up)",
    "connections between w-1 and w-3 fail: small packets pass, large ones do not (OWN WORDS)",
    "connections between w-1 and w-3 fail: another worker answers at its address (worker number 7 answers there)",
    "6 pairs among w-1, w-2 fail, too many to tell who is at fault: bytes arrive altered (bytes came back altered)",
    "6 pairs among w-1, w-2, w-3 fail, too many to tell who is at fault: no connection",
    "all workers share one machine's loopback: no network to measure",
    "no transfer was possible",
    "median 934.2 MB/s, slowest 3.1 MB/s",
    "median 1e+04 MB/s, slowest 3.1 MB/s; all workers share one machine's loopback: no network to judge",
    "median 934.2 MB/s, slowest 3.1 MB/s; speed: with two workers there is no reference",
    "median 934.2 MB/s, slowest 3.1 MB/s; speed: too few links are left to compare",
    "1.2 % of the packets are lost (12 of 1000, sent slowly) on 4 of 6 of its directions",
    "1.2 % of the packets are lost (12 of 1000, sent slowly) from w-1 to w-2",
    f"{_SPEED} from w-1 to w-2 and w-2 to w-1",
    f"{_SPEED} on 3 of 6 of its directions",
    "12.5 MB/s, alone, where others have 900 MB/s, on 4 pairs, too many to tell who is at fault",
    "12.5 MB/s, alone, where others have 900 MB/s, from w-1 to w-2",
)
STORAGE = (
    "no mount was named, and all workers share none",
    "/data 120 MB/s, /mnt/own not written, /x 3 MB/s, 2 more; one worker: whether others see the same is not judged",
    "it told nothing of its mounts: no answer within 25 s",
    "it told nothing of its mounts: its answer was not understood",
    "not mounted; 3 others have it there from 10.0.0.1:/export",
    "cannot be tested: it ended with 3",
    "cannot be tested: its answer was not understood",
    "is not there (open: OWN WORDS)",
    "is no folder (open: OWN WORDS)",
    "is read-only (create: OWN WORDS); another volume: it does not see the files of w-[0-2], who share one view",
    "on all workers: is full (write: OWN WORDS)",
    "is full: the quota is used up (write: OWN WORDS)",
    "may not be written (create: OWN WORDS)",
    "is stale: the server knows it no more (open: OWN WORDS)",
    "is not connected: the process that serves it is gone (open: OWN WORDS)",
    "fails (fsync: OWN WORDS); cannot be read (read: OWN WORDS)",
    "hangs: no answer in 5.0 s to fsync (process state D, in nfs_wait); later it answered",
    "hangs: no answer in 5.0 s to fsync (process state D)",
    "no worker sees the file of another one, though all mount the same source",
    "each worker has a volume of its own there: nothing is shared",
    "not one volume, and no view is that of most: w-[0-1] | w-[2-3]",
    "its file is not seen by w-[0-2]",
    "it does not see the file of w-3, which others see",
    "what it wrote reads otherwise: w-[0-1],w-3 read it",
    "it reads otherwise than others what w-0 wrote",
    "full: 100 B free of 1 MiB",
    "on all workers: nearly full: 600 MiB free of 1 TiB",
    "nearly out of inodes: 10 free of 10000000",
    "slow: 8.00 s to write and sync 4 MiB alone, another worker 0.10 s; with all at once 9.00 s, the middle one 0.10 s",
    "slow: 8.00 s to read 4 MiB alone, another worker 0.10 s; with all at once 9.00 s, the middle one 0.10 s",
)
_RANK, _GPU = "rank 1 on w-1", "rank 3 on w-1, GPU 2"
_STACK = "poll (probe.py:12) < main (OWN:3)"
_GOT = " (3 values, the first at 17: 188.0 in place of 172.0)"
RANKS = (
    f"the process of {_RANK} cannot be started: OWN WORDS",
    f"{_GPU} does not start",
    f"{_RANK} does not start, stopped by a signal: {_STACK}; a second time it came to its end",
    f"{_RANK} hangs in matmul fp32, waiting for a device or a disk: {_STACK}; it said: OWN; WORDS",
    f"{_GPU} hangs in all_gather, stopped by a debugger; a second time it got along",
    f"{_RANK} hangs in its start",
    f"{_RANK} was ended by signal 9 (SIGKILL, which is what too little memory looks like) in memory",
    f"{_RANK} was ended by signal 11 (SIGSEGV) in all_gather: {_STACK}; it said: OWN WORDS",
    f"{_RANK} was ended by signal 77 in its start",
    f"{_GPU} ended with exit 17 in memory; it said: CUDA: OWN WORDS",
    (
        f"{_RANK} opened the store, and 3 of 4 ranks cannot reach it: RuntimeError: the store of the leader cannot be "
        "reached on port 4711: 10.0.0.1: OWN; 10.0.0.2: OWN"
    ),
    f"{_RANK} failed in init: RuntimeError: OWN; WORDS",
    f"{_RANK} failed in meeting: RuntimeError: ranks [1, 2] of the group did not come to the store",
    f"{_GPU} failed in its start: RuntimeError: GPU 2 is hidden by CUDA_VISIBLE_DEVICES=0,1",
    f"{_RANK} failed in store: RuntimeError: no interface has an address",
    f"{_RANK} failed in init: it says that it failed",
    f"{_RANK} fails in pairs with others, who get along without it: the whole group makes no progress",
    f"{_RANK} fails in pairs with others, who get along without it: RuntimeError: OWN WORDS",
    "no rank makes progress, and all do the same",
    f"{_RANK}: RuntimeError: OWN WORDS",
    f"different versions of torch did not get along (2.4.0 on w-0, w-1; 2.5.1+cpu on w-2): {_RANK}: OWN WORDS",
    "none of 4 ranks came to its end in time: the machines are too busy, or hold all of them up",
    "1 rank: there is nobody to compare with",
    "did not come to its end for 3 of 4 ranks",
    "no worker has a torch that can be tested",
    "no torch: nothing was told",
    "no torch: its import is not done yet",
    "no torch: torch was not asked for",
    "no torch: torch cannot be imported: OWN WORDS",
    "no torch: the process that starts ranks takes no orders: OWN WORDS",
    "no torch: the process that starts ranks has ended",
    "no torch: the process that starts ranks was ended by signal 9",
    "no torch: the process that starts ranks ended with exit 1",
    "no torch: the agent leaves",
    "no torch: OWN; WORDS",
    "no GPU of it was selected",
    "it has no GPU 7, 8",
    "it has GPUs, and a torch that was built without CUDA",
    "it has no GPU, and other workers have",
    "1 rank on CPUs",
    "16 ranks on NVIDIA H100 80GB HBM3",
    "7 of 8 ranks, nccl; skipped: all_to_all, reduce_scatter; NET/IB x 12, P2P/CUMEM x 3",
    "8 ranks, gloo",
    "skipped: torch 2.2: OWN; WORDS",
    f"what rank 1 sent came wrong to rank 3 alone, in all_gather, broadcast{_GOT}",
    f"{_RANK}: wrong values from it came to 3 ranks in all_gather{_GOT}",
    f"{_GPU}: it got wrong values from 3 ranks that others got right",
    f"{_GPU}: wrong sums in all_reduce, reduce_scatter came to it, and right ones to the others",
    "wrong sums in all_reduce came to 4 of 4 ranks",
    "wrong sums came to 1 of 4 ranks",
    f"{_RANK}: the gradient that it gave to DDP is not the one of its micro-batch",
    "gradients after the sync differ from the reference on 4 of 4 ranks",
    "parameters after a step differ from the reference on 4 of 4 ranks",
    f"{_RANK}: the gradients that it computes are outvoted 3 of 3 times",
    f"{_RANK}: the gradient that it computes differs from its own reference in fp64",
    f"{_RANK}: its gradients differ from those of the other ranks after the sync",
    f"{_RANK}: its parameters differ from those of the other ranks after the sync",
    (
        f"{_GPU}: memory does not hold what was written at 8 or more places, the first 17; "
        "matmul fp32 differs from fp64 by 0.1 of the greatest value (1e-05 allowed)"
    ),
    f"{_GPU}: matmul bf16 differs from fp64 by not a number of the greatest value (0.01 allowed)",
    f"{_GPU}: matmul bf16 differs from fp64 by inf of the greatest value (0.01 allowed)",
    f"{_GPU}: 3 wrong products in 60 s under load",
    f"{_GPU}: under load its speed falls to 60%, that of the others to 98%",
)
SPEED = (
    "nothing was measured",
    "busbw 123.4 GB/s at 1G is 40% of the 370 that it should be (OWN WORDS: OWN; OTHERS)",
    "the GPUs of w-1 among themselves reach 40% of the middle of all workers",
    "busbw in GB/s: 1M 12.3, 64M 200, 1G 1.2e+03; should be 370 from 1G",
    "busbw in GB/s: 64K 0.01; no figure is known for this hardware",
    "one worker: there are no pairs",
    "6 pairs, busbw 1.2 to 3.4 GB/s, middle 2.3; on CPUs that says little of the network: see throughput",
    "1 pair, busbw 2.3 GB/s; with one pair there is nothing to compare it with",
    "w-1 has pairs that do not come to their end: no answer",
    "w-1 has pairs that do not come to their end: no answer to 3.1 GB/s",
    "w-1 is slow to most others: 0.3 GB/s to 3.1 GB/s",
    "w-1 with w-2: no answer",
    "w-1 with w-2: 0.3 GB/s on rail 3",
    "2 ranks: with fewer than 3 nobody can tell which one is slow",
    "2 of 4 ranks told how fast they are",
    "slowest 3.00 times the middle",
    (
        "slowest 3.00 times the middle; 2 of 4 had to wait for a CPU; 1 of them also alone: too much else runs to "
        "compare their speed"
    ),
    f"{_RANK}: 2.1 times as slow as the middle of all, alone 2.0 times; it computes slowly",
    (
        f"{_GPU}: 2.1 times as slow as the middle of all, alone 2.0 times; most of that it neither computes nor waits "
        "for a CPU"
    ),
    f"{_RANK} is starved: also alone it waits for a CPU 80% of its time",
    "NCCL fell back to sockets on w-1; 3 of 4 workers use IB",
    "NCCL uses sockets on all workers although each has an active RDMA port",
    "GPUs of w-1 talk through shared memory; on 3 other workers directly",
)
SENTENCES = (*ANSWERS, *GPUS, *FACTS, *NETWORK, *STORAGE, *RANKS, *SPEED)

#: Of the code's texts those that are no part of a note or of evidence.
OTHERS = (
    # Errors of the command, and of a table of figures.
    "no worker can be tested: ",
    "atlctl doctor tells what is allowed",
    "try one of them: atlctl exec -w 0 -- true",
    ": busbw, from_bytes, per_worker and nic are numbers above 0",
    ": gpu and source are texts, workers is one of ",
    # Advice.
    "Look at the interfaces of this worker: none is up that others could reach.",
    "give all workers one image",
    "see what mesh and facts say of the network between them",
    # Kept and not shown.
    "its agent is gone",
    "its agent says nothing more",
    "another worker answers there",
    "more memory than the test may use",
    "cannot be read: ",
    "not readable: ",
    " cannot be prepared: ",
    # Looked for in texts of others, or written for the probe alone.
    "most recent call first",
    "no devices were found",
    "not support",
    "not implemented",
    "no backend type",
    "not available",
    "atlctl smoke",
    # Within the words of a rank.
    ": another program answers",
)
