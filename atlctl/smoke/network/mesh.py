"""Every worker calls every other one: a connection, small echoes, and a large one that a wrong MTU swallows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.smoke.context import Run, Stage
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network import places, reach
from atlctl.smoke.network.blame import Pair
from atlctl.smoke.network.places import Chosen, Place
from atlctl.smoke.network.reach import CHECK, Call
from atlctl.smoke.session import Answer

#: Seconds without a sign of life after which a call is given up: longer than TCP takes to say hello again. The second
#: number for calls that are made again, alone.
_PATIENCE, _AGAIN = 1.4, 2.2
#: Bytes of the large echo: several packets, whatever the MTU; less among many workers.
_LARGE, _LARGE_MANY, _MANY = 65536, 24576, 16
_MUTE = "Look at the processes of this worker: it runs, and does not answer. It may be stopped, or starved of CPU."


async def check_mesh(run: Run) -> None:
    """Adds findings for workers and links that do not pass traffic. `report.data["mesh"]` gets the round-trip times
    (`None` where there was none) and where each worker was called; equal numbers among `machines` mean one kernel."""
    with run.check(CHECK) as stage:
        mesh = _Mesh(run)
        if not await mesh.listen() or len(mesh.where) < 2:
            alone = len(run.workers) == 1
            stage.not_judged("one worker alone has nobody to call" if alone else "fewer than two workers can be called")
            return
        await mesh.call()
        mesh.judge(stage)


class _Mesh:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._workers = {worker.name: worker for worker in run.workers}
        self._names = {worker.index: worker.name for worker in run.workers}
        self._calls: dict[Pair, Call] = {}
        self._chosen = Chosen({})
        self._machines: dict[str, int] = {}
        self._again = 0
        #: Address and port of each worker that can be called.
        self.where: dict[str, tuple[str, int]] = {}

    async def listen(self) -> bool:
        """Start the servers, and choose the addresses. Workers that do not answer, or have none, are found at fault."""
        living = self._session.living()
        workers = [self._workers[name] for name in living if name in self._workers]
        told = await self._places([worker.name for worker in workers], places.targets(workers))
        unsure = places.unsure(workers, told)
        if unsure:
            first = places.choose(workers, told)
            others = [address for name, address in first.addresses.items() if name not in unsure[1:]]
            told |= await self._places(unsure, others[: places.TARGETS])
        self._chosen = places.choose(workers, told)
        for name in self._chosen.lost:
            self._run.find(
                Finding(
                    CHECK,
                    Severity.FAIL,
                    Culprit("worker", name),
                    "it has no address but loopback, while other workers are on other hosts",
                    True,
                    "Look at the interfaces of this worker: none is up that others could reach.",
                )
            )
        machines = dict.fromkeys(place.machine for place in told.values())
        self._machines = {name: list(machines).index(place.machine) for name, place in told.items()}
        self.where = {name: (address, told[name].port) for name, address in self._chosen.addresses.items()}
        return bool(self.where)

    async def _places(self, names: Iterable[str], targets: list[str]) -> dict[str, Place]:
        """Who does not answer is asked a second time."""
        found: dict[str, Place] = {}
        asked = list(names)
        answers: dict[str, Answer] = {}
        for timeout in (6.0 + 0.1 * len(asked), 2.0 + 0.05 * len(asked)):
            left = [name for name in asked if name not in found]
            if not left:
                break
            commands = {name: {"cmd": "listen", "targets": targets} for name in left}
            answers |= await self._session.ask(commands, timeout, patience=1.0)
            for name in left:
                fields = answers[name].fields
                place = places.parse(fields) if fields is not None else None
                if place is not None:
                    found[name] = place
        for name in asked:
            if name not in found:
                self._mute(name, answers[name])
        return found

    def _mute(self, name: str, answer: Answer) -> None:
        said = answer.problem or "its answer is not understood"
        self._run.find(
            Finding(
                CHECK, Severity.FAIL, Culprit("worker", name), f"its agent gave no usable answer: {said}", True, _MUTE
            )
        )

    async def call(self) -> None:
        """All call all; what failed is called again."""
        pairs = [(one, other) for one in self.where for other in self.where if one != other]
        mute = await self._round(pairs, _PATIENCE)
        failed = [pair for pair in pairs if pair not in self._calls or self._calls[pair].kind]
        if not failed:
            return
        first = dict(self._calls)
        still = await self._round(failed, _AGAIN)
        for name in mute.keys() & still.keys():
            # Calls to it say nothing of the network.
            self._mute(name, still[name])
            del self.where[name]
        for name in still.keys() - mute.keys():  # it did not live to say it twice
            self._calls = {pair: call for pair, call in self._calls.items() if pair[0] != name or not call.kind}
        self._calls = {pair: call for pair, call in self._calls.items() if self.where.keys() >= set(pair)}
        self._again = sum(
            bool(call.kind) and not self._calls[pair].kind for pair, call in first.items() if pair in self._calls
        )

    async def _round(self, pairs: Iterable[Pair], patience: float) -> dict[str, Answer]:
        """Make these calls at once. The answers of agents that told nothing."""
        many = len(self.where) > _MANY
        peers: dict[str, dict[str, Any]] = {}
        for one, other in pairs:
            peers.setdefault(one, {})[str(self._workers[other].index)] = self.where[other]
        cap = 2 * patience + 0.05 * len(self.where)
        commands = {
            name: {
                "cmd": "mesh",
                "peers": asked,
                "patience": patience,
                "cap": cap,
                "small": 2 if many else 4,
                "large": _LARGE_MANY if many else _LARGE,
            }
            for name, asked in peers.items()
        }
        silent = {}
        answers = await self._session.ask(commands, 2 * cap + 4.0, patience=patience + 0.8)
        for name, answer in answers.items():
            asked = map(int, peers[name])
            calls = reach.parse(answer.fields, name, self._names, asked) if answer.fields is not None else None
            if calls is None:
                silent[name] = answer
            else:
                self._calls |= calls
        return silent

    def judge(self, stage: Stage) -> None:
        names = list(self.where)
        self._run.find(*reach.judge(names, self._calls))
        times = [call.rtt_ms for call in self._calls.values() if call.rtt_ms is not None and not call.kind]
        passed = sum(not call.kind for call in self._calls.values())
        parts = [f"{passed} of {len(self._calls)} connections"]
        if times:
            parts.append(f"round trip {sorted(times)[len(times) // 2]:.2f} ms")
        if self._again:
            parts.append(f"{self._again} passed only the second time")
        if self._chosen.loopback:
            parts.append("all workers share one machine's loopback: no network was tested")
        stage.note = ", ".join(parts)
        self._run.report.data[CHECK] = {
            "workers": names,
            "loopback": self._chosen.loopback,
            "addresses": {name: {"address": address, "port": port} for name, (address, port) in self.where.items()},
            "matrix_rtt_ms": _matrix(names, {pair: call.rtt_ms for pair, call in self._calls.items() if not call.kind}),
            "machines": [self._machines[name] for name in names],
            "failed": [list(pair) for pair, call in self._calls.items() if call.kind],
        }


def _matrix(names: list[str], values: Mapping[Pair, float | None]) -> list[list[float | None]]:
    return [[values.get((one, other)) for other in names] for one in names]
