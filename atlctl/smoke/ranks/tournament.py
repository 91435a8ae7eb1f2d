"""Pairs: who meets whom in which round, and what bad pairs say about the players. Pure functions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Player = TypeVar("Player", bound=Hashable)


def rounds(players: Sequence[Player], most: int | None = None) -> list[list[tuple[Player, Player]]]:
    """Every pair once, in rounds in which nobody plays twice; with `most` so many rounds, each time the same."""
    seats: list[Player | None] = [*players, *([None] if len(players) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    if most is not None and most < len(found):
        found = random.Random(7).sample(found, most)  # noqa: S311 - nothing secret
    return found


def blame(
    played: Iterable[tuple[Player, Player]], bad: Iterable[tuple[Player, Player]]
) -> tuple[list[Player], list[tuple[Player, Player]]]:
    """Players that are bad in more than half of their pairs, two at least, and the bad pairs that this leaves open."""
    games = Counter(player for pair in played for player in pair)
    left, players = list(bad), list[Player]()
    while left:
        losses = Counter(player for pair in left for player in pair)
        player, lost = losses.most_common(1)[0]
        if lost < 2 or 2 * lost <= games[player]:
            break
        players.append(player)
        left = [pair for pair in left if player not in pair]
    return players, left
