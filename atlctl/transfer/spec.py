"""What SRC and DST of a copy mean: which side is a worker's, and where things land."""

from __future__ import annotations

import os
from dataclasses import dataclass

from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError


@dataclass(frozen=True, slots=True)
class Remote:
    """A path on workers. `worker`: what was written before the colon, empty for the selected workers.

    `path` begins with `/` or `./`, so that no program takes it for an option. `slash`: it was written with a slash
    at its end, and means a folder.
    """

    worker: str
    path: str
    slash: bool

    @property
    def name(self) -> str:
        """What the last part of the path is called; empty where it has no name of its own (`/`, `.`, `x/..`)."""
        return own_name(self.path)


@dataclass(frozen=True, slots=True)
class CopySpec:
    """Exactly one side is remote. `upload`: from this machine to workers."""

    remote: Remote
    local: str
    upload: bool


def parse(source: str, target: str) -> CopySpec:
    """The two arguments of a copy. `WORKER:PATH` and `:PATH` are remote; a colon behind a slash is part of a name.

    Raises UsageError where not exactly one side is remote, or a path is empty.
    """
    sides = [_remote(source), _remote(target)]
    for text in (source, target):
        if not text:
            raise UsageError(Message("a path is empty"), "atlctl cp worker-0:/logs ./logs")
    if None not in sides:
        raise UsageError(
            Message("both sides are on workers, but one side of a copy must be local"),
            Message("in two steps, as: atlctl cp worker-0:/file ./file && atlctl cp --all ./file :/file"),
        )
    there, back = sides
    if there is None and back is not None:
        return CopySpec(back, source, upload=True)
    if there is not None:
        return CopySpec(there, target, upload=False)
    raise UsageError(
        Message("neither side is on a worker"),
        Message("write WORKER:PATH, or :PATH for the selected workers, as SRC or as DST"),
    )


def own_name(path: str) -> str:
    """The last part of a path, empty for `/`, `.` and `..`: then what is in it is meant, not the folder itself."""
    name = os.path.basename(path.rstrip("/"))
    return "" if name in (".", "..") else name


def _remote(text: str) -> Remote | None:
    worker, colon, path = text.partition(":")
    if not colon or "/" in worker:
        return None
    if not path:
        raise UsageError(
            Message("no path follows '{text}'", text=text),
            Message("the folder it was started in is '{text}.'; a local file is './{text}'", text=text),
        )
    whole = path.rstrip("/") or "/"
    return Remote(worker, whole if whole.startswith("/") else f"./{whole}", path.endswith("/"))
