"""Leaders that stand still, are replaced, and come back to clients but to no controller (ADR 15).

Owns: which broker, for how long, and from whom it is cut off, by dice of its own, so that seeds
without such a leader are the runs that they were. Must not: know what brokers or clients make of
it. Invariant: one broker at a time; all its ways are open again when `ended` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.world import ReplicationWorld

NAME = "come_back_alone"
DRAWN_SEEDS = 0.15
DRAW = "deposed leaders 58"
"""With this number the fixed seeds of the gate have none: they test other faults."""
STILL_MS = (300.0, 1_500.0, 3_000.0)
"""So much longer than its session: clients have found its successor, or not."""
ALONE_MS = (1_000.0, 4_000.0)
WITH_CLIENTS_MS = 6_000.0
"""Alone with clients that reach no other broker: they have to give the others up first."""
COORDINATES = 0.6
"""So often it is a coordinator, where the world has any."""


def _ways(some: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Both directions between each and each."""
    return [way for one in some for each in others for way in ((one, each), (each, one))]


class DeposedLeaders:
    """Strikes beside the nemesis, whose `faults` name what was asked for. `hosts` are all machines;
    `with_clients` says how often clients reach no other broker when it comes back.
    """

    def __init__(
        self,
        world: ReplicationWorld,
        faults: Collection[str],
        hosts: Callable[[], list[str]],
        with_clients: float,
    ) -> None:
        self.world = world
        self.with_clients = with_clients
        self._hosts = hosts
        self.random = Random(f"deposed leaders {world.seed}")
        self.pause_ms = self.random.choice((400.0, 1_500.0))
        self.is_drawn = not faults and Random(f"{DRAW} {world.seed}").random() < DRAWN_SEEDS
        self.is_asked_for = NAME in faults
        self._busy_until = 0.0

    def start(self) -> None:
        """Clients exist. Strike from time to time, in a seed that has such leaders."""
        if self.is_drawn or self.is_asked_for:
            self.world.add_credulous_clients(self.random)
        if self.is_drawn:
            self._later()

    async def ended(self) -> None:
        """Wait for the one that is under way; there will be no other."""
        self.is_drawn = False
        await self.world.loop.elapse(max(self._busy_until - self.world.loop.time(), 0.0) * 1000)

    def _later(self) -> None:
        delay_ms = self.random.expovariate(1 / self.pause_ms)
        self.world.loop.call_outside(delay_ms, self._strike)

    def _strike(self) -> None:
        if self.is_drawn:
            self.come_back_alone()
            self._later()

    def come_back_alone(self) -> None:
        """A leader stands still for longer than its session, and then hears from no controller."""
        now = self.world.loop.time()
        broker = self._some_leader() if now >= self._busy_until else None
        if broker is None or broker.process is None:
            return
        session_ms = int(self.world.controller_overrides["broker.session.timeout.ms"])
        still_ms = session_ms * self.random.uniform(1.1, 1.4) + self.random.choice(STILL_MS)
        alone_ms = self.random.choice(ALONE_MS) * self.random.uniform(0.5, 1.0)
        controllers = [node.host for node in self.world.controllers]
        others = [each.host for each in self.world.brokers if each is not broker]
        ways = _ways([broker.host], controllers)
        if self.random.random() < 0.3:
            ways += _ways([broker.host], others)
        to_clients: list[tuple[str, str]] = []
        if self.with_clients and self.random.random() < self.with_clients:
            alone_ms += WITH_CLIENTS_MS
            to_clients = _ways(self._clients(), others)
        self._busy_until = now + (still_ms + alone_ms) / 1000
        line = f"{broker.host} {still_ms:.0f} {alone_ms:.0f} {len(ways)} {len(to_clients)}"
        self.world.fault_injected("leader comes back alone", line)
        broker.process.stop_for(still_ms)
        # What the controllers send before the cut waits in its sockets when it wakes.
        cut_ms = still_ms - 1.0 if self.random.random() < 0.2 else 0.0
        self.world.loop.call_outside(cut_ms, self._cut, ways)
        self.world.loop.call_outside(still_ms - 1.0, self._cut, to_clients)
        self.world.loop.call_outside(still_ms + alone_ms, self._mend, ways + to_clients)

    def _some_leader(self) -> DataBroker | None:
        """The leader of a partition that another replica in sync can lead in its place."""
        led = [
            (name, partition.leader)
            for name, topic in sorted(self.world.ledger.image.topics.topics_by_name.items())
            for partition in topic.partitions.values()
            if partition.leader >= 0 and len(partition.isr) > 1
        ]
        coordinators = [each for each in led if each[0].startswith("__")]
        if coordinators and self.random.random() < COORDINATES:
            led = coordinators
        alive = [self.world.brokers[leader - 1] for _name, leader in led]
        alive = [broker for broker in alive if broker.is_alive]
        return self.random.choice(alive) if alive else None

    def _clients(self) -> list[str]:
        nodes = {node.host for node in self.world.controllers}
        nodes |= {broker.host for broker in self.world.brokers}
        return [host for host in self._hosts() if host not in nodes]

    def _cut(self, ways: list[tuple[str, str]]) -> None:
        if self.world.loop.time() < self._busy_until:
            for way in ways:
                self.world.fabric.block(*way)

    def _mend(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            if self.world.fabric.is_blocked(*way):
                self.world.fabric.heal(*way)
