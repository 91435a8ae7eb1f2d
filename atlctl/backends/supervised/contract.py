"""What every start of a supervised job keeps to: its environment contract, the limits of its logs, how it fails."""

from __future__ import annotations

import re
from collections.abc import Mapping

from atlctl.jobs.errors import AtlctlError, UsageError

#: torchrun's and the platform's port.
DEFAULT_PORT = 29500

#: A worker's log is rotated at this size and this many files are kept (the kubelet keeps 5 of 10 MiB).
LOG_MAX_BYTES = 64 * 1024 * 1024
LOG_MAX_FILES = 5

#: Variables of a torchrun or platform around a start. Inherited, they would hijack the job's own torchrun.
LEAKING = re.compile(
    r"PET_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)"
    r"|ATLCTL_(JOB|WORKER|EXEC|STATE_DIR)"
)
_CONTRACT = ("RANK", "WORLD_SIZE", "MASTER_PORT", "ATLCTL_JOB", "ATLCTL_WORKER", "ATLCTL_STATE_DIR", "ATLCTL_EXEC")


class CannotStartError(AtlctlError):
    """The command of a job could not be started; carries the exit code that a shell would give."""

    def __init__(self, message: str, hint: str | None, code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = code  # type: ignore[misc]  # the class's code is the default, this one was observed


def check_variables(env: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that is none, or that the contract sets."""
    for key, value in env.items():
        if key in _CONTRACT:
            hint = "use --master-port" if key == "MASTER_PORT" else "it belongs to the contract with the workers"
            raise UsageError(f"--env {key}: this variable is set by atlctl", hint)
        if not key or "=" in key or "\0" in key + value:
            raise UsageError(f"--env {key}={value}: not a variable", "write --env NAME=VALUE")


def check_port(wanted: int | None) -> None:
    """Raise UsageError for a number that no port has."""
    if wanted is not None and not 1 <= wanted <= 65535:
        raise UsageError(f"--master-port must be from 1 to 65535, not {wanted}")
