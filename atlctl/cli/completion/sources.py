"""Where the names for one command line come from: this machine's registries, a hostfile, and the cache.

As fast as `cache`, and as careful. Nothing waits for a server: `stale` is what a refresh should look up.
"""

import json
import os
import stat

from atlctl.cli.completion import cache

#: Bytes of a file that is read while somebody waits for TAB.
_MAX_RECORD, _MAX_HOSTFILE = 4 << 20, 256 << 10
_MOST = 2000
_CLUSTER = ("context", "kubeconfig", "namespace", "selector")


class Names:
    """Names that fit a command line. `asked`: its shared options by their long names without hyphens."""

    def __init__(self, path: str = "", asked: dict[str, str] | None = None) -> None:
        self.asked = asked or {}
        self.places = self._places(path)
        #: Whose names the cache lacks, or has had for long.
        self.stale: list[cache.Scope] = []

    def _places(self, path: str) -> tuple[str, ...]:
        """Where jobs are looked for, as `target.choice` decides."""
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
        found: list[str] = []
        for place in self.places:
            if place in ("local", "ssh"):
                found += registered(place)
            else:
                found += self._cached(place)
        return cache.safe(found)

    def workers(self, job: str | None) -> list[str]:
        """Names of the workers of `job`, else of the current one: ATLCTL_JOB, those of the hostfile, or the only one
        in sight."""
        return cache.safe(self._workers(job or os.environ.get("ATLCTL_JOB", "")))

    def _workers(self, job: str) -> list[str]:
        if not job and "hostfile" in self.asked:
            return hosts(self.asked["hostfile"])
        for place in self.places:
            named = job or self._only(place)
            if not named:
                continue
            if place == "local":
                found = _listed("local", named, "workers") if _plain(named) else []
            elif place == "ssh":
                found = _recorded(named) if _plain(named) else []
            else:
                found = self._about(place, named).get("workers", [])
            if found:
                return found
        return []

    def roles(self, job: str | None) -> list[str]:
        """Roles of the workers of a job of the cluster."""
        named = job or os.environ.get("ATLCTL_JOB", "")
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
        """The job that is meant where none is named: the only one, in a cluster the only active one."""
        if place == "kubernetes":
            found = [name for name, about in self._cached(place).items() if about["active"]]
        elif place == "local" and not ("kubernetes" in self.places and self._scope("kubernetes")):
            found = registered(place)
        else:
            found = []
        return found[0] if len(found) == 1 else ""

    def _about(self, place: str, job: str) -> dict:  # type: ignore[type-arg]
        """What the cache has of a job; a cluster's may be typed with its kind, KIND/NAME."""
        found = self._cached(place)
        about: dict = found.get(job) or found.get(job.rpartition("/")[2]) or {}  # type: ignore[type-arg]
        return about

    def _cached(self, place: str) -> dict:  # type: ignore[type-arg]
        return self._of(self._scope(place))

    def _scope(self, place: str) -> cache.Scope | None:
        if place == "lists":
            return cache.lists_scope()
        if "selector" in self.asked:
            return None  # a selector is a job by itself, and nobody lists its workers
        asked = (self.asked.get(name, "") for name in ("kubeconfig", "context", "namespace"))
        return cache.cluster_scope("jobs", *asked)

    def _of(self, scope: cache.Scope | None) -> dict:  # type: ignore[type-arg]
        if scope is None:
            return {}
        entry = cache.load(scope)
        if cache.due(entry) and all(scope.key != other.key for other in self.stale):
            self.stale.append(scope)
        return cache.known(entry)


def registered(place: str) -> list[str]:
    """Names of the jobs in the registry of this machine (`local`), or of those that were started on hosts (`ssh`)."""
    folder = os.path.join(state_dir(), place)
    return [name for name in _listed(place) if os.path.isfile(os.path.join(folder, name, "job.json"))]


def _recorded(job: str) -> list[str]:
    """Workers of a job that was started on hosts from here."""
    try:
        record = json.loads(_read(os.path.join(_own("ssh", job), "job.json"), _MAX_RECORD, os.O_NOFOLLOW))
        return [worker["name"] for worker in record["workers"]]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return []


def hosts(path: str) -> list[str]:
    """Hosts of a hostfile, as `backends.ssh.hostfile` names them; without a word of what it would complain about."""
    try:
        text = _read(os.path.expanduser(path), _MAX_HOSTFILE).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    found: list[str] = []
    for line in text.removeprefix("\ufeff").splitlines():
        words = line.partition("#")[0].split()
        if words and len(found) < _MOST:
            found += _hosts_of(words[0].rpartition("@")[2])
    return found[:_MOST]


def _hosts_of(place: str) -> list[str]:
    """The hosts of one word without its user: a name or an address, perhaps with a port, or a folded range."""
    if place.startswith("[") or place.count(":") > 1:
        return [place.removeprefix("[").partition("]")[0]]
    start, bracket, rest = place.partition(":")[0].partition("[")
    if not bracket:
        return [start]
    inside, _, end = rest.partition("]")
    found: list[str] = []
    for item in inside.split(","):
        low, _, high = item.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and len(low) < 10 and len(high) < 10):
            return []
        width = len(low) if low.startswith("0") else 0
        last = min(int(high or low), int(low) + _MOST)
        found += [f"{start}{number:0{width}d}{end}" for number in range(int(low), last + 1)]
    return found


def _read(path: str, limit: int, flags: int = 0) -> bytes:
    """A regular file of at most `limit` bytes, without waiting. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise ValueError(path)
        return os.read(fd, limit)
    finally:
        os.close(fd)


def _plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return "/" not in name and name not in (".", "..")


def _own(*names: str) -> str:
    """The folder `names` of the state folder. Raises ValueError, as `jobs.statedir.check_private` does NotAllowed, if
    it or one above it is not the user's alone; OSError if there is none."""
    path = state_dir()
    places = [path, *(path := os.path.join(path, name) for name in names)]
    if not all(cache.private(os.lstat(place), stat.S_ISDIR) for place in places):
        raise ValueError(path)
    return path


def _listed(*names: str) -> list[str]:
    try:
        return sorted(os.listdir(_own(*names)))
    except (OSError, ValueError):
        return []


def state_dir() -> str:
    """As `jobs.statedir.state_dir`, which costs too many imports here; a test compares the two."""
    own = os.environ.get("ATLCTL_STATE_DIR", "")
    if own:
        return own
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.environ.get("HOME", "") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "atlctl")
