"""Entry of `atlctl`. Answers --version and completion before anything heavy is imported."""

import os
import signal
import sys


def main() -> None:
    """Run the command line of this process and exit."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _replace_closed_streams()
    # Until the command has its own handler, Ctrl-C ends the process as any other: no traceback out of an import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = sys.argv[1:]
    try:
        if words in (["--version"], ["version"]):
            from atlctl import __version__

            sys.stdout.write(f"atlctl {__version__}\n")
            sys.stdout.flush()
            return
        if words[:1] == ["--complete"]:
            from atlctl.cli.completion.complete import answer

            answer(words[1:])
            return
    except OSError as failure:
        error = failure
        from atlctl.cli.runtime import guard, unwritten

        def fail() -> int:
            raise unwritten(error)

        sys.exit(guard(words, fail))
    from atlctl.cli.app import run

    sys.exit(run(words))


def _replace_closed_streams() -> None:
    """Give standard streams that were closed at the start a descriptor on which reading or writing fails.

    A file or socket that is opened later would get their number, and with it what is printed; and what cannot be
    printed must not pass for printed.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            null = os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)
            os.dup2(null, number)
            if null != number:
                os.close(null)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process runs


if __name__ == "__main__":
    main()
