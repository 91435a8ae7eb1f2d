"""The texts of a report in one language."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.cli.catalogue import Language


def words(language: Language) -> Mapping[str, str]:
    """All of them by key; they are many, and no other command needs them."""
    if language == "zh":
        from atlctl.cli.catalogue.report_zh import TEXTS
    else:
        from atlctl.cli.catalogue.report_en import TEXTS
    return TEXTS
