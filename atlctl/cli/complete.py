"""Shell completion without the command-line parser: answers in the time of a bare interpreter.

The scripts call `atlctl --complete SHELL INDEX WORDS...`: WORDS is the command line with the program's name, INDEX the
place of the word to complete, from 0. The answer is one line that says what else may stand there (`:words` nothing,
`:files`, `:folders`), then one candidate a line. Names from outside (jobs, workers) are shown only where they need no
quoting in any shell. Imports nothing but os and json.
"""

import json
import os

_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ALLOWED = _LETTERS | frozenset("._/:@=-")
_LIST_ALLOWED = _ALLOWED | frozenset(",")
_MOST = 2000
_SHELLS = ("bash", "zsh", "fish")


class Position:
    """Where in a command line the next word stands."""

    def __init__(self, table: dict) -> None:  # type: ignore[type-arg]
        self.node = table
        self.path = ""
        self._shared = table.get("options", {})
        #: The option whose value comes next.
        self.option: str | None = None
        #: Words given to arguments of the command so far.
        self.arguments = 0
        #: After `--`: no more options.
        self.only_words = False
        #: In the words of somebody else's command (`exec`).
        self.foreign = False
        #: A command that is not known: nothing can be said.
        self.lost = False
        self.job: str | None = None
        self.output: str | None = None

    def kind(self, option: str) -> str | None:
        """What the value of `option` is, None for flags and unknown options. Shared options count everywhere."""
        kind: str | None = self.node.get("options", {}).get(option, self._shared.get(option))
        return kind

    def take(self, option: str, value: str) -> None:
        """Note the value of an option."""
        if option in ("-j", "--job"):
            self.job = value
        elif option in ("-o", "--output"):
            self.output = value


def load_table() -> dict:  # type: ignore[type-arg]
    """The command table that was generated from the app; empty where there is none."""
    try:
        with open(os.path.join(os.path.dirname(__file__), "table.json"), encoding="utf-8") as file:
            table: dict = json.load(file)  # type: ignore[type-arg]
    except FileNotFoundError:
        return {}
    return table


def position(table: dict, words: list[str]) -> Position:  # type: ignore[type-arg]
    """The position after `words`, the words of a command line without the program's name."""
    here = Position(table)
    for word in words:
        if here.option is not None:
            here.take(here.option, word)
            here.option = None
        elif here.foreign or here.lost:
            break
        elif word == "--" and not here.only_words:
            here.only_words = True
        elif word[:1] == "-" and len(word) > 1 and not here.only_words:
            _option(here, word)
        elif "commands" in here.node:
            _enter(here, word)
        elif here.node.get("options_first"):
            here.foreign = True
        else:
            if here.arguments == 0 and here.node.get("arguments", [""])[:1] == ["JOB"]:
                here.job = word
            here.arguments += 1
    return here


def _enter(here: Position, word: str) -> None:
    name = here.node.get("aliases", {}).get(word, word)
    node = here.node["commands"].get(name)
    if node is None:
        here.lost = True
    else:
        here.node = node
        here.path = f"{here.path} {name}".strip()
        here.only_words = False


def _option(here: Position, word: str) -> None:
    if word[:2] == "--":
        name, given, value = word.partition("=")
        if here.kind(name) is None:
            return
        if given:
            here.take(name, value)
        else:
            here.option = name
        return
    for place, letter in enumerate(word[1:], start=2):
        name = f"-{letter}"
        if here.kind(name) is not None:
            if word[place:]:
                here.take(name, word[place:])
            else:
                here.option = name
            return


def answer(request: list[str]) -> None:
    """Answer `SHELL INDEX WORDS...` on stdout; nothing for a malformed request."""
    if len(request) < 3 or request[0] not in _SHELLS or not request[1].isdecimal():
        return
    words = request[2 : 3 + int(request[1])]
    if len(words) <= int(request[1]):
        words.append("")
    strip = 0
    if request[0] == "bash":
        words, strip = _glued(words)
    else_allowed, found = candidates(load_table(), words[1:-1], words[-1])
    lines = [f":{else_allowed}", *(candidate[strip:] for candidate in found[:_MOST])]
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def _glued(words: list[str]) -> tuple[list[str], int]:
    """bash breaks words at `=` and `:`. Put them together; also how much of the last word bash will not replace."""
    whole: list[str] = []
    glue = False
    strip = 0
    for word in words:
        breaks = bool(word) and not word.strip("=:")
        if whole and (glue or breaks) and len(whole) > 1:
            strip = len(whole[-1]) + (len(word) if breaks else 0)
            whole[-1] += word
        else:
            strip = 0
            whole.append(word)
        glue = breaks
    return whole, strip


def candidates(table: dict, before: list[str], current: str) -> tuple[str, list[str]]:  # type: ignore[type-arg]
    """What can stand in place of `current`: `words`, `files` or `folders`, and the candidates."""
    here = position(table, before)
    if here.lost:
        return "words", []
    if here.option is not None:
        return _values(here, here.kind(here.option) or "", current, "")
    if here.foreign:
        return "files", []
    node = here.node
    if current[:2] == "--" and "=" in current and not here.only_words:
        name, _, value = current.partition("=")
        return _values(here, here.kind(name) or "", value, f"{name}=")
    options = [] if here.only_words else sorted(node.get("options", {}))
    if current[:1] == "-" and options:
        return "words", [name for name in options if name.startswith(current)]
    if "commands" in node:
        return "words", [name for name in node["commands"] if name.startswith(current)]
    arguments = node.get("arguments", [])
    kinds = arguments[here.arguments : here.arguments + 1]
    if not kinds and arguments and arguments[-1].endswith("..."):
        kinds = arguments[-1:]
    if not kinds:
        return "words", [name for name in options if name.startswith(current)]
    return _values(here, kinds[0].removesuffix("..."), current, "")


def _values(here: Position, kind: str, current: str, prefix: str) -> tuple[str, list[str]]:
    if kind in ("PATH", "CMD", "SRC", "DST"):
        return "files", []
    if kind == "DIR":
        return "folders", []
    if kind == "JOB":
        names = _safe(jobs())
    elif kind in ("WORKER", "WORKERS"):
        names = _safe(workers(here.job))
    elif kind == "SHELL":
        names = list(_SHELLS)
    else:
        names = kind.split("|") if "|" in kind else []
    if kind == "WORKERS" and "," in current and _LIST_ALLOWED.issuperset(current):
        done, _, current = current.rpartition(",")
        prefix += f"{done},"
    return "words", [prefix + name for name in names if name.startswith(current)]


def _safe(names: list[str]) -> list[str]:
    """Names that mean nothing special to any shell, terminal or option parser."""
    return [name for name in names if name[:1] in _LETTERS and _ALLOWED.issuperset(name)]


def jobs() -> list[str]:
    """Names of the jobs in the registry of this machine."""
    folder = os.path.join(_state_dir(), "local")
    return [name for name in _names(folder) if os.path.isfile(os.path.join(folder, name, "job.json"))]


def workers(job: str | None) -> list[str]:
    """Names of the workers of `job`, else of the current job: ATLCTL_JOB, or the only one there is."""
    job = job or os.environ.get("ATLCTL_JOB")
    if not job:
        found = jobs()
        job = found[0] if len(found) == 1 else ""
    if not job or "/" in job or job in (".", ".."):
        return []
    return _names(os.path.join(_state_dir(), "local", job, "workers"))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _state_dir() -> str:
    """As `jobs.statedir.state_dir`, which costs too many imports here; a test compares the two."""
    own = os.environ.get("ATLCTL_STATE_DIR", "")
    if own:
        return own
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.environ.get("HOME", "") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "atlctl")
