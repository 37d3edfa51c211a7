"""A simulated administrator: topics, reassignments, elections, deletions, configuration.

Owns: what was asked for. Must not: wait for reassignments to end.
Invariants: the topics of a run exist before other clients act; a topic that is deleted is created
again before anything else is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p19_create_topics as create
from moldau.protocol.messages import p20_delete_topics as delete_topics
from moldau.protocol.messages import p21_delete_records as delete
from moldau.protocol.messages import p43_elect_leaders as elect
from moldau.protocol.messages import p44_incremental_alter_configs as configs
from moldau.protocol.messages import p45_alter_partition_reassignments as reassign
from moldau.protocol.schema import Message
from tests.kit.seeds import Violation
from tests.simulation.cluster.link import ControllerLink
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
CLUSTER_DEFAULT = ""
SET = 0
UNCLEAN = 1
HIGH_WATERMARK = -1
RESCUE_TRIES = 50
RESCUE_PAUSE_MS = 500.0
UNEXPECTED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR})


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the run; one without a minimum of its own has the cluster's.

    `allows_unclean`: its name says so to the ledger.
    """

    name: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int | None
    allows_unclean: bool = False
    segment_ms: int = 604_800_000
    is_recreated: bool = False


class Administrator:
    """One client that does one thing after the other."""

    def __init__(self, world: ReplicationWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.host = "administrator"
        self.process = Process(world.loop, self.host)
        network = world.fabric.port_of(self.process, self.host)
        self._controllers = ControllerLink(
            world.loop, network, random, world.controller_addresses, self.host
        )
        self._brokers = ClusterLink(
            world.loop, self.process, network, random, world.broker_addresses
        )
        self.pause_ms = random.choice((500.0, 2_000.0, 6_000.0))
        self.is_busy = False

    async def create_topics(self, plans: list[TopicPlan]) -> None:
        """Create the topics of the run, however long it takes."""
        for plan in plans:
            while not await self._create(plan):
                await self.world.loop.elapse(100.0)

    def begin(self) -> None:
        """Act from now on, while the world allows it."""
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.pause_ms))
            if not self.world.administrator_may_act:
                continue
            self.is_busy = True
            try:
                await self.random.choice(self.actions())()
            except (ControllerUnavailable, *NO_ANSWER):
                self.world.counts["undecided"] += 1
            self.is_busy = False

    def actions(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What it may do."""
        return (self._reassign, self._elect, self._delete, self._alter, self.recreate)

    @property
    def may_alter(self) -> bool:
        """Whether minimums change in this world."""
        return self._alter in self.actions()

    async def _ask(self, request: Message) -> Any:
        return await self._controllers.send_once(request)

    async def _create(self, plan: TopicPlan) -> bool:
        settings = {
            "unclean.leader.election.enable": str(plan.allows_unclean).lower(),
            "segment.ms": str(plan.segment_ms),
            "segment.index.bytes": "1024",
        }
        if plan.min_insync_replicas is not None:
            settings["min.insync.replicas"] = str(plan.min_insync_replicas)
        request = create.CreateTopicsRequest(
            topics=[
                create.CreatableTopic(
                    name=plan.name,
                    num_partitions=plan.partitions,
                    replication_factor=plan.replication_factor,
                    configs=[
                        create.CreatableTopicConfig(name=name, value=value)
                        for name, value in settings.items()
                    ],
                )
            ],
            timeout_ms=2_000,
        )
        try:
            result = (await self._ask(request)).topics[0]
        except ControllerUnavailable:
            return False
        done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        retried = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.REQUEST_TIMED_OUT)
        if result.error_code not in (*done, *retried):
            raise Violation("topic-refused", f"{plan}: {result}")
        return result.error_code in done

    def _some_place(self) -> tuple[TopicPlan, int]:
        plan = self.random.choice(self.world.topics)
        return plan, self.random.randrange(plan.partitions)

    async def _reassign(self) -> None:
        plan, index = self._some_place()
        broker_ids = [broker.broker_id for broker in self.world.brokers]
        replicas: list[int] | None = self.random.sample(broker_ids, plan.replication_factor)
        if self.random.random() < 0.2:
            replicas = None
        response = await self._ask(
            reassign.AlterPartitionReassignmentsRequest(
                topics=[
                    reassign.ReassignableTopic(
                        name=plan.name,
                        partitions=[
                            reassign.ReassignablePartition(partition_index=index, replicas=replicas)
                        ],
                    )
                ],
                timeout_ms=1_500,
            )
        )
        self._expect(response.error_code)
        for topic in response.responses:
            for partition in topic.partitions:
                self._expect(partition.error_code)
                if partition.error_code == ErrorCode.NONE:
                    self.world.note(f"reassigned {plan.name}-{index} to {replicas}")
                    self.world.counts["reassignments"] += 1

    async def _elect(self) -> None:
        plan, index = self._some_place()
        response = await self._ask(
            elect.ElectLeadersRequest(
                election_type=0,
                topic_partitions=[elect.TopicPartitions(topic=plan.name, partitions=[index])],
                timeout_ms=1_500,
            )
        )
        self._expect(response.error_code)
        self.world.counts["preferred_elections"] += 1

    async def rescue(self, places: list[tuple[str, int]]) -> None:
        """Where nobody is left who was in sync, and the last leader has no disk any more, only an
        unclean election helps, and only an administrator may ask for it.
        """
        for name, index in places:
            self.world.note(
                f"the administrator gives up what only lost disks had of {name}-{index}"
            )
            self.world.counts["rescues"] += 1
            if await self._is_lost(name, index):
                await self._make_directory(name, index)

    async def _is_lost(self, name: str, index: int) -> bool:
        """Whether the unclean election finds no replica. While a replica lives, it is repeated: the
        controller may learn of a broker or a log only after its answer.
        """
        for _ in range(RESCUE_TRIES):
            error = await self._elect_unclean(name, index)
            if error is not ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
                return False
            if not self.world.living_replicas(name, index):
                return True
            await self.world.loop.elapse(RESCUE_PAUSE_MS)
        self.world.guard(self.world.check_is_lost, name, index)
        return True

    async def _elect_unclean(self, name: str, index: int) -> ErrorCode | None:
        """The partition's error; None when no controller answers."""
        request = elect.ElectLeadersRequest(
            election_type=UNCLEAN,
            topic_partitions=[elect.TopicPartitions(topic=name, partitions=[index])],
            timeout_ms=1_500,
        )
        for _ in range(RESCUE_TRIES):
            try:
                response = await self._ask(request)
            except ControllerUnavailable:
                await self.world.loop.elapse(RESCUE_PAUSE_MS)
                continue
            self._expect(response.error_code)
            for result in response.replica_election_results:
                return ErrorCode.of(result.partition_result[0].error_code)
        return None

    async def _make_directory(self, name: str, index: int) -> None:
        """All its replicas lay on disks that are lost: one begins empty, as docs/operations.md
        says. It is told to the controller when the broker has started, therefore several tries.
        """
        partition = self.world.ledger.image.topics.topics_by_name[name].partitions[index]
        broker = self.world.brokers[partition.replicas[0] - 1]
        self.world.note(f"the administrator makes {name}-{index} on {broker.host}")
        self.world.counts["directories_made"] += 1
        broker.is_held = True
        broker.kill()
        await self.world.loop.elapse(RESCUE_PAUSE_MS)
        broker.make_partition_directory(f"{name}-{index}")
        broker.is_held = False
        broker.start()
        for _ in range(RESCUE_TRIES):
            if await self._elect_unclean(name, index) is ErrorCode.NONE:
                return
            await self.world.loop.elapse(RESCUE_PAUSE_MS)

    async def _alter(self) -> None:
        plan, _index = self._some_place()
        await self._set_minimum(plan, str(self.random.randint(1, 2)))

    async def set_minimum(self, plan: TopicPlan, value: str) -> None:
        """As `_alter`, now, beside what else it does, whether it succeeds or not."""
        try:
            await self._set_minimum(plan, value)
        except (ControllerUnavailable, *NO_ANSWER):
            self.world.counts["undecided"] += 1

    async def _set_minimum(self, plan: TopicPlan, value: str) -> None:
        """`min.insync.replicas`, of a topic or the default of the cluster."""
        if plan.replication_factor < 2:
            return
        resource = (TOPIC_RESOURCE, plan.name)
        if plan.min_insync_replicas is None:
            resource = (BROKER_RESOURCE, CLUSTER_DEFAULT)
        response = await self._ask(
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.AlterConfigsResource(
                        resource_type=resource[0],
                        resource_name=resource[1],
                        configs=[
                            configs.AlterableConfig(
                                name="min.insync.replicas", config_operation=SET, value=value
                            )
                        ],
                    )
                ]
            )
        )
        self._expect(response.responses[0].error_code)
        self.world.note(f"min.insync.replicas of {resource[1] or 'the cluster'} is {value}")

    async def recreate(self) -> None:
        """Delete a topic and create another of its name."""
        plans = [plan for plan in self.world.topics if plan.is_recreated]
        if not plans:
            return
        plan = self.random.choice(plans)
        topic_id = self.world.ledger.image.topics.topics_by_name[plan.name].topic_id
        self.world.ledger.deletions_asked.add(plan.name)
        self.world.note(f"{plan.name} is deleted: {topic_id}")
        while not await self._delete_topic(topic_id):
            await self.world.loop.elapse(100.0)
        await self.world.loop.elapse(self.random.choice((0.0, 0.0, 50.0, 1_000.0)))
        while not await self._create(plan):
            await self.world.loop.elapse(100.0)
        self.world.note(f"{plan.name} is created again")
        self.world.counts["topics_recreated"] += 1

    async def _delete_topic(self, topic_id: UUID) -> bool:
        """By its id: an earlier copy of the request that comes late does not hit the next topic."""
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=None, topic_id=topic_id)],
            timeout_ms=2_000,
        )
        try:
            result = (await self._ask(request)).responses[0]
        except ControllerUnavailable:
            return False
        self._expect(result.error_code)
        return result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)

    async def _delete(self) -> None:
        plan, index = self._some_place()
        view = await self._brokers.leader(plan.name, index)
        topic = self.world.ledger.image.topics.topics_by_name.get(plan.name)
        if view is None or topic is None:
            return
        truth = self.world.data.truth((topic.topic_id, index))
        end_offset = truth.committed.end_offset
        if end_offset <= truth.deleted_to:
            return
        offset = self.random.choice((HIGH_WATERMARK, (truth.deleted_to + end_offset) // 2))
        response = await self._brokers.ask(
            view.leader_id,
            delete.DeleteRecordsRequest(
                topics=[
                    delete.DeleteRecordsTopic(
                        name=plan.name,
                        partitions=[
                            delete.DeleteRecordsPartition(partition_index=index, offset=offset)
                        ],
                    )
                ],
                timeout_ms=1_500,
            ),
        )
        result = response.topics[0].partitions[0]
        self._expect(result.error_code)
        if result.error_code == ErrorCode.NONE:
            self.world.counts["records_deleted"] += 1
        else:
            await self._brokers.refresh(plan.name)

    def _expect(self, error_code: int) -> None:
        if error_code in UNEXPECTED:
            raise Violation("unexpected-error", f"{self.host}: {ErrorCode.of(error_code).name}")
