"""`python -m tests.corpus.make [CASE...]`: makes cases anew by running their jobs. See docs/en/corpus.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.corpus import cases, network
from tests.corpus.case import Case
from tests.corpus.running import Unfinished, execute
from tests.corpus.writing import write

DATA = Path(__file__).with_name("data")


def make(case: Case, out: Path) -> float:
    """Runs the case and writes it to `out`/NAME; seconds it took. Raises Unfinished, then nothing is written."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name).resolve()
        workers = case.workers()
        places = network.namespaces(workers, folder) if network.is_inside() else network.loopback(len(workers))
        run = execute(case, folder, places)
        write(run, out / case.name)
    return run.seconds


def main(words: Sequence[str] | None = None) -> int:
    """The program; 1 where a case did not go as planned."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.make", description="make corpus cases anew")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names from tests/corpus/cases*.py; all by default")
    parser.add_argument("--out", type=Path, default=DATA, metavar="DIR", help="folder of the cases")
    parser.add_argument("--namespaces", action="store_true", help="an address and a host name for each worker (Linux)")
    words = sys.argv[1:] if words is None else words
    options = parser.parse_args(words)
    known = {case.name: case for case in cases.CASES}
    if unknown := [name for name in options.cases if name not in known]:
        parser.error(f"no such case: {', '.join(unknown)}")
    if options.namespaces and not network.is_inside():
        return network.reenter(words)
    failed = 0
    begin = time.monotonic()
    chosen = [known[name] for name in options.cases] or list(cases.CASES)
    for case in chosen:
        try:
            print(f"{case.name}: {make(case, options.out):.1f} s", flush=True)
        except Unfinished as error:
            failed += 1
            print(f"{case.name}: not kept: {error}", file=sys.stderr, flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases in {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
