"""Entry: one question, whose name and details stand in the words of the command."""

from __future__ import annotations

import json
import signal
from typing import Any

from .ending import remove, stop
from .logtail import log
from .reading import read
from .seeing import look
from .telling import Refused, explained, say

#: The exit code where the answer is a refusal, which stands on standard output.
REFUSED = 96


def main(words: list[str], program: dict[str, str]) -> int:
    """`words`: the question, its details as JSON. `program`: the supervisor's modules, for a start."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    wanted = json.loads(words[1])
    try:
        _answer(words[0], wanted, program)
    except Refused as refused:
        say(refused.told)
        return REFUSED
    except BrokenPipeError:
        return 1
    except OSError as error:
        say(explained(error, wanted.get("folder", "")).told)
        return REFUSED
    return 0


def _answer(question: str, wanted: dict[str, Any], program: dict[str, str]) -> None:
    if question == "start":
        from .starting import start  # only there is it sent

        start(wanted, program)
    elif question == "log":
        log(wanted)
    elif question == "read":
        read(wanted)
    else:
        say({"look": look, "stop": stop, "remove": remove}[question](wanted))
