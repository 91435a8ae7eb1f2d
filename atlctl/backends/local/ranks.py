"""Which worker of a local job holds which global rank."""

from __future__ import annotations

from atlctl.backends.local import registry
from atlctl.backends.local.supervisor import processes
from atlctl.jobs.model import Job, RankMap
from atlctl.jobs.statedir import state_dir


def known(job: Job) -> RankMap | None:
    """Observed where torchrun's children live, else guessed from what the workers were told, else None."""
    return observed(job) or guessed(job)


def guessed(job: Job) -> RankMap | None:
    """Node rank times processes a node, where all workers were told one number and node ranks are static.

    Local workers share one environment, so torchrun's own variables in it hold for all.
    """
    env = registry.environment(job.name)
    count = env.get("PET_NPROC_PER_NODE", "")
    if not count.isdigit() or env.get("PET_RDZV_BACKEND", "static") != "static":
        return None
    each = range(int(count))
    found = {worker.index * len(each) + local: worker.name for worker in job.workers for local in each}
    return RankMap(found, f"node rank x PET_NPROC_PER_NODE={count}", guess=True)


def observed(job: Job) -> RankMap | None:
    """The ranks of living torchrun children of `job`, from their environments; None where none lives.

    Inside such a process `RANK` is torch's and counts processes, while the platform's `RANK` counts workers.
    """
    state = state_dir().encode()
    found: dict[int, str] = {}
    for pid in processes.everything():
        env = processes.environment(pid)
        if (
            env.get(b"ATLCTL_JOB") == job.name.encode()
            and env.get(b"ATLCTL_STATE_DIR") == state
            and b"TORCHELASTIC_RUN_ID" in env
            and env.get(b"LOCAL_RANK", b"").isdigit()
            and env.get(b"RANK", b"").isdigit()
        ):
            found[int(env[b"RANK"])] = env.get(b"ATLCTL_WORKER", b"").decode("utf-8", "replace")
    return RankMap(found, "living torchrun processes") if found else None
