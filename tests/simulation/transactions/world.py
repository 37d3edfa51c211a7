"""A whole simulated cluster with coordinators of one seed: the replication's, and who uses them.

Owns: what the cluster is configured with, its applications, groups and readers, and what must be
true when everything has come to rest. Must not: inject faults (nemesis and tamperer do).
Invariant: everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from moldau.broker.coordinator.key_partitions import partition_for
from moldau.metadata.features import GROUP_VERSION, TRANSACTION_VERSION
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.kit.seeds import Violation
from tests.simulation.replication.administrator import TopicPlan
from tests.simulation.replication.consumers import ConsumerClient
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.ledger import Key
from tests.simulation.replication.mirror import read_bytes, read_mirror
from tests.simulation.replication.world import (
    CONVERGENCE_LIMIT_MS,
    START_LIMIT_MS,
    ReplicationWorld,
)
from tests.simulation.transactions.administrator import TransactionAdministrator
from tests.simulation.transactions.draws import PASSING, VISITORS, Draws
from tests.simulation.transactions.faulty_clients import HOARD
from tests.simulation.transactions.group_applications import (
    OUTPUT,
    GroupApplication,
    GroupPlan,
    plan_group,
)
from tests.simulation.transactions.ledger import COMPACTED, TransactionLedger, is_compacted
from tests.simulation.transactions.offset_readers import OffsetReader
from tests.simulation.transactions.prepared_application import PreparedApplication
from tests.simulation.transactions.producers import Application, Witness
from tests.simulation.transactions.readers import ALL, COMMITTED, Reader
from tests.simulation.transactions.tamperer import Tamperer
from tests.simulation.transactions.transaction_log import ONGOING
from tests.virtual.loop import Process
from tests.virtual.wall_clocks import HOUR_MS

INTERNAL_PARTITIONS = 2
SLOW_ASSIGNMENTS = 0.2
LAST_CLIENT_EPOCH = 2**15 - 2
INPUT = "input"

SETTLE_LIMIT_MS = 45_000.0
"""Sessions, rebalances and the longest transaction that a member waits for."""

STUCK_AFTER_MS = 60_000.0
"""How long clients are waited for that a lawful loss may keep waiting for ever; less than the
convergence limit."""

SHOWN_ALL = {"isolation_level": "read_uncommitted"}
"""What is aborted is shown, too, so that every record is."""


class TransactionWorld(ReplicationWorld):
    """See the module."""

    data: TransactionLedger
    administrator: TransactionAdministrator

    def __init__(
        self,
        seed: str,
        *,
        controllers: int | None = None,
        print_trace: bool = False,
        draws: Draws | None = None,
    ) -> None:
        self.draws = Draws.of_seed(seed) if draws is None else draws
        self.drawn = Random(f"drawn {seed}")
        """The dice of what is drawn besides, so that the rest of the seed stays what it was."""
        super().__init__(seed, controllers=controllers, print_trace=print_trace)
        self.group_plans = self._choose_groups()
        self.groups: list[GroupApplication] = []
        self.changing_groups = {plan.name for plan in self.group_plans if plan.is_changing}
        self.members_may_act = self.members_may_go = True
        """Whether groups have members; whether these die, leave and take their time."""
        self.slow_assignments = SLOW_ASSIGNMENTS
        """How many leaders of classic groups take their time to assign partitions."""
        self.held_groups: set[str] = set()
        """Groups whose leaders wait until they are let go."""
        self.thinking: dict[str, Process] = {}
        """The leader that has waited last, by group."""
        self.rivals: list[GroupApplication] = []
        self.readers: list[Reader] = []
        self.offset_readers: list[OffsetReader] = []
        self.chaos_ms = self.random.uniform(1_500, 6_000)
        self.tamperer = Tamperer(self, self._new_random())
        self.faulty_clients = 0
        self.prepared: list[PreparedApplication] = []
        self.first_levels: dict[str, int] = {}
        self.places: list[tuple[str, int]] = []
        """What applications write to."""
        self.input_topics = [INPUT]
        self.loaded_ends: dict[tuple[int, int], int] = {}
        """Where the logs of coordinators of groups ended that brokers have loaded, by partition."""
        self._gives_up_at: float | None = None

    def _make_data_ledger(self) -> TransactionLedger:
        data = TransactionLedger(self.counts, self.note, self.loop.time, self._topic_id_of)
        if self.draws.has_visitors:
            data.recreated.add(PASSING)
        return data

    def _topic_id_of(self, name: str) -> Any:
        known = self.ledger.image.topics.topics_by_name.get(name)
        return None if known is None else known.topic_id

    @property
    def may_miss_tombstones(self) -> bool:
        """Whether tombstones may have gone, by a clock an hour ahead, before a replica had them."""
        retention_ms = int(self.broker_overrides["log.cleaner.delete.retention.ms"])
        return self.wall_clocks.has_been_ahead and retention_ms < HOUR_MS

    def _make_administrator(self) -> TransactionAdministrator:
        return TransactionAdministrator(self, self._new_random())

    def _choose_settings(self) -> None:
        super()._choose_settings()
        random = self.random
        self.controller_overrides["min.insync.replicas"] = "2"
        self.old_share = random.choice((0.0, 0.0, 0.3, 1.0))
        """How many producers are of version 1."""
        self.cleans = random.random() < 0.6
        """Whether coordinators' logs are rolled soon, and compacted."""
        self.max_waiting_count = random.choice((6, 10_000))
        """How many answers of a coordinator's partition may wait for their commit."""
        self.max_message_bytes = random.choice((6_000, 1_048_588))
        self.expires = random.random() < 0.5
        """Whether transactional ids are forgotten soon."""
        self.first_epoch = random.choice((0, 0, LAST_CLIENT_EPOCH - 3, LAST_CLIENT_EPOCH))
        """The first epoch of the producer ids that transactional ids get."""
        if random.random() < 0.3:
            self.feature_levels = {"transaction.version": 1}
            self.old_share = 1.0
        self.broker_overrides.update(
            {
                "replica.fetch.max.bytes": random.choice(("1500", "1048576")),
                "min.insync.replicas": "2",
                # Producers ask for a topic also between its deletion and its creation.
                "auto.create.topics.enable": "false",
                "log.cleaner.enable": "true" if self.cleans else "false",
                "log.cleaner.backoff.ms": str(random.choice((50, 400))),
                "log.cleaner.min.cleanable.ratio": random.choice(("0.01", "0.4")),
                # Longer than any replica is away, unless a clock jumps: one that misses a tombstone
                # keeps its key (as with Apache Kafka).
                "log.cleaner.delete.retention.ms": random.choice(("60000", "90000", "86400000")),
                "log.roll.ms": random.choice(("200", "1000")) if self.cleans else "604800000",
                "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
                "offsets.topic.replication.factor": "3",
                "offsets.commit.timeout.ms": str(random.choice((1_000, 3_000))),
                "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
                "message.max.bytes": str(self.max_message_bytes),
                "offsets.retention.check.interval.ms": "500",
                "transactional.id.expiration.ms": "6000" if self.expires else "604800000",
                "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
                "request.timeout.ms": str(random.choice((1_000, 2_000))),
                "group.initial.rebalance.delay.ms": str(random.choice((0, 200))),
                "group.min.session.timeout.ms": "500",
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.session.timeout.ms": "3000",
                "group.consumer.min.heartbeat.interval.ms": "100",
                "group.consumer.heartbeat.interval.ms": "300",
                "group.consumer.migration.policy": "bidirectional",
                # Clients tell true time while a leader may be an hour behind.
                "log.message.timestamp.after.max.ms": "86400000",
                "transaction.two.phase.commit.enable": "true",
                # An hour that a clock jumps is longer, all else shorter.
                "offsets.retention.minutes": "30" if self.draws.groups else "10080",
            }
        )

    def _choose_topics(self) -> list[TopicPlan]:
        random = self.random
        segment_ms = random.choice((700, 604_800_000))
        topics = [
            TopicPlan(INPUT, random.choice((2, 3)), 3, 2, segment_ms=segment_ms),
            TopicPlan("side", 1, 3, 2),
            TopicPlan(OUTPUT, 2, 3, 2),
        ]
        if self.draws.has_visitors:
            topics.append(TopicPlan(PASSING, self.drawn.choice((1, 2)), 3, 2, is_recreated=True))
        return topics

    def found(self, kind: str, detail: str) -> Violation:
        """For a client to raise: the run ends by it, whatever becomes of the client's task."""
        violation = Violation(kind, detail)
        self.violation = self.violation or violation
        return violation

    def new_faulty_client(self) -> int:
        """The number of the next one."""
        self.faulty_clients += 1
        return self.faulty_clients

    def _choose_groups(self) -> list[GroupPlan]:
        random = self.random
        plans = [
            plan_group(random, f"group-{number}", self.choose_version(random))
            for number in range(1, 1 + random.choice((0, 1, 1, 2)))
        ]
        if self.draws.rivals:
            plans = [replace(plan, static=True) for plan in plans]
            plans = plans or [replace(plan_group(self.drawn, "group-1", 0), static=True)]
        if self.draws.has_visitors:
            plan = plan_group(self.drawn, VISITORS, 0)
            plan = replace(plan, topics=(PASSING,), is_automatic=False)
            plans.append(plan)
        return plans

    def choose_version(self, random: Random) -> int:
        """The version of a producer's transactions."""
        return 1 if random.random() < self.old_share else 2

    # -- clients ---------------------------------------------------------------------------------

    def add_credulous_clients(self, random: Random) -> None:
        """None besides: who asks for a coordinator takes any broker's word."""

    async def _make_internal_topics(self) -> None:
        administrator = self.administrator
        await administrator.process.spawn(administrator.make_internal_topics())
        for log in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            self.topics.append(TopicPlan(log.topic, INTERNAL_PARTITIONS, 3, 2))
        await self._until(self._places_exist, "no internal topics", START_LIMIT_MS)

    async def _make_clients(self) -> None:
        random = self.random
        await self._make_internal_topics()
        places = [
            (plan.name, index) for plan in self.topics[:2] for index in range(plan.partitions)
        ]
        for number in range(1, 1 + random.choice((1, 2, 2, 3))):
            self.producers.append(Application(self, number, self._new_random(), places))  # type: ignore[arg-type]
        self._take_places(places)
        for plan in self.group_plans:
            for member in range(1, 1 + plan.members):
                random = self.drawn if plan.topics else self.random
                self.add_member(plan, f"{plan.name}-member-{member}", random)
        self._make_readers()

    def _take_places(self, places: list[tuple[str, int]]) -> None:
        """Who writes to what there is besides: to all the places that there are, and will be."""
        self.places = places
        if self.draws.has_visitors:
            places += [(PASSING, index) for index in range(self.partition_count(PASSING))]
        if self.draws.two_phase and not self.feature_levels:
            self.prepared.append(PreparedApplication(self, 1, Random(self.drawn.random()), places))
        self.producers += self.prepared  # type: ignore[arg-type]
        self.first_levels = {
            feature: self.level_of(feature) for feature in (TRANSACTION_VERSION, GROUP_VERSION)
        }

    def add_member(
        self, plan: GroupPlan, host: str, random: Random, **options: float
    ) -> GroupApplication:
        """One more application of a group."""
        self.data.group_of_id[f"txn-{host}"] = plan.name
        application = GroupApplication(self, plan, host, Random(random.getrandbits(64)), **options)
        self.producers.append(application)  # type: ignore[arg-type]
        self.groups.append(application)
        return application

    def level_of(self, feature: str) -> int:
        """The level that is finalized now."""
        return int(self.ledger.image.features.level(feature))

    def is_thinking(self, group: str) -> bool:
        """Whether a held group's members wait for their assignment now."""
        leader = self.thinking.get(group)
        return leader is not None and leader.is_alive and leader.stopped_until is not None

    def note_partitions(self) -> None:
        """Topics have grown: from now on every client knows."""
        for number, plan in enumerate(self.topics):
            count = self.partition_count(plan.name)
            if plan.is_recreated and count:
                self.topics[number] = replace(plan, partitions=count)
            if count > plan.partitions:
                self.topics[number] = replace(plan, partitions=count)
                if plan.name in (INPUT, PASSING):
                    self.places += [(plan.name, each) for each in range(plan.partitions, count)]

    def _make_readers(self) -> None:
        random = self.random
        some = random.sample([each for each in self._places() if self._keeps_all(each[0])], 2)
        self.consumers.append(ConsumerClient(self, 1, self._new_random(), some, **SHOWN_ALL))
        data_places = [
            (plan.name, index) for plan in self.topics[:3] for index in range(plan.partitions)
        ]
        some = random.sample(data_places, 3)
        self.readers.append(Reader(self, 1, self._new_random(), some, COMMITTED))
        self.readers.append(Reader(self, 2, self._new_random(), some, ALL))
        some = random.sample(data_places, 3)
        self.offset_readers.append(OffsetReader(self, 1, self._new_random(), some))

    def _keeps_all(self, topic: str) -> bool:
        """Whether a reader finds every batch of it, as it was written."""
        return not (self.cleans and topic in COMPACTED)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic of the run has; one that was just deleted has none."""
        known = self.ledger.image.topics.topics_by_name.get(topic)
        return 0 if known is None else len(known.partitions)

    def is_coordinator(self, group: str, broker_id: int | None) -> bool:
        """Whether that broker leads the group's partition, as far as the controllers say."""
        topic = self.ledger.image.topics.topics_by_name.get(CONSUMER_OFFSETS.topic)
        if topic is None:
            return False
        partition = topic.partitions[partition_for(group, len(topic.partitions))]
        return bool(partition.leader == broker_id)

    def rests_on_uncommitted(self, group: str, broker_id: int | None) -> bool:
        """Whether that coordinator has loaded records of a leader before it that are not committed
        yet, and may never be: it answers by them all the same, as Apache Kafka's.
        """
        index = partition_for(group, INTERNAL_PARTITIONS)
        truth = self.data.truth((self._topic_id_of(CONSUMER_OFFSETS.topic), index))
        end_offset = self.loaded_ends.get((broker_id or 0, index), 0)
        return end_offset > truth.committed.end_offset

    def known_to_followers(self, place: tuple[str, int], leader: DataBroker) -> int:
        """How much of a partition its living followers know to be committed, at most."""
        key = (self._topic_id_of(place[0]), place[1])
        logs = [
            self._log(broker_id, key)
            for broker_id in self._registration(key).replicas
            if broker_id != leader.broker_id
        ]
        return max((log.high_watermark for log in logs if log is not None), default=0)

    # -- the end ---------------------------------------------------------------------------------

    async def _converge(self) -> None:
        self.members_may_go = False
        self.slow_assignments = 0.0
        # What is under way is ended; nothing new is begun in a cluster without faults, but groups
        # go on until all they read has an owner.
        await self.loop.elapse(self.random.choice((0.0, 300.0, 1_500.0)))
        self.producers_may_act = False
        for application in self.rivals:
            application.is_away = True
            application.go(leaves=False)
        administrator = self.administrator
        await self._until(
            lambda: not administrator.is_changing, "topics are changing", CONVERGENCE_LIMIT_MS
        )
        self.note_partitions()
        await administrator.process.spawn(administrator.restore_levels())
        if self.draws.levels:
            administrator.process.spawn(administrator.keep_levels())
        await super()._converge()
        if self.data.is_spoilt:
            await self._move_coordinators()
            return
        witness = Witness(self, Random(self.drawn.random()))
        moving = self.loop.create_task(self._move_coordinators())
        await witness.process.spawn(witness.testify(moving.done))
        await moving

    async def _settle(self) -> None:
        await self._until(self._are_groups_settled, "groups are not settled", SETTLE_LIMIT_MS)
        self.members_may_act = False
        await self._until(self._has_expired, "not expired", SETTLE_LIMIT_MS)
        await self._until(self._has_forgotten, "old topics' offsets", SETTLE_LIMIT_MS)

    def _has_forgotten(self) -> bool:
        return self.data.is_spoilt or not self.data.offsets_of_old_topics()

    def _are_groups_settled(self) -> bool:
        return self.data.is_spoilt or not self._unsettled()

    def _has_expired(self) -> bool:
        return self.data.is_spoilt or not self._hoarded()

    def _hoarded(self) -> list[str]:
        """Transactional ids and groups with offsets that are to be forgotten, and ids that are in a
        transaction. What was written when a clock was an hour ahead has that hour more: a record
        says by its coordinator's wall clock when its time begins, in Apache Kafka, too.
        """
        soon_ms = self.clock.now_ms() + HOUR_MS // 2
        groups = {
            key[0]
            for key, commits in self.data.group_log.commits.items()
            if commits and commits[-1].timestamp_ms < soon_ms
        }
        ids = [
            name
            for name, known in self.data.transaction_log.last.items()
            if known.transaction_status == ONGOING
            or (self.expires and known.transaction_last_update_timestamp_ms < soon_ms)
        ]
        return sorted(name for name in groups.union(ids) if name.startswith(HOARD))

    def _unsettled(self) -> list[str]:
        """What keeps the groups from being settled."""
        return [line for plan in self.group_plans for line in self.unsettled(plan)]

    def unsettled(self, plan: GroupPlan) -> list[str]:
        """A group's partitions without an owner that lives, and its members that live on in the log
        alone.
        """
        applications = [each for each in self.groups if each.plan is plan]
        living = [each.member for each in applications if each.member is not None]
        owned = {place for member in living for place in member.mine}
        places = {
            (topic, index)
            for topic in plan.topics or self.input_topics
            for index in range(self.partition_count(topic))
        }
        found = []
        if not all(each.is_away for each in applications):
            found = [f"{plan.name}: no owner of {place}" for place in sorted(places - owned)]
        dead = self.data.group_log.member_ids(plan.name) - {each.member_id for each in living}
        return found + [f"{plan.name}: {member_id} lives on" for member_id in sorted(dead)]

    async def _move_coordinators(self) -> None:
        """Leaders of coordinators' logs stop in order: others load what compaction has left."""
        if not self.cleans:
            return
        await self.loop.elapse(self.random.choice((0.0, 500.0)))
        for topic in COMPACTED:
            partitions = self.ledger.image.topics.topics_by_name[topic].partitions
            leader = partitions[self.random.randrange(len(partitions))].leader
            await self._restart(self.brokers[leader - 1])

    async def _restart(self, broker: DataBroker) -> None:
        starts = broker.starts
        self.note(f"{broker.host} gives its coordinators away")
        broker.leave()
        await self._until(lambda: broker.starts > starts, "not stopped", CONVERGENCE_LIMIT_MS)
        await self._until(self._is_whole, "not whole", CONVERGENCE_LIMIT_MS)

    def _is_drained(self) -> bool:
        if not super()._is_drained():
            return self._is_stuck_lawfully()
        return self.data.is_spoilt or not any(each.open for each in self.data.streams.values())

    def _is_stuck_lawfully(self) -> bool:
        """A coordinator whose log was lost gives epochs again that leaders of data have seen end.
        They refuse its markers, so that such a transaction, and who asks for its producer id, may
        wait for ever: in Apache Kafka, too.
        """
        if not self.data.is_spoilt:
            return False
        if self._gives_up_at is None:
            self._gives_up_at = self.loop.time() + STUCK_AFTER_MS / 1000
        if self.loop.time() < self._gives_up_at:
            return False
        self.counts["stuck_after_lawful_loss"] += 1
        return True

    async def _deliver(self) -> None:
        """Transactions have ended; nothing is sent besides."""

    async def _read(self, topic: str, index: int) -> None:
        if self._keeps_all(topic):
            await super()._read(topic, index)

    def _compare(self, key: Key) -> None:
        truth = self.data.truth(key)
        if not is_compacted(truth.name):
            super()._compare(key)
            return
        for broker_id in self._registration(key).replicas:
            log = self._log(broker_id, key)
            found = self.data.as_written(truth, read_mirror(log, check=True))
            known = truth.replicas[broker_id]
            if found.batches != known.batches:
                raise Violation("mirror-differs", f"{truth.name} of {broker_id}: {found} {known}")
            self.data.check_compacted(
                f"broker-{broker_id}",
                key,
                broker_id,
                read_bytes(log, 0),
                may_miss_tombstones=self.may_miss_tombstones,
            )

    async def _read_everything(self) -> None:
        await super()._read_everything()
        if self.data.is_spoilt:
            return
        offset_reader = self.offset_readers[0]
        for reader in self.readers:
            await reader.process.spawn(reader.read_all())
        for plan in self.topics[:3]:
            for index in range(plan.partitions):
                await offset_reader.process.spawn(offset_reader.name_both_ends((plan.name, index)))
        self.data.check_end()
        for plan in self.group_plans:
            if plan.version:
                self._check_exactly_once(plan.name)
            elif not plan.topics:
                self._check_at_least_once(plan.name)

    def _check_exactly_once(self, group: str) -> None:
        """What a group has made is what it has read up to its committed offsets, once each."""
        if group in self.data.group_log.may_go_back | self.data.group_log.forgotten.keys():
            return
        made: dict[tuple[str, int], list[int]] = {}
        for index in range(self.partition_count(OUTPUT)):
            for placed in self.data.stream(f"{OUTPUT}-{index}").placed:
                text = bytes(placed.record.value or b"").decode().split(" ")[-1]
                if placed.outcome and text.startswith(f"{group}|"):
                    _group, topic, source, offset = text.split("|")
                    made.setdefault((topic, int(source)), []).append(int(offset))
        for topic in self.input_topics:
            for index in range(self.partition_count(topic)):
                last = self.data.group_log.last((group, topic, index))
                end = 0 if last is None else last.offset
                stream = self.data.stream(f"{topic}-{index}")
                wanted = [each.offset for each in stream.between(0, end) if each.outcome]
                found = sorted(made.get((topic, index), []))
                if found != wanted:
                    what = "processed-twice" if len(set(found)) < len(found) else "processed-not"
                    wrong = sorted(set(found) ^ set(wanted))
                    raise Violation(what, f"{group}, {topic}-{index} up to {end}: {wrong[:5]}")
                self.counts["processed_once"] += len(found)

    def _check_at_least_once(self, group: str) -> None:
        """A group has handed out all that lies below its committed offsets."""
        if group in self.data.group_log.forgotten:
            return
        for topic in self.input_topics:
            for index in range(self.partition_count(topic)):
                key = (group, topic, index)
                last = self.data.group_log.last(key)
                end = 0 if last is None else last.offset
                stream = self.data.stream(f"{topic}-{index}")
                wanted = {each.offset for each in stream.between(0, end) if each.outcome}
                missing = wanted - self.data.processed.get(key, set())
                if missing:
                    raise Violation("processed-not", f"{key} up to {end}: {sorted(missing)[:5]}")
                self.counts["processed"] += len(wanted)

    def describe(self) -> str:
        open_ones = {name: each.open for name, each in self.data.streams.items() if each.open}
        hoarded = f"{len(self._hoarded())} hoarded: {self._hoarded()[:1]}"
        return f"{super().describe()}; open: {open_ones}; {self._unsettled()}; {hoarded}"
