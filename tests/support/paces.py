"""Made-up step times of trainings, healthy and slow, and the lines that frameworks print of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

START = 1_700_000_000.0


@dataclass
class Made:
    """Steps of a training. `steps`: seconds of each; `pauses`: seconds after a step, by its index; `epoch`: steps of an
    epoch, if its number is printed; `every`: a line for so many steps; `restarts`: index -> its step's number."""

    steps: list[float]
    pauses: dict[int, float] = field(default_factory=dict)
    epoch: int | None = None
    every: int = 1
    restarts: dict[int, int] = field(default_factory=dict)


Factor = Callable[[int], float]


def noisy(rng: random.Random, count: int, seconds: float = 1.0, share: float = 0.05) -> list[float]:
    return [seconds * max(0.2, rng.gauss(1, share)) for _ in range(count)]


def _scaled(steps: list[float], factor: Factor) -> list[float]:
    return [value * factor(index) for index, value in enumerate(steps)]


def _each(count: int, period: int, seconds: float) -> dict[int, float]:
    return dict.fromkeys(range(period - 1, count, period), seconds)


def _bursts(rng: random.Random, count: int, period: int, length: int, factor: float) -> list[float]:
    return _scaled(noisy(rng, count), lambda at: factor if at >= period and at % period < length else 1)


def _outliers(rng: random.Random, share: float, low: float, high: float) -> Made:
    return Made(_scaled(noisy(rng, 3000), lambda _: rng.uniform(low, high) if rng.random() < share else 1))


def _moved(rng: random.Random) -> Made:
    """Restarts on machines of other speeds."""
    steps = noisy(rng, 200)
    for speed in (2.5, 1.2, 3.0):
        steps += [20.0, *noisy(rng, 200, speed)]
    return Made(steps, {199: 300.0, 400: 300.0, 601: 300.0}, restarts={200: 101, 401: 201, 602: 301})


#: Healthy trainings by name.
HEALTHY: dict[str, Callable[[random.Random], Made]] = {
    "even": lambda rng: Made(noisy(rng, 1000)),
    "fast": lambda rng: Made(noisy(rng, 3000, 0.1)),
    "very fast": lambda rng: Made(noisy(rng, 5000, 0.004)),
    "slow steps": lambda rng: Made(noisy(rng, 300, 45.0)),
    "noise of 10 %": lambda rng: Made(noisy(rng, 2000, 1, 0.1)),
    "noise of 20 %": lambda rng: Made(noisy(rng, 2000, 1, 0.2)),
    "noise of 35 %": lambda rng: Made(noisy(rng, 2000, 1, 0.35)),
    "lengths vary": lambda rng: Made([math.exp(rng.gauss(0, 0.4)) for _ in range(2000)]),
    "lengths are sorted": lambda rng: Made(_scaled(noisy(rng, 1000), lambda at: 0.5 + 2 * (49 - at % 50) / 49)),
    "checkpoint each 100": lambda rng: Made(noisy(rng, 1000), _each(1000, 100, 30.0)),
    "checkpoint each 7": lambda rng: Made(noisy(rng, 1000), _each(1000, 7, 5.0)),
    "checkpoint each 4": lambda rng: Made(noisy(rng, 1000), _each(1000, 4, 3.0)),
    "checkpoint of minutes": lambda rng: Made(noisy(rng, 3000), _each(3000, 1000, 400.0)),
    "checkpoints at any time": lambda rng: Made(noisy(rng, 1000), {rng.randrange(1000): 20.0 for _ in range(12)}),
    "asynchronous checkpoints": lambda rng: Made(_bursts(rng, 1200, 200, 12, 1.35)),
    "evaluation each 50": lambda rng: Made(noisy(rng, 1000), _each(1000, 50, 90.0)),
    "evaluation and checkpoints": lambda rng: Made(noisy(rng, 2000), _each(2000, 100, 60.0) | _each(2000, 250, 20.0)),
    "evaluation each epoch": lambda rng: Made(noisy(rng, 1000), _each(1000, 125, 40.0), epoch=125),
    "loader starts each epoch": lambda rng: Made(_bursts(rng, 1000, 100, 6, 2.5), epoch=100),
    "short epochs": lambda rng: Made(noisy(rng, 600), _each(600, 8, 6.0), epoch=8),
    "growth to the double": lambda rng: Made(_scaled(noisy(rng, 800), lambda at: 1 + at / 800)),
    "growth to the quadruple": lambda rng: Made(_scaled(noisy(rng, 1500), lambda at: 1 + at / 500)),
    "gets faster": lambda rng: Made(_scaled(noisy(rng, 800), lambda at: 2 - at / 800)),
    "warm-up of one step": lambda rng: Made([60.0, *noisy(rng, 500)]),
    "warm-up of 20 steps": lambda rng: Made([1 + 9 * 0.8**index for index in range(20)] + noisy(rng, 500)),
    "compiles again": lambda rng: Made(_scaled(noisy(rng, 500), lambda at: 25 if at in (0, 1, 60, 61, 300) else 1)),
    "first batches are there": lambda rng: Made(_scaled(noisy(rng, 500), lambda at: 0.5 if at < 16 else 1)),
    "restart": lambda rng: Made([*noisy(rng, 300), 30.0, *noisy(rng, 300)], {299: 200.0}, restarts={300: 250}),
    "restarts on other machines": _moved,
    "2 % outliers": lambda rng: _outliers(rng, 0.02, 3, 10),
    "5 % outliers": lambda rng: _outliers(rng, 0.05, 2, 4),
    "a line each 10": lambda rng: Made(noisy(rng, 5000), every=10),
    "a line each 10, checkpoints": lambda rng: Made(noisy(rng, 5000), _each(5000, 100, 30.0), every=10),
    "a line each 100, evaluation": lambda rng: Made(noisy(rng, 20000, 0.2), _each(20000, 500, 15.0), every=100),
    "gradient accumulation": lambda rng: Made(_scaled(noisy(rng, 1500), lambda at: 1.6 if at % 8 == 7 else 1)),
    "two kinds of batches": lambda rng: Made(_scaled(noisy(rng, 2000), lambda _: rng.choice((1, 2)))),
}


def slowed(rng: random.Random, factor: float, *, at: int = 200, share: float = 0.05) -> Made:
    """Slow by `factor` from the step with index `at` on."""
    return Made(_scaled(noisy(rng, 2 * at, 1.0, share), lambda index: factor if index >= at else 1))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


#: Lines of a step by kind: from its number, the seconds of a step, those since the start and the epoch.
KINDS: dict[str, Callable[[int, float, float, int | None], str]] = {
    "stamps": lambda step, _seconds, _elapsed, epoch: f"epoch {epoch or 0} step {step} loss 2.3",
    "megatron": lambda step, seconds, _elapsed, _epoch: (
        f" iteration {step:8}/ 1000000 | elapsed time per iteration (ms): {seconds * 1000:.1f} | lm loss: 2.6E+00 |"
    ),
    "bar": lambda step, seconds, elapsed, _epoch: (
        f"  1%|          | {step}/1000000 [{_clock(elapsed)}<9:00:00, {seconds:.2f}s/it]"
    ),
}


def lines_of(made: Made, kind: str) -> Iterator[tuple[bytes, float | None]]:
    """The lines of a training and their times; a bar has no other time than its own."""
    at, number, steps, spent = START, 0, 0, 0.0
    for index, seconds in enumerate(made.steps):
        number = made.restarts.get(index, number + 1)
        at += seconds
        spent += seconds
        steps += 1
        if steps == made.every:
            epoch = index // made.epoch if made.epoch else None
            line = KINDS[kind](number, spent / steps, at - START, epoch).encode()
            yield line, None if kind == "bar" else at
            steps, spent = 0, 0.0
        at += made.pauses.get(index, 0.0)
