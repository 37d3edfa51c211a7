"""Which fault happens when. Every seed draws its own mixture (some kinds not at all), so that rare
combinations get seeds of their own.

Owns: the choice. Must not: carry faults out. Invariant: no fault starts after `stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.network import Network
from tests.simulation.scheduler import Scheduler

Action = Callable[[], bool]
"""Injects one fault and counts it; false when there was nothing to do."""

MEAN_PAUSES_MS = (300.0, 700.0, 1_500.0, 4_000.0)
KIND_ENABLED_RATE = 0.6
WEIGHTS = (1, 1, 2, 5)
FAVOURED_RATE = 0.85
FAVOURED_WEIGHTS = (2, 5, 10)
"""The weights of kinds that come only to some clusters, and are mostly refused."""
BLOCK_DURATIONS_MS = (200.0, 1_000.0, 3_000.0, 9_000.0)


class Nemesis:
    """Injects one of its actions every now and then."""

    def __init__(
        self,
        scheduler: Scheduler,
        actions: Mapping[str, Action],
        *,
        favoured: tuple[str, ...] = (),
    ) -> None:
        random = scheduler.random
        self._scheduler = scheduler
        self._mean_pause_ms = random.choice(MEAN_PAUSES_MS)
        self._actions: list[Action] = []
        for kind, action in actions.items():
            is_favoured = kind in favoured
            if random.random() < (FAVOURED_RATE if is_favoured else KIND_ENABLED_RATE):
                self._actions += [action] * random.choice(
                    FAVOURED_WEIGHTS if is_favoured else WEIGHTS
                )
        self._stopped = not self._actions

    def start(self, delay_ms: float) -> None:
        """The first fault comes after `delay_ms` at the earliest."""
        self._scheduler.after(delay_ms, self._strike)

    def stop(self) -> None:
        """No faults from here on."""
        self._stopped = True

    def _strike(self) -> None:
        if self._stopped:
            return
        random = self._scheduler.random
        random.choice(self._actions)()
        self._scheduler.after(random.expovariate(1 / self._mean_pause_ms), self._strike)


class NetworkFaults:
    """The faults of a network, whatever runs on it."""

    def __init__(
        self, network: Network, nodes: list[int], leader: Callable[[], int | None]
    ) -> None:
        self._network = network
        self._scheduler = network.scheduler
        self._nodes = nodes
        self._leader = leader

    def actions(self) -> dict[str, Action]:
        """The actions by name."""
        return {
            "reset": self.reset,
            "partition": self.partition,
            "isolate": self.isolate,
            "one-way": self.one_way,
            "one-way-node": self.one_way_node,
        }

    def pick(self) -> int:
        """A node; often the leader, because that is where it hurts."""
        random = self._scheduler.random
        leader = self._leader()
        if leader is not None and random.random() < 0.5:
            return leader
        return random.choice(self._nodes)

    def _duration_ms(self) -> float:
        random = self._scheduler.random
        return random.choice(BLOCK_DURATIONS_MS) * (0.5 + random.random())

    def reset(self) -> bool:
        """The connections of two nodes break."""
        if len(self._nodes) < 2:
            return False
        one, other = self._scheduler.random.sample(self._nodes, 2)
        self._scheduler.fault("reset", f"{one}-{other}")
        self._network.reset(one, other)
        return True

    def _cut(self, side: list[int], duration_ms: float) -> None:
        with_reset = self._scheduler.random.random() < 0.5
        for one in side:
            for other in self._nodes:
                if other not in side:
                    self._network.block(one, other, duration_ms)
                    self._network.block(other, one, duration_ms)
                    if with_reset:
                        self._network.reset(one, other)

    def partition(self) -> bool:
        """Two groups that do not hear each other."""
        if len(self._nodes) < 2:
            return False
        random = self._scheduler.random
        side = random.sample(self._nodes, random.randint(1, len(self._nodes) - 1))
        duration_ms = self._duration_ms()
        self._scheduler.fault("partition", f"{sorted(side)} {duration_ms:.0f} ms")
        self._cut(side, duration_ms)
        return True

    def isolate(self) -> bool:
        """One node alone."""
        if len(self._nodes) < 2:
            return False
        node, duration_ms = self.pick(), self._duration_ms()
        self._scheduler.fault("isolate", f"{node} {duration_ms:.0f} ms")
        self._cut([node], duration_ms)
        return True

    def one_way(self) -> bool:
        """One node does not hear another, which hears it."""
        if len(self._nodes) < 2:
            return False
        target = self.pick()
        source = self._scheduler.random.choice([node for node in self._nodes if node != target])
        if self._scheduler.random.random() < 0.5:
            source, target = target, source
        duration_ms = self._duration_ms()
        self._scheduler.fault("one-way", f"{source}->{target} {duration_ms:.0f} ms")
        self._network.block(source, target, duration_ms)
        return True

    def one_way_node(self) -> bool:
        """A node that hears all others and is heard by none, or the other way round."""
        if len(self._nodes) < 2:
            return False
        node, duration_ms = self.pick(), self._duration_ms()
        heard = self._scheduler.random.random() < 0.5
        self._scheduler.fault("one-way-node", f"{node} {heard=} {duration_ms:.0f} ms")
        for other in self._nodes:
            if other != node:
                pair = (node, other) if heard else (other, node)
                self._network.block(*pair, duration_ms)
        return True
