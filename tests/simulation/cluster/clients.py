"""Simulated administrators: create, alter and delete topics through the active controller.

Owns: what a client has asked for and the answers. Must not: know images beyond what the
ledger's latest shows any client. Invariant: names are never used again; values are unique.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p43_elect_leaders as elect
from moldau.protocol.messages import p44_incremental_alter_configs as configs
from moldau.protocol.messages import p45_alter_partition_reassignments as reassign
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.schema import Message
from tests.kit.seeds import Violation
from tests.simulation.cluster.link import ControllerLink
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

TOPIC_RESOURCE = 2
SET = 0
MAX_TOPICS = 12
UNEXPECTED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR})


class SimulatedClient:
    """One administrator who does one thing after the other."""

    def __init__(self, world: World, client_number: int, random: Random) -> None:
        self.world = world
        self.random = random
        self.host = f"client-{client_number}"
        self.process = Process(world.loop, self.host)
        self._link = ControllerLink(
            world.loop,
            world.fabric.port_of(self.process, self.host),
            random,
            world.controller_addresses,
            self.host,
        )
        self._topics: dict[str, int] = {}
        """Topics that exist by this client's answers, with their partitions."""
        self._number = 0
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.world.client_pause_ms))
            if not self.world.clients_may_act:
                continue
            action = self.random.choices(
                (self._create, self._delete, self._alter, self._add, self._elect, self._reassign),
                (5, 1.5, 3, 1.5, 2, 2),
            )[0]
            try:
                await action()
            except ControllerUnavailable:
                self.world.counts["undecided"] += 1

    async def create_one(self) -> bool:
        """Create a topic of one replica; whether it was acknowledged."""
        try:
            return await self._create(1)
        except ControllerUnavailable:
            return False

    async def _ask(self, request: Message) -> Any:
        self.world.counts["requests"] += 1
        return await self._link.send_once(request)

    async def _create(self, replication_factor: int = 0) -> bool:
        if not replication_factor:
            if len(self._topics) >= MAX_TOPICS:
                return False
            replication_factor = self.random.randint(1, min(3, len(self.world.brokers)))
        self._number += 1
        name = f"{self.host}.t{self._number}"
        partition_count = self.random.randint(1, 3)
        response = await self._ask(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partition_count,
                        replication_factor=replication_factor,
                    )
                ],
                timeout_ms=1_500,
            )
        )
        result = response.topics[0]
        self._expect(result.error_code)
        if result.error_code != ErrorCode.NONE:
            return False
        self.world.ledger.acknowledged_create(name, result.topic_id, partition_count)
        self._topics[name] = partition_count
        return True

    async def _delete(self) -> None:
        name = self._some_topic()
        if name is None:
            return
        self.world.ledger.deletions_asked.add(name)
        del self._topics[name]
        response = await self._ask(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1_500)
        )
        result = response.responses[0]
        self._expect(result.error_code)
        if result.error_code == ErrorCode.NONE:
            self.world.ledger.acknowledged_delete(result.topic_id)
        elif result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise Violation("acknowledged-lost", f"{name} does not exist when it is deleted")

    async def _alter(self) -> None:
        name = self._some_topic()
        if name is None:
            return
        self._number += 1
        value = str(1_000_000 + self._number)
        response = await self._ask(
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.AlterConfigsResource(
                        resource_type=TOPIC_RESOURCE,
                        resource_name=name,
                        configs=[
                            configs.AlterableConfig(
                                name="retention.ms", config_operation=SET, value=value
                            )
                        ],
                    )
                ]
            )
        )
        result = response.responses[0]
        self._expect(result.error_code)
        if result.error_code == ErrorCode.NONE:
            self.world.ledger.acknowledged_config(name, "retention.ms", value)

    async def _add(self) -> None:
        name = self._some_topic()
        if name is None or self._topics[name] >= 5:
            return
        wanted = self._topics[name] + 1
        response = await self._ask(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=wanted, assignments=None)],
                timeout_ms=1_500,
            )
        )
        error_code = response.results[0].error_code
        self._expect(error_code)
        topic = self.world.ledger.image.topics.topics_by_name.get(name)
        if error_code == ErrorCode.NONE:
            if topic is None or len(topic.partitions) < wanted:
                raise Violation("acknowledged-lost", f"{wanted} partitions of {name}: {topic}")
            self.world.ledger.acknowledged_count += 1
        if topic is not None:
            self._topics[name] = len(topic.partitions)

    async def _elect(self) -> None:
        everything = self.random.random() < 0.3
        name = self._some_topic()
        if name is None:
            return
        named = [elect.TopicPartitions(topic=name, partitions=[0])]
        response = await self._ask(
            elect.ElectLeadersRequest(
                election_type=0 if everything else self.random.choice((0, 1)),
                topic_partitions=None if everything else named,
                timeout_ms=1_500,
            )
        )
        self._expect(response.error_code)
        for topic in response.replica_election_results:
            for partition in topic.partition_result:
                self._expect(partition.error_code)

    async def _reassign(self) -> None:
        name = self._some_topic()
        if name is None:
            return
        broker_ids = [broker.broker_id for broker in self.world.brokers]
        replicas: list[int] | None = self.random.sample(
            broker_ids, self.random.randint(1, min(3, len(broker_ids)))
        )
        if self.random.random() < 0.25:
            replicas = None
        response = await self._ask(
            reassign.AlterPartitionReassignmentsRequest(
                topics=[
                    reassign.ReassignableTopic(
                        name=name,
                        partitions=[
                            reassign.ReassignablePartition(partition_index=0, replicas=replicas)
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
                    self.world.counts["reassignments"] += 1

    def _some_topic(self) -> str | None:
        return self.random.choice(sorted(self._topics)) if self._topics else None

    def _expect(self, error_code: int) -> None:
        if error_code in UNEXPECTED:
            raise Violation("unexpected-error", f"{self.host}: {ErrorCode.of(error_code).name}")
