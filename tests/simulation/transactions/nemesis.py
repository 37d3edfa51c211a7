"""Who makes things go wrong for coordinators: the replication's nemesis, and their leaders' deaths.

Owns: what belongs together here. Must not: look at what was promised. Invariant: as its base's.
"""

from __future__ import annotations

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.simulation.cluster.base_nemesis import Act
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.nemesis import ReplicationNemesis
from tests.simulation.transactions.world import TransactionWorld

SCENARIOS = (
    ("late_requests",),
    ("late_requests", "kill_coordinator", "coordinator_leaves"),
    ("late_requests", "stop_coordinator", "kill_broker"),
    ("kill_coordinator", "coordinator_leaves"),
    ("kill_coordinator", "stop_coordinator", "reset"),
    ("kill_broker", "kill_coordinator", "crash_broker_in_operation"),
    ("cut_replication", "stop_coordinator", "isolate_broker"),
    ("slow_network", "reset", "kill_coordinator"),
    ("partition", "stop_broker", "coordinator_leaves"),
    ("lose_power", "broker_leaves", "kill_controller"),
    ("stall_broker_disk", "kill_broker", "stop_coordinator"),
    ("fill_disk", "fail_broker_disk", "kill_coordinator"),
    ("kill_controller", "stop_controller", "resign", "kill_coordinator"),
    ("fail_directory", "kill_coordinator", "coordinator_leaves"),
    ("remove_directory", "exchange_directory", "coordinator_leaves"),
    ("late_copies", "unsettle", "kill_coordinator"),
    ("lag_metadata", "silence", "kill_coordinator"),
    ("raise_minimum", "late_requests", "coordinator_leaves"),
    ("jump_clock", "kill_coordinator", "coordinator_leaves"),
    ("jump_clock", "late_requests", "stop_coordinator"),
)


class TransactionNemesis(ReplicationNemesis):
    """See the module."""

    scenarios = SCENARIOS
    world: TransactionWorld

    def acts(self) -> list[Act]:
        rare = {
            "lose_power_of_most": 0.1,
            "wipe_disk": 0.3,
            "fail_broker_disk": 0.4,
            "exchange_directory": 0.3,
            "raise_minimum": 0.3,
        }
        known = [(rare.get(self._name(act), act[0]), act[1]) for act in super().acts()]
        return [
            *known,
            (5, self._kill_coordinator),
            (3, self._coordinator_leaves),
            (3, self._stop_coordinator),
            (6, self._late_requests),
        ]

    def hosts(self) -> list[str]:
        world = self.world
        readers = [*world.readers, *world.offset_readers]
        return [*super().hosts(), *(reader.host for reader in readers)]

    def _late_requests(self) -> None:
        self.world.fault_injected("late requests")
        self.world.tamperer.disturb()

    def repair_others(self) -> None:
        super().repair_others()
        self.world.tamperer.rest()

    def _some_coordinator(self) -> DataBroker | None:
        """The leader of some partition of a coordinator's topic."""
        topic = self.random.choice((CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic))
        known = self.world.ledger.image.topics.topics_by_name.get(topic)
        if known is None:
            return None
        leader = known.partitions[self.random.randrange(len(known.partitions))].leader
        return next(
            (each for each in self.world.brokers if each.broker_id == leader and each.is_alive),
            None,
        )

    def _kill_coordinator(self) -> None:
        broker = self._some_coordinator()
        if broker is not None:
            self.world.fault_injected("coordinator kill", broker.host)
            broker.kill()

    def _coordinator_leaves(self) -> None:
        broker = self._some_coordinator()
        if broker is not None and not broker.is_leaving and broker.is_ready:
            self.world.fault_injected("coordinator leaves", broker.host)
            broker.leave()
            self._later(12_000.0, self._kill_if_hanging, broker, broker.starts)

    def _stop_coordinator(self) -> None:
        broker = self._some_coordinator()
        if broker is not None and broker.process is not None:
            duration_ms = self.random.uniform(200, 9_000)
            self.world.fault_injected("coordinator stopped", f"{broker.host} {duration_ms:.0f}")
            broker.process.stop_for(duration_ms)
