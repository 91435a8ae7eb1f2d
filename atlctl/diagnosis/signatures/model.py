"""What a signature and a category are: plain, immutable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a line with this text says about its cause."""

    #: Names a cause of its own.
    ROOT = "root"
    #: Printed by a victim of somebody else's failure.
    CASCADE = "cascade"
    #: Either of the two; other evidence decides.
    AMBIGUOUS = "ambiguous"
    #: Facts (ranks, counters, addresses), no cause.
    CONTEXT = "context"
    #: Looks bad and means nothing.
    NOISE = "noise"


class Scope(StrEnum):
    """Whose fault it is: one process's, or that of a whole worker (its machine, container, image or script)."""

    RANK = "rank"
    WORKER = "worker"


class Where(StrEnum):
    """Where in a line the pattern may begin."""

    ANYWHERE = "anywhere"
    #: Where the name of an exception begins its line: at the start or after prefixes (`[rank3]: `, a time, `host: `),
    #: with or without its module. Not on a line that a logger wrote at DEBUG, INFO or WARNING.
    EXCEPTION = "exception"
    #: Anywhere, but not on a logger's line below ERROR, nor on one that says that the program goes on.
    UNHANDLED = "unhandled"


@dataclass(frozen=True, slots=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str


@dataclass(frozen=True, slots=True)
class Category:
    """One kind of failure. With `hardware` the next step is an address: the node and GPU to take out of service."""

    id: str
    title: Text
    meaning: Text
    advice: Text
    hardware: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One text in logs. `pattern` is searched in one decoded, cleaned line.

    Every line that it matches contains at least one of `literals`. Named groups that readers may rely on:
    `peer` and `port` (the other end), `ranks` (a list of global ranks who are to blame), `rank`, `local_rank`,
    `pid`, `code` and `signal` (how a process ended), `pci`, `uuid`, `xid`. A pattern can have a name only once:
    `rank2` is told as `rank`. `death`: a launcher, shell or kernel reports that a process ended in failure.
    """

    id: str
    category: str
    role: Role
    pattern: str
    literals: tuple[str, ...]
    meaning: Text
    advice: Text
    scope: Scope = Scope.RANK
    hardware: bool = False
    where: Where = Where.ANYWHERE
    death: bool = False


@dataclass(frozen=True, slots=True)
class Signatures:
    """What the package brings: signatures in falling priority, categories by id."""

    signatures: tuple[Signature, ...]
    categories: Mapping[str, Category]
