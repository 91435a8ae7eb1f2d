"""`python -m atlctl.packaging`, for `make dist` and `make executable`."""

from __future__ import annotations

import sys
from pathlib import Path

from atlctl.packaging import dists, executable
from atlctl.packaging.dists import BuildError


def main(words: list[str]) -> int:
    """Build what the first argument names into the folder of the second, and print the result."""
    if len(words) != 2 or words[0] not in ("dist", "executable"):
        sys.stderr.write("usage: python -m atlctl.packaging dist|executable FOLDER\n")
        return 2
    folder = Path(words[1])
    try:
        made = dists.build(folder) if words[0] == "dist" else executable.build(folder)
    except BuildError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for path in made:
        sys.stdout.write(f"{path}  {path.stat().st_size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
