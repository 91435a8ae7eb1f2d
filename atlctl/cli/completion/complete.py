"""Shell completion without the command-line parser: answers in the time of a bare interpreter.

The scripts call `atlctl --complete SHELL INDEX WORDS...`: WORDS is the command line with the program's name, INDEX the
place of the word to complete, from 0. The answer is one line that says what else may stand there (`:words` nothing,
`:files`, `:folders`, `:commands`), then one candidate a line; behind one that ends in a colon the word goes on. Names
from outside (jobs, workers, contexts) are shown only where they need no quoting in any shell. Imports nothing but os,
sys and json. What it has no names of, or old ones, is looked up in the background once the answer is out.
"""

import json
import os
import sys

from atlctl.cli.completion import cache
from atlctl.cli.completion.sources import Names

_LIST_ALLOWED = cache.ALLOWED | frozenset(",")
_MOST = 2000
_SHELLS = ("bash", "zsh", "fish")
#: Options that decide where names are looked for, by how they may be written.
_ASKED = {
    **{f"--{name}": name for name in ("backend", "namespace", "context", "kubeconfig", "selector", "hostfile")},
    "-n": "namespace",
    "-l": "selector",
}
_ELSE = {"PATH": "files", "DIR": "folders", "CMD": "commands", "SRC": "files", "DST": "files"}


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
        #: Options that decide where names are looked for, by their long names without hyphens.
        self.asked: dict[str, str] = {}

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
        elif option in _ASKED:
            self.asked[_ASKED[option]] = value


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
    elif request[0] == "fish":
        words[-1] = _unquoted(words[-1])  # the only one that fish hands over as it was typed
    here = position(load_table(), words[1:-1])
    names = Names(here.path, here.asked)
    else_allowed, found = candidates(here, words[-1], names)
    lines = [f":{else_allowed}", *(candidate[strip:] for candidate in found[:_MOST])]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    cache.refresh(names.stale)


def _glued(words: list[str]) -> tuple[list[str], int]:
    """bash breaks words at `=`, `:` and `@`, and leaves quotes in them. Put them together, without the quotes; also how
    much of the last word bash will not replace."""
    whole: list[str] = []
    glue = False
    strip = 0
    for word in words:
        breaks = bool(word) and not word.strip("=:@")
        bare = _unquoted(word)
        if whole and (glue or breaks) and len(whole) > 1:
            strip = len(whole[-1]) + (len(bare) if breaks else 0)
            whole[-1] += bare
        else:
            strip = 0
            whole.append(bare)
        glue = breaks
    return whole, strip


def _unquoted(word: str) -> str:
    """The word without one level of quotes, as far as it is typed. Nothing in it is expanded."""
    out, quote = "", ""
    letters = iter(word)
    for letter in letters:
        if letter == "\\" and quote != "'":
            escaped = next(letters, "")
            out += f"\\{escaped}" if quote and escaped not in '"\\$`' else escaped
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        else:
            out += letter
    return out


def candidates(here: Position, current: str, names: Names) -> tuple[str, list[str]]:
    """What can stand in place of `current`: `words`, `files`, `folders` or `commands`, and the candidates."""
    if here.lost:
        return "words", []
    if here.option is not None:
        return _values(here, names, here.kind(here.option) or "", current)
    if here.foreign:
        return "files", []
    node = here.node
    if current[:2] == "--" and "=" in current and not here.only_words:
        name, _, value = current.partition("=")
        return _values(here, names, here.kind(name) or "", value, f"{name}=")
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
    return _values(here, names, kinds[0].removesuffix("..."), current)


def _values(here: Position, names: Names, kind: str, current: str, prefix: str = "") -> tuple[str, list[str]]:
    found = _choices(here, names, kind)
    if kind in ("SRC", "DST"):
        # A colon behind a slash is part of a file's name, and what stands behind another one is on a worker.
        found = [] if set("/:") & set(current) else [f"{name}:" for name in found]
    if kind in ("WORKERS", "ROLE") and "," in current and _LIST_ALLOWED.issuperset(current):
        done, _, current = current.rpartition(",")
        prefix += f"{done},"
        found = [name for name in found if name not in done.split(",")]
    return _ELSE.get(kind, "words"), [prefix + name for name in found if name.startswith(current)]


def _choices(here: Position, names: Names, kind: str) -> list[str]:
    """All values of a kind."""
    if kind == "JOB":
        return names.jobs()
    if kind in ("WORKER", "WORKERS", "SRC", "DST"):
        return names.workers(here.job)
    if kind == "ROLE":
        return names.roles(here.job)
    if kind == "CONTEXT":
        return names.contexts()
    if kind == "NAMESPACE":
        return names.namespaces()
    if kind == "SHELL":
        return list(_SHELLS)
    return kind.split("|") if "|" in kind else []
