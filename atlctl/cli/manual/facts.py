"""What the manual says of the program as a whole: exit codes, environment, files."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.cli.catalogue import Language
from atlctl.jobs.errors import ExitCode

#: Variables that a user may set or will see. Those of one part alone (of the demo's script, say) are not among them.
ENVIRONMENT = (
    "ATLCTL_JOB",
    "ATLCTL_BACKEND",
    "ATLCTL_NAMESPACE",
    "ATLCTL_STATE_DIR",
    "ATLCTL_SIGNATURES",
    "ATLCTL_BUSBW",
    "ATLCTL_WORKER",
    "ATLCTL_RECORDING",
    "ATLCTL_FAILED_WORKERS",
    "KUBECONFIG",
    "SSH_AUTH_SOCK",
    "NO_COLOR",
    "FORCE_COLOR",
    "LC_ALL",
)

_FILES = {
    "config": "$XDG_CONFIG_HOME/atlctl/config.toml",
    "project": ".atlctl.toml",
    "state": "$XDG_STATE_HOME/atlctl/",
    "kubeconfig": "~/.kube/config",
    "ssh": "~/.ssh/",
}


def texts(lang: Language) -> Mapping[str, str]:
    """The texts of the manual in a language."""
    if lang == "zh":
        from atlctl.cli.catalogue.manual_zh import TEXTS
    else:
        from atlctl.cli.catalogue.manual_en import TEXTS
    return TEXTS


def exit_codes(lang: Language) -> list[tuple[str, str]]:
    """Code and meaning, rising."""
    return [(str(int(code)), texts(lang)[f"exit.{int(code)}"]) for code in sorted(ExitCode)]


def environment(lang: Language) -> list[tuple[str, str]]:
    """Variable and meaning."""
    return [(name, texts(lang)[f"env.{name}"]) for name in ENVIRONMENT]


def files(lang: Language) -> list[tuple[str, str]]:
    """Path and content."""
    return [(path, texts(lang)[f"file.{key}"]) for key, path in _FILES.items()]
