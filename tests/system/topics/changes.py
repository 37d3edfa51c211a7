"""What happens to the topics: deleted and created again, grown, moved, led by others.

Owns the random changes, one line of them per topic, and says each change of phase to the account.
Must not produce or consume. Invariant: a topic is LIVE when every broker knows its id, and not
before; outside of a round every topic is LIVE and every partition has a leader.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final
from uuid import UUID

from moldau.client import (
    Admin,
    ElectionType,
    InvalidRequest,
    KafkaError,
    NewPartitions,
    NewTopic,
    TopicPartition,
)
from moldau.protocol import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.testing import Cluster, NodeFailed
from tests.interop.raw.probe import connected
from tests.kit.waiting import until_async
from tests.system.topics.account import Account, Phase, Topic
from tests.system.topics.pauses import pause

MAX_PARTITIONS: Final = 6
NEW_PARTITIONS: Final = (1, 2, 3, 4)
PAUSE_S: Final = (0.1, 1.5)
GONE_S: Final = (0.0, 2.0)
AT_ONCE: Final = 0.4
"""How often a topic is created at once after it was deleted."""
LED_BEFORE: Final = 0.6
"""How often a topic gets other leaders right before it is deleted: its epochs are above 0."""
DEADLINE_S: Final = 180.0
"""A broker that starts on a machine that is busy with other things may need minutes."""
REPLICAS: Final = 2
"""The replicas of each partition: on one of three brokers there is none, so that there is where to
move to.
"""
WEIGHTS: Final = {"create again": 3, "grow": 1, "move": 2, "lead": 3}
RESTART_S: Final = (8.0, 20.0)


class Changes:
    """Random changes while `run` runs.

    Attributes:
        counts: how often what was done.
    """

    def __init__(self, cluster: Cluster, admin: Admin, account: Account, dice: Random) -> None:
        self._cluster = cluster
        self._admin = admin
        self._account = account
        self._dice = dice
        self._addresses = cluster.bootstrap_server.split(",")
        self.counts: Counter[str] = Counter()

    async def begin(self) -> None:
        """Make the topics."""
        for topic in self._account.topics.values():
            await self._create(topic)

    async def run(self, seconds: float, *, restarts: bool) -> None:
        """One round; at its end all topics are LIVE."""
        end = asyncio.get_running_loop().time() + seconds
        lines = [
            self._line(Random(self._dice.random()), topic, end)
            for topic in self._account.topics.values()
        ]
        if restarts:
            lines.append(self._restart_brokers(Random(self._dice.random()), end))
        await asyncio.gather(*lines)
        for topic in self._account.topics.values():
            await self._settled(topic)

    async def _line(self, dice: Random, topic: Topic, end: float) -> None:
        work: dict[str, Callable[[Random, Topic], Awaitable[bool]]] = {
            "create again": self._create_again,
            "grow": self._grow,
            "move": self._move,
            "lead": self._lead,
        }
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            await pause(dice.uniform(*PAUSE_S))
            [kind] = dice.choices([*WEIGHTS], [*WEIGHTS.values()])
            if await work[kind](dice, topic):
                self.counts[kind] += 1

    # -- what is done ---------------------------------------------------------------------------

    async def _create_again(self, dice: Random, topic: Topic) -> bool:
        if dice.random() < LED_BEFORE:
            await self._lead(dice, topic)
        with suppress(KafkaError):
            found = await self._admin.describe_topics([topic.name])
            if any(each.leader_epoch > 0 for each in found[topic.name].partitions):
                self.counts["created again after epochs above 0"] += 1
        topic.phase = Phase.DELETING
        await self._repeat(lambda: self._admin.delete_topics([topic.name]), "UNKNOWN_TOPIC")
        topic.phase = Phase.GONE
        if dice.random() >= AT_ONCE:
            await pause(dice.uniform(*GONE_S))
        await self._create(topic, dice)
        return True

    async def _create(self, topic: Topic, dice: Random | None = None) -> None:
        dice = dice or self._dice
        count = dice.choice(NEW_PARTITIONS)
        assignment = {number: self._replicas(dice) for number in range(count)}
        topic.phase = Phase.CREATING
        new = NewTopic(topic.name, replica_assignment=assignment)
        await self._repeat(lambda: self._admin.create_topics([new]), "TOPIC_ALREADY_EXISTS")
        topic_id = await self._known_everywhere(topic.name)
        assert topic_id not in topic.ids, f"{topic.name} has the id of a former one: {topic_id}"
        topic.ids.append(topic_id)
        topic.partition_count = count
        topic.phase = Phase.LIVE

    async def _grow(self, dice: Random, topic: Topic) -> bool:
        if topic.partition_count >= MAX_PARTITIONS:
            return False
        count = topic.partition_count + dice.randint(1, MAX_PARTITIONS - topic.partition_count)
        added = [self._replicas(dice) for _ in range(count - topic.partition_count)]
        grown = NewPartitions(count, added)
        try:
            await self._repeat(
                lambda: self._admin.create_partitions({topic.name: grown}), "INVALID_PARTITIONS"
            )
        except InvalidRequest as error:
            # While the first partition moves it has more replicas than the new ones would.
            if error.code is not ErrorCode.INVALID_REPLICA_ASSIGNMENT:
                raise
            return False
        topic.partition_count = count
        return True

    async def _move(self, dice: Random, topic: Topic) -> bool:
        partition = TopicPartition(topic.name, dice.randrange(topic.partition_count))
        target = self._replicas(dice)
        with suppress(KafkaError):  # one that is under way yet, a broker that is down
            await self._admin.alter_partition_reassignments({partition: target}, timeout_ms=5_000)
            return True
        return False

    async def _lead(self, dice: Random, topic: Topic) -> bool:
        """Another order of the replicas, and the first of them elected."""
        with suppress(KafkaError):
            found = (await self._admin.describe_topics([topic.name]))[topic.name]
            moves = {}
            for each in found.partitions:
                others = [node for node in each.replicas if node != each.leader]
                if len(others) == REPLICAS - 1 and each.leader in each.replicas:
                    dice.shuffle(others)
                    moves[TopicPartition(topic.name, each.partition)] = [*others, each.leader]
            if not moves:
                return False
            await self._admin.alter_partition_reassignments(moves, timeout_ms=5_000)
            outcome = await self._admin.elect_leaders(
                ElectionType.PREFERRED, list(moves), timeout_ms=5_000
            )
            self.counts["leaders elected"] += sum(error is None for error in outcome.values())
            return True
        return False

    async def _restart_brokers(self, dice: Random, end: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            running_s = dice.uniform(*RESTART_S)
            if loop.time() + running_s > end:
                return
            await pause(running_s)
            index = dice.randrange(len(self._addresses))
            broker_id = self._cluster.broker_ids[index]
            ending = self._cluster.stop if dice.random() < 0.5 else self._cluster.kill
            await asyncio.to_thread(ending, broker_id)
            await asyncio.to_thread(self._start_again, broker_id)
            self.counts["broker restarts"] += 1

    def _start_again(self, broker_id: int) -> None:
        """A machine that is busy with other things may need longer than a node is given."""
        for is_last in (False, False, True):
            try:
                self._cluster.restart(broker_id)
                return
            except NodeFailed:
                self.counts["restarts that took too long"] += 1
                if is_last:
                    raise

    # -- inner workings -------------------------------------------------------------------------

    def _replicas(self, dice: Random) -> list[int]:
        return dice.sample(self._cluster.broker_ids, REPLICAS)

    async def _repeat(self, call: Callable[[], Awaitable[Any]], done: str) -> None:
        """Repeat until it is done: a try whose answer was lost, which may be one of the client's
        own, may have done it (the code `done`).
        """

        async def attempt() -> bool:
            try:
                await call()
            except KafkaError as error:
                code = "" if error.code is None else error.code.name
                if not code.startswith(done) and not error.retriable:
                    raise
                return code.startswith(done)
            return True

        await until_async(attempt, what=f"{done} would say it is done", deadline_s=DEADLINE_S)

    async def _known_everywhere(self, name: str) -> UUID:
        """The id that all brokers give the topic, none of them a former one's."""
        former = set(self._account.topics[name].ids)

        async def look() -> UUID | None:
            ids = [await _id_at(address, name) for address in self._addresses]
            found = {each for each in ids if each is not None}
            if None in ids or len(found) != 1 or found & former:
                return None
            return found.pop()

        found = await until_async(
            look, what=f"all brokers know the new {name}", deadline_s=DEADLINE_S
        )
        assert found is not None
        return found

    async def _settled(self, topic: Topic) -> None:
        async def look() -> bool:
            with suppress(KafkaError):
                found = (await self._admin.describe_topics([topic.name]))[topic.name]
                return len(found.partitions) == topic.partition_count and all(
                    each.leader >= 0 for each in found.partitions
                )
            return False

        await until_async(look, what=f"leaders of {topic.name}", deadline_s=DEADLINE_S)


async def _id_at(address: str, name: str) -> UUID | None:
    """The topic's id as this broker knows it; None when it knows none, or does not answer."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    with suppress(OSError, KafkaError, TimeoutError):
        async with asyncio.timeout(2), connected(address) as connection:
            response = await connection.send(request)
            found = response.topics[0]
            topic_id: UUID = found.topic_id
            return topic_id if not found.error_code else None
    return None
