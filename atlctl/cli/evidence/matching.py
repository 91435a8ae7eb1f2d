"""The signatures in force: the package's, and before them the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlctl.diagnosis.signatures.match import Matcher
    from atlctl.diagnosis.signatures.model import Signature


def own_signatures() -> tuple[Signature, ...]:
    """The user's own. Raises UsageError where a configuration or signature file is bad."""
    from atlctl.cli.hosts import settings
    from atlctl.diagnosis.signatures.load import load

    return tuple(item for path in settings().signatures for item in load(path))


def matcher(own: Sequence[Signature]) -> Matcher:
    """All signatures, `own` first."""
    from atlctl.diagnosis.signatures.load import builtin
    from atlctl.diagnosis.signatures.match import Matcher

    return Matcher((*own, *builtin().signatures))
