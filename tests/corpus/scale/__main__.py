"""`python -m tests.corpus.scale OUT [CASE...]`: writes synthetic cases of many ranks. See docs/en/corpus.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.corpus.scale.opening import Size
from tests.corpus.scale.rendering import CASES, render


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus.scale", description="write synthetic cases of many ranks"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the cases")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default all: {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same number gives the same bytes")
    parser.add_argument("--workers", type=_number, default=64, metavar="N", help="at least 2")
    parser.add_argument("--processes", type=_number, default=8, metavar="N", help="of each worker, at least 2")
    options = parser.parse_args(words)
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}")
    begin = time.monotonic()
    chosen = options.cases or list(CASES)
    for name in chosen:
        before = time.monotonic()
        document = render(name, options.out, options.seed, Size(options.workers, options.processes))
        print(
            f"{name}: {document['truth']['kind']}, torch {document['torch']}, {time.monotonic() - before:.1f} s",
            flush=True,
        )
    print(f"{len(chosen)} cases in {time.monotonic() - begin:.0f} s")
    return 0


def _number(word: str) -> int:
    number = int(word)
    if not 2 <= number <= 4096:
        raise argparse.ArgumentTypeError("not a number from 2 to 4096")
    return number


if __name__ == "__main__":
    sys.exit(main())
