"""A whole simulated cluster with data of one seed: controllers, brokers, clients, and its phases.

Owns: brokers, clients and the administrator, and what must be true after faults stop. Must not:
inject faults (the nemesis does).
Invariant: everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.kit.seeds import Violation
from tests.simulation.clients import ClientHost
from tests.simulation.cluster.base_world import POLL_MS, BaseWorld
from tests.simulation.replication.administrator import Administrator, TopicPlan
from tests.simulation.replication.consumers import ConsumerClient
from tests.simulation.replication.credulous_producers import CredulousProducer
from tests.simulation.replication.data_broker import NO_ROOM, PORT, DataBroker
from tests.simulation.replication.late_requests import LateRequests
from tests.simulation.replication.ledger import DataLedger, Key, PartitionTruth
from tests.simulation.replication.metadata_ledger import MetadataLedger
from tests.simulation.replication.mirror import read_mirror
from tests.simulation.replication.offset_readers import OffsetClient
from tests.simulation.replication.producers import ProducerClient
from tests.virtual.loop import Process

START_LIMIT_MS = 60_000.0
CONVERGENCE_LIMIT_MS = 90_000.0
"""Session timeout, elections, kernels that give up connections, the longest back-off."""

ONE_BATCH_AT_A_TIME = "1"
RESCUE_AFTER_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed is run with."""

    controllers: int
    brokers: int
    chaos_ms: float

    @classmethod
    def of_seed(cls, random: Random, controllers: int | None = None) -> Plan:
        """One controller mostly: the quorum has its own simulation."""
        return cls(
            controllers=random.choice((1, 1, 1, 3)) if controllers is None else controllers,
            brokers=random.choice((3, 3, 3, 4, 5)),
            chaos_ms=random.uniform(3_000, 9_000),
        )


class ReplicationWorld(BaseWorld):
    """See the module."""

    def __init__(
        self, seed: str, *, controllers: int | None = None, print_trace: bool = False
    ) -> None:
        random = Random(seed)
        self.plan = Plan.of_seed(random, controllers)
        super().__init__(seed, random, print_trace=print_trace)
        self.chaos_ms = self.plan.chaos_ms
        self.data = self._make_data_ledger()
        self.ledger = MetadataLedger(self.data)
        self.on_broker_death: Callable[[DataBroker], None] = DataBroker.bury
        self.late_repair: Callable[[], None] | None = None
        """Puts a log directory back that is still out when the other faults have stopped."""
        self.producers_may_act = True
        self.administrator_may_act = True
        self._choose_settings()
        self._make_controllers(self.plan.controllers, static_voters=0.0)
        self.topics = self._choose_topics()
        self.may_wipe = all(topic.replication_factor > 1 for topic in self.topics)
        self.brokers = [
            DataBroker(self, number, self._new_random())
            for number in range(1, 1 + self.plan.brokers)
        ]
        self.broker_addresses = [(each.broker_id, each.host, PORT) for each in self.brokers]
        self.late_requests = LateRequests(self, self._new_random())
        self.clients: list[ClientHost] = []
        self.producers: list[ProducerClient] = []
        self.consumers: list[ConsumerClient] = []
        self.listers: list[OffsetClient] = []
        self.administrator = self._make_administrator()

    def _make_data_ledger(self) -> DataLedger:
        return DataLedger(self.counts, self.note)

    def _make_administrator(self) -> Administrator:
        return Administrator(self, self._new_random())

    def _choose_settings(self) -> None:
        random = self.random
        self.snapshot_bytes = 1_000_000
        self.snapshot_interval_ms = 0
        session_ms = random.choice((1_000, 1_000, 1_500, 3_000, 6_000))
        self.controller_overrides = {
            "broker.session.timeout.ms": str(session_ms),
            "leader.imbalance.check.interval.seconds": str(random.choice((2, 300))),
            "unclean.leader.election.interval.ms": "2000",
        }
        self.max_changes_per_step = None
        self.slow_calls = random.choice((0.0, 0.01, 0.05))
        self.log_directories = ("/data", "/data-b", "/data-c")[: random.choice((1, 2, 3, 3))]
        self.observer_lag_ms = random.choice((0.0, 0.0, 5.0, 100.0))
        self.alter_partition_ms = random.choice((0.0, 0.0, 20.0, 300.0, 1_500.0))
        lag_ms = random.choice((800, 2_000, 5_000))
        self.broker_overrides = {
            # As the controllers': it says for how long a heartbeat confirms a leader (ADR 15).
            "broker.session.timeout.ms": str(session_ms),
            "broker.heartbeat.interval.ms": str(session_ms // random.choice((3, 6))),
            "replica.lag.time.max.ms": str(lag_ms),
            "replica.fetch.wait.max.ms": str(random.choice((100, 300, 500))),
            "replica.fetch.backoff.ms": str(random.choice((20, 200))),
            "replica.fetch.max.bytes": random.choice((ONE_BATCH_AT_A_TIME, "1500", "1048576")),
            "replica.socket.timeout.ms": str(random.choice((1_000, 3_000))),
            "num.replica.fetchers": str(random.choice((1, 1, 2))),
            "replica.high.watermark.checkpoint.interval.ms": str(random.choice((200, 5_000))),
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((500, 60_000))),
            "log.flush.interval.messages": random.choice(("1", "9223372036854775807")),
            "controller.socket.timeout.ms": "2000",
            # The administrator alone makes topics, as they are planned.
            "auto.create.topics.enable": "false",
            # Clients' clocks are right, brokers' may be hours behind.
            "log.message.timestamp.after.max.ms": "9223372036854775807",
        }
        if random.random() < 0.4:
            self.broker_overrides["replica.selector.class"] = (
                "org.apache.kafka.common.replica.RackAwareReplicaSelector"
            )

    def _choose_topics(self) -> list[TopicPlan]:
        random = self.random
        topics = [
            TopicPlan(
                "main",
                random.choice((1, 2)),
                3,
                random.choice((1, 2, 2, 2, 3)),
                segment_ms=random.choice((700, 604_800_000)),
            )
        ]
        if random.random() < 0.4:
            topics.append(TopicPlan("second", 1, random.choice((2, 3)), random.choice((1, 2))))
        if random.random() < (0.2 if len(self.log_directories) == 1 else 0.6):
            factor, minimum = random.choice((2, 3, 3)), random.choice((1, 2, None, None))
            count = random.choice((1, 2))
            topics.append(TopicPlan("passing", count, factor, minimum, is_recreated=True))
        if random.random() < 0.05 + 0.1 * len(self.log_directories):
            topics.append(TopicPlan("single", random.choice((1, 3)), 1, 1))
        if random.random() < 0.15:
            topics.append(TopicPlan("unclean", 1, 3, 1, allows_unclean=True))
        return topics

    def topic_id_at(self, broker_id: int, topic: str) -> Any:
        """What a broker takes for the topic of that name now, None for none."""
        return self.brokers[broker_id - 1].topic_id_of(topic)

    def topic_ids(self, topic: str) -> set[Any]:
        """What is the topic of that name now, as committed and as the brokers that run take it. One
        that knows none answers nothing, and does not serve before it has caught up.
        """
        known = self.ledger.image.topics.topics_by_name.get(topic)
        ids = {broker.topic_id_of(topic) for broker in self.brokers if broker.is_alive}
        return (ids | {None if known is None else known.topic_id}) - {None}

    def _places(self) -> list[tuple[str, int]]:
        return [(plan.name, index) for plan in self.topics for index in range(plan.partitions)]

    def process_failed(self, process: Process, reason: str) -> None:
        """A node without room for its metadata log ends, as in production."""
        if NO_ROOM in reason and process.is_alive:
            self.note(f"{process.name} gives up: {reason}")
            self.counts["ended_for_want_of_room"] += 1
            process.kill()
        else:
            super().process_failed(process, reason)

    # -- running ---------------------------------------------------------------------------------

    def run(self, chaos: Callable[[], Any] | None) -> None:
        try:
            super().run(chaos)
        finally:
            for client in self.clients:
                client.forget()

    async def _phases(self, chaos: Callable[[], Any] | None) -> None:
        self._start_controllers()
        for broker in self.brokers:
            broker.format()
            broker.start()
        await self._until(self._is_serving, "not everybody serves at the start", START_LIMIT_MS)
        await self.administrator.process.spawn(self.administrator.create_topics(self.topics))
        await self._make_clients()
        self.administrator.begin()
        await self.loop.elapse(300)
        if chaos is not None:
            await chaos()
        self.administrator_may_act = False
        self.note("faults stop")
        began = self.loop.time()
        await self._converge()
        self.counts["convergence_ms"] = int((self.loop.time() - began) * 1000)

    async def _make_clients(self) -> None:
        places = self._places()
        for number in range(1, 1 + self.random.choice((1, 2, 2, 3))):
            self.producers.append(ProducerClient(self, number, self._new_random(), places))
        for number in range(1, 1 + self.random.choice((1, 2))):
            self.consumers.append(ConsumerClient(self, number, self._new_random(), places))
        self.listers.append(OffsetClient(self, 1, self._new_random(), places))

    def add_credulous_clients(self, random: Random) -> None:
        """Producers that a former leader can mislead."""
        self.producers.append(CredulousProducer(self, 9, random, self._places()))

    async def _converge(self) -> None:
        """After faults stop: all replicas in sync, all producers answered, equal logs, all read."""
        await self._until(
            lambda: not self.administrator.is_busy, "the administrator waits", CONVERGENCE_LIMIT_MS
        )
        if self.late_repair is not None:
            await self._live_without_a_directory()
            self.late_repair()
        if self.broker_overrides["replica.fetch.max.bytes"] == ONE_BATCH_AT_A_TIME:
            # So slow a follower never catches up with a producer that goes on.
            self.producers_may_act = False
        await self._rescue(self._is_whole)
        await self._until(self._is_whole, "not whole", CONVERGENCE_LIMIT_MS)
        await self._settle()
        await self.loop.elapse(300)
        self.producers_may_act = False
        await self._until(self._is_drained, "not drained", CONVERGENCE_LIMIT_MS)
        await self._deliver()
        await self._until(self._is_level, "not level", CONVERGENCE_LIMIT_MS)
        for key in self._keys():
            self._compare(key)
        await self._read_everything()

    async def _deliver(self) -> None:
        """A producer delivers everything now."""
        await self._until(self._is_whole, "not whole any more", CONVERGENCE_LIMIT_MS)
        producer = self.random.choice(self.producers)
        await producer.process.spawn(producer.deliver())

    async def _settle(self) -> None:
        """What clients need of a whole cluster before they are asked to end."""

    async def _rescue(self, is_whole: Callable[[], bool], *, with_away: bool = True) -> None:
        """What no broker can mend: the administrator waits, and then elects uncleanly where both
        ISR and ELR are empty; not where a replica's directory may come back, unless `with_away`.
        """
        patience = self.loop.time() + RESCUE_AFTER_MS / 1000
        while not is_whole() and self.loop.time() < patience:
            await self.loop.elapse(POLL_MS)
        administrator = self.administrator
        abandoned = self._abandoned(with_away=with_away)
        if not with_away:
            self.counts["rescues_without_a_directory"] += len(abandoned)
        await administrator.process.spawn(administrator.rescue(abandoned))

    async def _live_without_a_directory(self) -> None:
        """Partitions of which no replica lies in the directory that is out are whole without it."""
        administrator = self.administrator
        self.producers_may_act = False
        await administrator.process.spawn(administrator.recreate())
        await self._rescue(self._is_whole_without_away, with_away=False)
        await self._until(
            self._is_whole_without_away,
            "not whole where no log directory is missing",
            CONVERGENCE_LIMIT_MS / 2,
        )
        self.producers_may_act = True
        self.counts["whole_without_a_directory"] += 1

    async def _read_everything(self) -> None:
        for topic, index in self._places():
            await self._read(topic, index)
            for reader in self.listers:
                await reader.process.spawn(reader.name_both_ends((topic, index)))

    async def _read(self, topic: str, index: int) -> None:
        """Everything that is committed can be read, every acknowledged record for one."""
        consumer = self.consumers[0]
        there, end = await consumer.process.spawn(consumer.read_all(topic, index))
        key = (self.ledger.image.topics.topics_by_name[topic].topic_id, index)
        truth = self.data.truth(key)
        wanted = self.data.records.offsets_in(truth, key, 0, end)
        missing = [offset for offset in wanted if offset not in there]
        if missing:
            what = f"{truth.committed.at(missing[0])} of {truth.name}"
            is_told = truth.committed.at(missing[0]) in truth.acknowledged
            raise Violation("acknowledged-unreadable" if is_told else "committed-unreadable", what)

    def _compare(self, key: Key) -> None:
        """What is in the files of all replicas is the same, undamaged, and what the ledger has."""
        truth = self.data.truth(key)
        found = {}
        for broker_id in self._registration(key).replicas:
            mirror = read_mirror(self._log(broker_id, key), check=True)
            found[broker_id] = mirror.between(truth.deleted_to, mirror.end_offset)
            known = truth.replicas[broker_id]
            if found[broker_id] != known.between(truth.deleted_to, known.end_offset):
                raise Violation("mirror-differs", f"{truth.name} of {broker_id}: {mirror} {known}")
        first, *others = found.values()
        if any(each != first for each in others):
            raise Violation("replicas-differ", f"{truth.name}: {found}")

    # -- conditions ------------------------------------------------------------------------------

    def _keys(self) -> list[Key]:
        topics = self.ledger.image.topics.topics_by_name
        return [(topics[name].topic_id, index) for name, index in self._places()]

    def _registration(self, key: Key) -> Any:
        return self.ledger.image.topics.partition(*key)

    def _log(self, broker_id: int, key: Key) -> Any:
        part = self.brokers[broker_id - 1].part
        if part is None or part.services is None:
            return None
        partition = part.services.replica_manager.topic_by_id(key[0]).get(key[1])
        return None if partition is None else partition.log

    def _online_log(self, broker_id: int, key: Key) -> Any:
        log = self._log(broker_id, key)
        return None if log is None or log.offline else log

    def living_replicas(self, name: str, index: int) -> list[int]:
        """The brokers whose replica an unclean election can take."""
        topic = self.ledger.image.topics.topics_by_name[name]
        brokers = self.ledger.image.cluster.brokers
        return [
            broker_id
            for broker_id in topic.partitions[index].replicas
            if not brokers[broker_id].fenced
            and self._online_log(broker_id, (topic.topic_id, index)) is not None
        ]

    def check_is_lost(self, name: str, index: int) -> None:
        """No replica lives that an unclean election could take. Raises Violation."""
        living = self.living_replicas(name, index)
        if living:
            raise Violation("living-replica-refused", f"{living} of {name}-{index}")

    def _is_serving(self) -> bool:
        return all(broker.is_serving for broker in self.brokers)

    def _is_whole(self) -> bool:
        """Every broker serves, and every partition has all its replicas in sync."""
        return self._is_quiet() and not self._not_whole()

    def _is_whole_without_away(self) -> bool:
        """As `_is_whole`, but for partitions of which a replica is away."""
        return self._is_quiet() and not self._not_whole(with_away=False) and self._has_logs()

    def _is_quiet(self) -> bool:
        return self._are_controllers_quiet() and self._is_serving()

    def _not_whole(self, *, with_away: bool = True) -> list[str]:
        names = self.ledger.image.topics.topics_by_name
        return [
            f"{name}-{index}: {partition}"
            for name, topic in sorted(names.items())
            for index, partition in sorted(topic.partitions.items())
            if (
                partition.leader < 0
                or set(partition.isr) != set(partition.replicas)
                or partition.adding_replicas
                or partition.removing_replicas
            )
            and (with_away or not self._is_away((topic.topic_id, index), partition))
        ]

    def _has_logs(self) -> bool:
        """Whether all replicas of partitions without a log out of reach have one that is online."""
        for key in self._keys():
            partition = self._registration(key)
            logs = [self._online_log(broker_id, key) for broker_id in partition.replicas]
            is_complete = all(log is not None for log in logs)
            if not is_complete and not self._is_away(key, partition):
                return False
        return True

    def _is_away(self, key: Key, partition: Any) -> bool:
        """Whether some replica lies in a log directory that is out, or may, for all that its broker
        can know.
        """
        for broker_id in partition.replicas:
            directories = self.brokers[broker_id - 1].directories
            may_lie = directories.lacks_one and self.ledger.may_have_had(broker_id, *key)
            if may_lie or directories.is_away(key):
                return True
        return False

    def _abandoned(self, *, with_away: bool = True) -> list[tuple[str, int]]:
        """Partitions that no replica can lead: neither ISR nor ELR has a member."""
        names = self.ledger.image.topics.topics_by_name
        return [
            (name, index)
            for name, topic in sorted(names.items())
            for index, partition in sorted(topic.partitions.items())
            if partition.leader < 0
            and not partition.isr
            and not partition.elr
            and (with_away or not self._is_away((topic.topic_id, index), partition))
        ]

    def _is_drained(self) -> bool:
        return all(producer.is_drained for producer in self.producers)

    def _is_level(self) -> bool:
        return self._is_whole() and not self._not_level()

    def _not_level(self) -> list[str]:
        """Replicas that do not end where their leader does, or do not know that it is committed."""
        uneven = []
        for key in self._keys():
            ends = {}
            for broker_id in self._registration(key).replicas:
                log = self._online_log(broker_id, key)
                ends[broker_id] = (-1, -1)
                if log is not None:
                    ends[broker_id] = (log.log_end_offset, log.high_watermark)
            if len(set(ends.values())) != 1 or any(end != mark for end, mark in ends.values()):
                uneven.append(f"{self.data.truth(key).name}: {ends}")
        return uneven

    def describe(self) -> str:
        """Where every process stands, for the message of a failure."""
        nodes = [controller.describe() for controller in self.controllers]
        nodes += [broker.describe() for broker in self.brokers]
        level = self._not_level() if self._places_exist() else []
        return f"{nodes}; {self._not_whole()}; {level}; {self.producers}"

    def _places_exist(self) -> bool:
        names = self.ledger.image.topics.topics_by_name
        return all(plan.name in names for plan in self.topics)


__all__ = ["PartitionTruth", "ReplicationWorld"]
