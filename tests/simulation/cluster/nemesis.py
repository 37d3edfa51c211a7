"""Who makes things go wrong in the cluster's simulation: what `base_nemesis` does, and brokers.

Owns: what belongs together, and what brokers suffer. Must not: look at what the cluster promises.
Invariant: every fault it begins ends before the run's last phase, and is counted.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from tests.simulation.cluster.base_nemesis import Act, BaseNemesis
from tests.simulation.cluster.brokers import SimulatedBroker
from tests.simulation.cluster.disk_troubles import DiskTroubles
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.cluster.world import World

SCENARIOS = (
    ("storage_outage", "kill_controller", "crash_on_file"),
    ("storage_outage", "partition", "one_way", "kill_broker"),
    ("stop_controller", "partition", "resign", "stall_disk"),
    ("one_way", "partition", "reset", "slow_network", "stop_controller"),
    ("crash_on_file", "crash_in_operation", "fail_disk", "controller_leaves"),
    ("kill_broker", "broker_leaves", "stop_broker", "kill_controller"),
    ("replace_voter", "kill_controller", "partition", "resign"),
    ("jump_clock", "kill_controller", "stop_controller", "kill_broker"),
)
"""What belongs together: half of the seeds keep to one of these."""

CONTROLLERS_DISKS = 0.5
"""So many seeds have troubles with them."""

WIPED = 0.2
"""How many of the brokers that start again have lost their metadata."""


class Nemesis(BaseNemesis):
    """See the module."""

    scenarios = SCENARIOS
    world: World

    def __init__(self, world: World, random: Random, faults: Collection[str] = ()) -> None:
        super().__init__(world, random, faults)
        self._wipes = Random(f"wiped brokers {world.seed}")

    def acts(self) -> list[Act]:
        return [
            (3, self._kill_controller),
            (3, self._crash_in_operation),
            (3, self._crash_on_file),
            (0.5, self._kill_all_controllers),
            (1.5, self._controller_leaves),
            (1, self._resign),
            (1, self._replace_voter),
            (2, self._stop_controller),
            (3, self._partition),
            (2, self._one_way),
            (2, self._reset),
            (1.5, self._stall_disk),
            (2, self._storage_outage),
            (1, self._fail_disk),
            (1.5, self._slow_network),
            (1, self._jump_clock),
            (2, self._kill_broker),
            (2, self._broker_leaves),
            (1, self._stop_broker),
        ]

    def make_troubles(self) -> list[Troubles]:
        return [*super().make_troubles(), DiskTroubles(self.world, CONTROLLERS_DISKS)]

    def hosts(self) -> list[str]:
        world = self.world
        nodes = [node.host for node in world.controllers]
        nodes += [broker.host for broker in world.brokers]
        return nodes + [client.host for client in world.clients]

    def _replace_voter(self) -> None:
        operator = self.world.operator
        if not self.world.has_static_voters and not operator.is_busy:
            self.world.fault_injected("voter replaced")
            operator.replace_one()

    # -- brokers ---------------------------------------------------------------------------------

    def _some_broker(self) -> SimulatedBroker | None:
        alive = [broker for broker in self.world.brokers if broker.is_alive]
        return self.random.choice(alive) if alive else None

    def _kill_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker kill", broker.host)
            broker.kill()
            self._restart_later(broker)

    def _restart_later(self, broker: SimulatedBroker) -> None:
        wait_ms = self.random.choice((20.0, 2_000.0, 15_000.0)) * self.random.random()
        self._later(wait_ms, self._start_broker, broker)

    def _start_broker(self, broker: SimulatedBroker) -> None:
        if not broker.is_alive and not self.is_over:
            if broker.is_observing and self._wipes.random() < WIPED:
                self.world.fault_injected("broker's metadata wiped", broker.host)
                broker.wipe()
            broker.start()

    def _broker_leaves(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker leaves", broker.host)
            broker.leave()
            self._later(self.random.uniform(5_000, 20_000), self._start_broker, broker)

    def _stop_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None and broker.process is not None:
            duration_ms = self.random.uniform(500, 12_000)
            self.world.fault_injected("broker stopped", f"{broker.host} {duration_ms:.0f}")
            broker.process.stop_for(duration_ms)

    # -- the end ---------------------------------------------------------------------------------

    def repair_others(self) -> None:
        """Brokers whole again, but for one that may stay away for good."""
        world = self.world
        absent = self.random.choice(world.brokers) if self.random.random() < 0.7 else None
        for broker in world.brokers:
            if broker.process is not None:
                broker.process.go_on()
            if broker is absent:
                world.note(f"{broker.host} stays away")
                broker.kill()
            elif not broker.is_alive or broker.is_leaving:
                broker.kill()
                broker.start()


__all__ = ["Nemesis"]
