"""A simulated administrator: topics, reassignments, elections, deletions, configuration.

Owns: what was asked for, with the product's admin client. Must not: wait for reassignments to end.
Invariants: the topics of a run exist before other clients act; a topic that is deleted is created
again before anything else is done; what a call says is done is committed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.client import (
    Admin,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    NewTopic,
)
from moldau.client.errors import KafkaError, TopicAlreadyExists
from moldau.protocol.error_responses import has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p20_delete_topics as delete_topics
from moldau.protocol.schema import AnyRequest
from moldau.protocol.types import TopicPartition
from tests.kit.seeds import Violation
from tests.simulation.clients import ClientHost, is_passing

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

CLUSTER_DEFAULT = ""
HIGH_WATERMARK = -1
RESCUE_TRIES = 50
RESCUE_PAUSE_MS = 500.0
LAWFUL = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
)
"""Answers that say why not, beside those that ask for another try."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the run; one without its own minimum has the cluster's.

    `allows_unclean`: its name says so to the ledger.
    """

    name: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int | None
    allows_unclean: bool = False
    segment_ms: int = 604_800_000
    is_recreated: bool = False


class Administrator(ClientHost):
    """One client that does one thing after the other; it is not killed."""

    def __init__(self, world: ReplicationWorld, random: Random) -> None:
        super().__init__(world, "administrator", random)
        self.world = world
        self.pause_ms = random.choice((500.0, 2_000.0, 6_000.0))
        self.is_busy = False
        self._may_begin = False
        self.start()

    def start(self) -> None:
        super().start()
        settings: dict[str, Any] = {
            "request_timeout_ms": self.random.choice((1_000, 2_000)),
            "default_api_timeout_ms": self.random.choice((1_500, 5_000)),
            "socket_connection_setup_timeout_ms": 1_000,
            "reconnect_backoff_max_ms": self.random.choice((100, 1_000)),
            "retry_backoff_max_ms": self.random.choice((200, 1_000)),
        }
        if self.random.random() < 0.5:
            settings["retries"] = 2**31 - 1
        self.brokers = self.made(Admin(self.servers, ports=self.ports(), **settings))
        """Asks brokers, which forward what is the controller's."""
        self.controllers = self.brokers
        if self.random.random() < 0.5:
            addresses = [f"{host}:{port}" for host, port in self.world.controller_addresses]
            self.controllers = self.made(
                Admin(bootstrap_controllers=addresses, ports=self.ports(), **settings)
            )

    async def live(self) -> None:
        """Act from `begin` on, while the world allows it."""
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.pause_ms))
            if not self._may_begin or not self.world.administrator_may_act:
                continue
            self.is_busy = True
            await self.attempt(self.random.choice(self.actions())())
            self.is_busy = False

    async def create_topics(self, plans: list[TopicPlan]) -> None:
        """Create the topics of the run, however long it takes."""
        for plan in plans:
            while not await self._create(plan):
                await self.world.loop.elapse(100.0)

    def begin(self) -> None:
        """Act from now on, while the world allows it."""
        self._may_begin = True

    def actions(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What it may do."""
        return (self._reassign, self._elect, self._delete, self._alter, self.recreate)

    @property
    def may_alter(self) -> bool:
        """Whether minimums change in this world."""
        return self._alter in self.actions()

    async def attempt(self, call: Awaitable[Any]) -> Any:
        """What a call returns; None, when it fails as faults or its arguments make it fail."""
        try:
            return await call
        except KafkaError as error:
            self.world.counts["undecided"] += 1
            self._judge(error)
            return None

    def _judge(self, error: KafkaError) -> None:
        if not is_passing(error) and error.code not in LAWFUL:
            self.world.violated("unexpected-error", f"{self.host}: {error!r}")

    async def _ask(self, request: AnyRequest) -> Any:
        """One attempt with a request for which the admin client has no call. Raises OSError,
        TimeoutError.
        """
        try:
            response = await self.controllers._client.ask_controller(request)
        except KafkaError as error:
            raise TimeoutError(str(error)) from error
        if has_error(response, ErrorCode.NOT_CONTROLLER):
            self.controllers._client.metadata.controller_id = -1
            raise TimeoutError("not the active controller, or not any more")
        return response

    # -- topics ----------------------------------------------------------------------------------

    async def _create(self, plan: TopicPlan) -> bool:
        settings = {
            "unclean.leader.election.enable": str(plan.allows_unclean).lower(),
            "segment.ms": str(plan.segment_ms),
            "segment.index.bytes": "1024",
        }
        if plan.min_insync_replicas is not None:
            settings["min.insync.replicas"] = str(plan.min_insync_replicas)
        topic = NewTopic(plan.name, plan.partitions, plan.replication_factor, settings)
        created = await self.attempt(self._unless_it_exists(topic))
        if created:
            self.world.guard(self._check_created, plan, created, settings)
        return created is not None and plan.name in self.world.ledger.image.topics.topics_by_name

    async def _unless_it_exists(self, topic: NewTopic) -> dict[str, UUID]:
        """The topic's id by its name; nothing when an earlier try has made it, which was not
        answered.
        """
        try:
            return await self.controllers.create_topics([topic])
        except TopicAlreadyExists:
            return {}

    def _check_created(
        self, plan: TopicPlan, created: dict[str, UUID], settings: dict[str, str]
    ) -> None:
        ledger = self.world.ledger
        ledger.acknowledged_create(plan.name, created[plan.name], plan.partitions)
        for name, value in settings.items():
            ledger.acknowledged_config(plan.name, name, value)
        topic = ledger.image.topics.topics_by_id.get(created[plan.name])
        for partition in () if topic is None else topic.partitions.values():
            if len(partition.replicas) < plan.replication_factor:
                raise Violation("created-otherwise", f"{plan}: {topic}")

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
        """Delete it by its id, which the admin client does not offer: an earlier copy of the
        request that comes late does not hit the next topic.
        """
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=None, topic_id=topic_id)],
            timeout_ms=2_000,
        )
        try:
            result = (await self._ask(request)).responses[0]
        except (OSError, TimeoutError):
            return False
        self._expect(result.error_code)
        if result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
            if result.error_code == ErrorCode.NONE:
                self.world.guard(self.world.ledger.acknowledged_delete, topic_id)
            # A broker that lags does not know the topic yet.
            return topic_id in self.world.ledger.topics_deleted
        return False

    def _expect(self, error_code: int) -> None:
        if error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
            raise Violation("unexpected-error", f"{self.host}: {ErrorCode.of(error_code).name}")

    async def _alter(self) -> None:
        plan, _index = self._some_place()
        await self.set_minimum(plan, str(self.random.randint(1, 2)))

    async def set_minimum(self, plan: TopicPlan, value: str) -> None:
        """`min.insync.replicas`, of a topic or the default of the cluster, now, beside what else it
        does, whether it succeeds or not.
        """
        if plan.replication_factor < 2:
            return
        resource = ConfigResource(ConfigResourceType.TOPIC, plan.name)
        if plan.min_insync_replicas is None:
            resource = ConfigResource(ConfigResourceType.BROKER, CLUSTER_DEFAULT)
        change = ConfigChange("min.insync.replicas", value)
        call = self._done(self.controllers.alter_configs({resource: [change]}))
        if await self.attempt(call):
            where = resource.name or "the cluster"
            self.world.note(f"min.insync.replicas of {where} is {value}")
            self.world.guard(
                self.world.ledger.acknowledged_config, resource.name, change.name, value
            )

    @staticmethod
    async def _done(call: Awaitable[object]) -> bool:
        await call
        return True

    # -- partitions ------------------------------------------------------------------------------

    def _some_place(self) -> tuple[TopicPlan, int]:
        plan = self.random.choice(self.world.topics)
        return plan, self.random.randrange(plan.partitions)

    async def _reassign(self) -> None:
        plan, index = self._some_place()
        broker_ids = [broker.broker_id for broker in self.world.brokers]
        replicas: list[int] | None = self.random.sample(broker_ids, plan.replication_factor)
        if self.random.random() < 0.2:
            replicas = None
        place = TopicPartition(plan.name, index)
        call = self.controllers.alter_partition_reassignments({place: replicas})
        if await self.attempt(self._done(call)):
            self.world.note(f"reassigned {place} to {replicas}")
            self.world.counts["reassignments"] += 1
            if replicas is not None:
                self.world.guard(self._check_reassigned, place, tuple(replicas))

    def _check_reassigned(self, place: TopicPartition, replicas: tuple[int, ...]) -> None:
        """Some time it had these replicas, or was on its way to them."""
        found = [
            each
            for each in self.world.data.partitions.values()
            # What follows "~" distinguishes topics of one name.
            if re.sub(r"~\d+-", "-", each.name) == f"{place.topic}-{place.partition}"
        ]
        if not any(replicas in each.targets for each in found):
            raise Violation("acknowledged-lost", f"the move of {place} to {replicas}")

    async def _elect(self) -> None:
        plan, index = self._some_place()
        place = TopicPartition(plan.name, index)
        call = self.controllers.elect_leaders(ElectionType.PREFERRED, [place])
        outcome = await self.attempt(call)
        if outcome is not None:
            self.world.counts["preferred_elections"] += 1
            if outcome[place] is not None:
                self._judge(outcome[place])

    async def rescue(self, places: list[tuple[str, int]]) -> None:
        """Where no replica is left that was in sync, and the last leader has no disk any more, only
        an unclean election helps, and only an administrator may ask for it.
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
        place = TopicPartition(name, index)
        for _ in range(RESCUE_TRIES):
            call = self.controllers.elect_leaders(ElectionType.UNCLEAN, [place])
            outcome = await self.attempt(call)
            if outcome is not None:
                problem = outcome[place]
                return ErrorCode.NONE if problem is None else problem.code
            await self.world.loop.elapse(RESCUE_PAUSE_MS)
        return None

    async def _make_directory(self, name: str, index: int) -> None:
        """All its replicas lay on disks that are lost: one begins empty, as docs/operations.md
        says. It is reported to the controller when the broker has started, therefore several tries.
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

    async def _delete(self) -> None:
        plan, index = self._some_place()
        topic = self.world.ledger.image.topics.topics_by_name.get(plan.name)
        if topic is None:
            return
        truth = self.world.data.truth((topic.topic_id, index))
        end_offset = truth.committed.end_offset
        if end_offset <= truth.deleted_to:
            return
        offset = self.random.choice((HIGH_WATERMARK, (truth.deleted_to + end_offset) // 2))
        place = TopicPartition(plan.name, index)
        told = await self.attempt(self.brokers.delete_records({place: offset}))
        if told is not None:
            self.world.counts["records_deleted"] += 1
            is_exempt = truth.lost or truth.allows_unclean
            if not is_exempt and not max(offset, 0) <= told[place] <= truth.deleted_to:
                detail = f"{truth.name} to {offset}: {told}, it is {truth.deleted_to}"
                self.world.violated("deleted-otherwise", detail)
