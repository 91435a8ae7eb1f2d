"""Shell completion without the command-line parser: answers in the time of a bare interpreter.

The scripts call `atlctl --complete SHELL INDEX WORDS...`: WORDS is the command line with the program's name, INDEX the
place of the word to complete, from 0. The answer is one line with the other kinds of words allowed there (`:words`
none, `:files`, `:folders`, `:commands`), then one candidate a line; a candidate that ends in a colon is a prefix. For
`SHELL+` a description in the reader's language may follow a candidate, behind a tab. Names from outside (jobs, workers,
contexts) are shown only if they need no quoting in any shell. No slow imports. Missing or old names are looked up in
the background after the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from atlctl.cli.completion import cache
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import check_private, job_names, read_bytes, state_dir

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
#: Bytes of a file that is read for completion.
_MAX_RECORD, _MAX_HOSTFILE = 4 << 20, 256 << 10
#: Errors in such files are reported by the commands that use them.
_NOT_READ = (AtlctlError, OSError, ValueError, RecursionError, KeyError, TypeError)
_CLUSTER = ("context", "kubeconfig", "namespace", "selector")


class Position:
    """The context of the next word in a command line."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.node = self.root = table
        self.path = ""
        self._shared = table.get("options", {})
        #: The option whose value comes next.
        self.option: str | None = None
        #: Words given to arguments of the command so far.
        self.arguments = 0
        #: After `--`: no more options.
        self.only_words = False
        #: Within the command that `exec` runs.
        self.foreign = False
        #: A command that is not known: nothing can be said.
        self.lost = False
        self.job: str | None = None
        self.output: str | None = None
        #: Options that decide where names are looked for, by their long names without hyphens.
        self.asked: dict[str, str] = {}

    def kind(self, option: str) -> str | None:
        """The kind of the value of `option`; None for flags and unknown options. Shared options count everywhere."""
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


def load_table() -> dict[str, Any]:
    """The command table that was generated from the app."""
    return _generated("table.json")


def _generated(name: str) -> dict[str, Any]:
    """A file that was generated from the app; empty if it is missing."""
    try:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            table: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return {}
    return table


def position(table: dict[str, Any], words: list[str]) -> Position:
    """The position after `words`, the words of a command line without the program's name."""
    here = Position(table)
    for word in words:
        if here.option is not None:
            here.take(here.option, word)
            here.option = None
        elif here.foreign:
            break
        elif word == "--" and not here.only_words:
            here.only_words = True
        elif word[:1] == "-" and len(word) > 1 and not here.only_words:
            _option(here, word)
        elif here.lost:
            continue  # its options are those that every command has
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
        here.node = here.root if name == "help" and "commands" not in node else node  # `help` takes the same words
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
    shell = request[0].removesuffix("+") if request else ""
    if len(request) < 3 or shell not in _SHELLS or not request[1].isdecimal():
        return
    words = request[2 : 3 + int(request[1])]
    if len(words) <= int(request[1]):
        words.append("")
    strip = 0
    if shell == "bash":
        words, strip = _glued(words)
    elif shell == "fish":
        words[-1] = _unquoted(words[-1])  # the only one that fish hands over as it was typed
    here = position(load_table(), words[1:-1])
    names = Names(here.path, here.asked)
    else_allowed, found = candidates(here, words[-1], names)
    found = [candidate[strip:] for candidate in found[:_MOST]]
    if request[0].endswith("+"):
        about = _texts(here, names)
        found = [f"{word}\t{about[word]}" if word in about else word for word in found]
    lines = [f":{else_allowed}", *found]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    cache.refresh(names.stale)


def _texts(here: Position, names: Names) -> dict[str, str]:
    """Descriptions of options, commands and jobs."""
    from atlctl.i18n import language

    texts = _generated(f"texts.{language()}.json")
    shared = texts.get("", {})
    own = {} if here.node is here.root else texts.get(here.path.removeprefix("help "), {})
    return {**shared, **own, **{name: shared.get(f":{place}", "") for name, place in names.offered.items()}}


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
    """The completions of `current`: `words`, `files`, `folders` or `commands`, and the candidates."""
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
        # A colon after a slash is part of a file name; the text after any other colon is a path on a worker.
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


class Names:
    """Names that fit a command line, from this machine's registries, a hostfile and the cache. Nothing waits for a
    server: `stale` is what a refresh should look up. `asked`: shared options by their long names without hyphens."""

    def __init__(self, path: str = "", asked: dict[str, str] | None = None) -> None:
        self.asked = asked or {}
        self.places = self._places(path)
        #: Jobs that were offered, and the place of each.
        self.offered: dict[str, str] = {}
        #: Whose names the cache lacks, or has had for long.
        self.stale: list[cache.Scope] = []

    def _places(self, path: str) -> tuple[str, ...]:
        """The backends that are searched for jobs, as `target.choice` decides."""
        own = {"local run": (), "local rm": ("local",), "ssh run": ("lists",), "ssh rm": ("ssh",)}
        if path in own:
            return own[path]
        if any(name in self.asked for name in _CLUSTER):
            return ("kubernetes",)
        if "hostfile" in self.asked:
            return ("ssh", "lists")
        stated = self.asked.get("backend") or os.environ.get("ATLCTL_BACKEND", "")
        if stated:
            return {"local": ("local",), "ssh": ("ssh", "lists"), "kubernetes": ("kubernetes",)}.get(stated, ())
        if os.environ.get("ATLCTL_WORKER"):
            return ("local", "ssh")
        return ("local", "ssh", "lists", "kubernetes")

    def jobs(self) -> list[str]:
        """Names of jobs."""
        for place in self.places:
            found = registered(place) if place in ("local", "ssh") else self._cached(place)
            for name in cache.safe(list(found)):
                self.offered.setdefault(name, place)
        return list(self.offered)

    def workers(self, job: str | None) -> list[str]:
        """Names of the workers of `job`, else of the current one: ATLCTL_JOB, that of `atlctl use`, those of the
        hostfile, or the only one in sight."""
        return cache.safe(self._workers(job or self._current()))

    def _current(self) -> str:
        """The job that this terminal means, empty if nothing names one. If `atlctl use` does, its place decides where
        names are looked for."""
        if stated := os.environ.get("ATLCTL_JOB", ""):
            return stated
        from atlctl.cli import current

        try:
            used = current.load()
        except _NOT_READ:
            return ""
        if used is None or not used.fits(self.asked):
            return ""
        self.asked = {**self.asked, **used.asked}
        self.places = self._places("")
        return used.name

    def _workers(self, job: str) -> list[str]:
        if not job and "hostfile" in self.asked:
            return hosts(self.asked["hostfile"])
        for place in self.places:
            named = job or self._only(place)
            if not named:
                continue
            if place == "local":
                found = _supervised(named) if _plain(named) else []
            elif place == "ssh":
                found = _recorded(named) if _plain(named) else []
            else:
                found = self._about(place, named).get("workers", [])
            if found:
                return found
        return []

    def roles(self, job: str | None) -> list[str]:
        """Roles of the workers of a job of the cluster."""
        named = job or self._current()
        if "kubernetes" not in self.places:
            return []
        return cache.safe(self._about("kubernetes", named or self._only("kubernetes")).get("roles", []))

    def contexts(self) -> list[str]:
        """Contexts of the kubeconfig."""
        return cache.safe(list(self._of(cache.contexts_scope(self.asked.get("kubeconfig", "")))))

    def namespaces(self) -> list[str]:
        """Namespaces of the cluster, where the user may list them, and those that contexts of the kubeconfig name."""
        kubeconfig, context = (self.asked.get(name, "") for name in ("kubeconfig", "context"))
        found = list(self._of(cache.cluster_scope("namespaces", kubeconfig, context)))
        for about in self._of(cache.contexts_scope(kubeconfig)).values():
            found += about["workers"]
        return cache.safe(found)

    def _only(self, place: str) -> str:
        """The default job: the only one, in a cluster the only active one."""
        if place == "kubernetes":
            found = [name for name, about in self._cached(place).items() if about["active"]]
        elif place == "local" and not ("kubernetes" in self.places and self._scope("kubernetes")):
            found = registered(place)
        else:
            found = []
        return found[0] if len(found) == 1 else ""

    def _about(self, place: str, job: str) -> dict[str, Any]:
        """The cache entry of a job; a cluster's job may be written with its kind, KIND/NAME."""
        found = self._cached(place)
        about: dict[str, Any] = found.get(job) or found.get(job.rpartition("/")[2]) or {}
        return about

    def _cached(self, place: str) -> dict[str, Any]:
        return self._of(self._scope(place))

    def _scope(self, place: str) -> cache.Scope | None:
        if place == "lists":
            return cache.lists_scope()
        if "selector" in self.asked:
            return None  # a selector is a job by itself, and its workers are not in the cache
        asked = (self.asked.get(name, "") for name in ("kubeconfig", "context", "namespace"))
        return cache.cluster_scope("jobs", *asked)

    def _of(self, scope: cache.Scope | None) -> dict[str, Any]:
        if scope is None:
            return {}
        entry = cache.load(scope)
        if cache.due(entry) and all(scope.key != other.key for other in self.stale):
            self.stale.append(scope)
        return cache.known(entry)


def registered(place: str) -> list[str]:
    """Names of the jobs in the registry of this machine (`local`), or of those that were started on hosts (`ssh`)."""
    try:
        return sorted(job_names(os.path.join(state_dir(), place)))
    except _NOT_READ:
        return []


def _kept(*names: str) -> str:
    """The folder `names` of the state folder. Raises as `check_private`."""
    path = os.path.join(state_dir(), *names)
    check_private(path, state_dir())
    return path


def _supervised(job: str) -> list[str]:
    """Workers of a job of this machine."""
    try:
        return sorted(os.listdir(_kept("local", job, "workers")))
    except _NOT_READ:
        return []


def _recorded(job: str) -> list[str]:
    """Workers of a job that was started on hosts from here."""
    try:
        record = json.loads(read_bytes(os.path.join(_kept("ssh", job), "job.json"), _MAX_RECORD))
        return [worker["name"] for worker in record["workers"]]
    except _NOT_READ:
        return []


def hosts(path: str) -> list[str]:
    """Hosts of a hostfile; a line that cannot be read costs its own."""
    from atlctl.backends.hosts.hostfile import parse

    try:
        text = read_bytes(os.path.expanduser(path), _MAX_HOSTFILE, links=True).decode("utf-8", "replace")
    except _NOT_READ:
        return []
    found: dict[str, None] = {}
    for line in text.splitlines():
        if len(found) >= _MOST:
            break
        try:
            found.update((host.name, None) for host in parse(line, path).hosts)
        except AtlctlError:
            continue
    return list(found)[:_MOST]


def _plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return "/" not in name and name not in (".", "..")
