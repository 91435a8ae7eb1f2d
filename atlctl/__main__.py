"""Entry of `atlctl`. Answers --version and completion before anything heavy is imported."""

import sys


def main() -> None:
    """Run the command line of this process and exit."""
    words = sys.argv[1:]
    if words == ["--version"]:
        from atlctl import __version__

        sys.stdout.write(f"atlctl {__version__}\n")
        return
    if words[:1] == ["--complete"]:
        from atlctl.cli.complete import answer

        answer(words[1:])
        return
    from atlctl.cli.app import run

    sys.exit(run(words))


if __name__ == "__main__":
    main()
