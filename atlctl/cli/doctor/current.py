"""Which job commands are about when none is named, and how to begin where there is none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.options import stated_job
from atlctl.cli.runtime import context
from atlctl.cli.target import current_job
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.jobs.model import Job

#: Seconds for finding it.
PATIENCE = 30.0
#: Ways to begin, each with the key of what it does.
_FIRST = (
    ("atlctl demo", "first_demo"),
    ("atlctl local run --workers 2 -- CMD", "first_local"),
    ("atlctl exec --hostfile FILE --all -- hostname", "first_hosts"),
    ("export KUBECONFIG=PATH", "first_cluster"),
)


async def check(
    report: Report, words: Words, source: Backend, option: str | None, *, nothing_else: bool = False
) -> Job | None:
    """The current job, None where there is none, several, or it cannot be told. `nothing_else`: where there is none,
    nothing else is set up either."""
    stated = stated_job(None, option) is not None
    try:
        async with asyncio.timeout(PATIENCE):
            found = await current_job(source, None, option, reads_only=True)
    except TimeoutError:
        report.warn("job", words("job_late", seconds=f"{PATIENCE:g}"), "atlctl jobs")
        return None
    except (NothingMatched, UsageError) as error:
        # Where none was named there is nothing wrong with having none, or several.
        (report.fail if stated else report.skip)("job", error.message, error.hint)
        if nothing_else and not stated and isinstance(error, NothingMatched):
            report.first_steps = [(command, words(key)) for command, key in _FIRST]
        return None
    except AtlctlError as error:
        report.warn("job", error.message, error.hint)
        return None
    job, how = found.job, words(_how(found.how, source.name))
    state = f"{job.state} ({job.reason})" if job.reason else str(job.state)
    text = words(
        "job_ok", name=job.name, kind=job.kind, state=state, count=len(job.workers), expected=job.expected, how=how
    )
    report.ok("job", text)
    report.data["job"] = {
        "name": job.name,
        "kind": job.kind,
        "namespace": job.namespace,
        "state": str(job.state),
        "uid": job.uid,
        "workers": len(job.workers),
        "expected": job.expected,
        "how": found.how,
    }
    return job


def _how(how: str, backend: str) -> str:
    if how != "place":
        return {"named": "job_named", "variable": "job_variable", "only": "job_only"}[how]
    if context().selector is not None:
        return "job_selector"
    if context().hostfile is not None:
        return "job_hostfile"
    return "job_peers" if backend == "ssh" else "job_owner"
