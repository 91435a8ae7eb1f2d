"""Recorded exchanges with a real API server, if available beside this checkout; tests of them are skipped otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

#: Read at import, because tests do not see the user's variables.
_NAMED = os.environ.get("ATLCTL_RECORDINGS")


def recordings() -> Path | None:
    """The folder of recordings: `ATLCTL_RECORDINGS`, else `../shared/recordings` of the repository; None if missing."""
    folder = Path(_NAMED) if _NAMED else Path(__file__).parents[3] / "shared" / "recordings"
    return folder if (folder / "index.md").is_file() else None


#: For tests that read recordings.
needs_recordings = pytest.mark.skipif(recordings() is None, reason="no recordings: set ATLCTL_RECORDINGS")


def names(pattern: str) -> list[str]:
    """The recordings that match a pattern (`exec/*.json`), sorted and without `.json`; empty without recordings."""
    folder = recordings()
    if folder is None:
        return []
    return sorted(path.relative_to(folder).as_posix().removesuffix(".json") for path in folder.glob(pattern))


def load(name: str) -> Any:
    """A recording by its name without `.json`: `kinds/job-running.top`."""
    folder = recordings()
    assert folder is not None, "a test that loads recordings carries needs_recordings"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
