"""Who makes things go wrong for coordinators: the replication's nemesis, and their leaders' deaths.

Owns: what belongs together here. Must not: look at what was promised. Invariant: as its base's.
"""

from __future__ import annotations

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.simulation.cluster.base_nemesis import Act
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.transactions.offset_readers import OffsetReader
from tests.simulation.transactions.story_nemesis import StoryNemesis
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
    ("unheard_leader_dies", "kill_coordinator", "late_requests"),
    ("change_over", "kill_coordinator", "coordinator_leaves"),
    ("change_over", "downgrade", "upgrade_within"),
    ("change_over", "join_unreadable", "join_for_ever", "kill_coordinator"),
    ("change_over", "lose_an_hour"),
    ("abandon_in_the_future", "coordinator_leaves"),
    ("lose_an_hour", "late_requests", "coordinator_leaves"),
    ("flood", "change_over"),
    ("hoard_ids", "hoard_offsets", "fill_to_the_brim", "coordinator_leaves"),
    ("claim_last_epoch", "late_requests", "kill_coordinator"),
)

UNHEARD_MS = 5_000.0
"""For so long a leader's death waits for the moment."""


class TransactionNemesis(StoryNemesis):
    """See the module."""

    scenarios = SCENARIOS
    world: TransactionWorld
    cuts_off_clients = 0.8

    _unheard_until = 0.0

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
            *self.group_acts(),
            *self.story_acts(),
            (5, self._kill_coordinator),
            (3, self._coordinator_leaves),
            (3, self._stop_coordinator),
            (6, self._late_requests),
            (2, self._unheard_leader_dies),
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

    def _unheard_leader_dies(self) -> None:
        """A leader answers a client what is committed, and dies before its followers hear of it;
        those that are left are cut off from each other.
        """
        now, reader = self.world.loop.time(), self.random.choice(self.world.offset_readers)
        place = self.random.choice(reader.places)
        leader = self._leader_of(*place) if now >= self._unheard_until else None
        if leader is None:
            return
        others = [each.host for each in self.world.brokers if each is not leader]
        self.world.fault_injected("unheard leader dies", leader.host)
        late_ms = self.random.uniform(100, 600)
        for other in others:
            self.world.fabric.slow(leader.host, other, late_ms)
        self._unheard_until = now + UNHEARD_MS / 1000
        self._later(late_ms, self._kill_unheard, reader, place, leader, others)

    def _kill_unheard(
        self, reader: OffsetReader, place: tuple[str, int], leader: DataBroker, others: list[str]
    ) -> None:
        is_late = self.world.loop.time() >= self._unheard_until
        is_unheard = self.world.known_to_followers(place, leader) < reader.told(place)
        if not self.is_over and not is_late and not is_unheard:
            self._later(10.0, self._kill_unheard, reader, place, leader, others)
            return
        for other in others:
            self.world.fabric.slow(leader.host, other, 0.0)
        if self.is_over or is_late:
            return
        if leader.is_alive:
            leader.kill()
        directions = [(one, other) for one in others for other in others if one != other]
        for direction in directions:
            self.world.fabric.block(*direction)
        self._later(self._session_ms + self.random.uniform(500, 2_500), self._mend, directions)

    def _some_coordinator(self) -> DataBroker | None:
        """The leader of some partition of a coordinator's topic."""
        topic = self.random.choice((CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic))
        known = self.world.ledger.image.topics.topics_by_name.get(topic)
        if known is None:
            return None
        return self._leader_of(topic, self.random.randrange(len(known.partitions)))

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
