"""Entry of `atlctl`. Answers --version and completion before anything heavy is imported."""

import signal
import sys


def main() -> None:
    """Run the command line of this process and exit."""
    # Until the command has its own handler, Ctrl-C ends the process as any other: no traceback out of an import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = sys.argv[1:]
    if words == ["--version"]:
        from atlctl import __version__

        sys.stdout.write(f"atlctl {__version__}\n")
        return
    if words[:1] == ["--complete"]:
        from atlctl.cli.completion.complete import answer

        answer(words[1:])
        return
    from atlctl.cli.app import run

    sys.exit(run(words))


if __name__ == "__main__":
    main()
