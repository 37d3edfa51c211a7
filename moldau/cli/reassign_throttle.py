"""The throttle of moves, set and taken away as kafka-reassign-partitions does it (KIP-73).

Owns which keys are set on which brokers and topics. Must not talk to a cluster except through
`moldau.client`. Invariant: what is taken away is named, and nothing that was not set is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from moldau.client import (
    Admin,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    TopicPartition,
    UnknownTopicOrPartition,
)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
BROKER_KEYS = (LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)
TOPIC_KEYS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


class Move(NamedTuple):
    """The replicas of one partition before and after."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        """The replicas that have to be copied."""
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """The replicas that are given up."""
        return tuple(each for each in self.before if each not in self.after)


def topic_throttles(moves: Mapping[TopicPartition, Move]) -> dict[str, dict[str, str]]:
    """The lists of throttled replicas by topic: those copied from, and those copied to."""
    throttles: dict[str, dict[str, list[str]]] = {}
    for partition, move in sorted(moves.items()):
        if not move.added:
            continue
        lists = throttles.setdefault(partition.topic, {key: [] for key in TOPIC_KEYS})
        lists[LEADER_REPLICAS] += [f"{partition.partition}:{each}" for each in move.before]
        lists[FOLLOWER_REPLICAS] += [f"{partition.partition}:{each}" for each in move.added]
    return {
        topic: {key: ",".join(values) for key, values in lists.items()}
        for topic, lists in throttles.items()
    }


def throttled_brokers(moves: Mapping[TopicPartition, Move]) -> list[int]:
    """The brokers that send or receive."""
    ids = {each for move in moves.values() if move.added for each in (*move.before, *move.added)}
    return sorted(ids)


async def set_throttle(
    admin: Admin,
    moves: Mapping[TopicPartition, Move],
    bytes_per_second: int,
    live_broker_ids: Collection[int],
) -> list[int]:
    """Throttle moves before they begin; the brokers that could not be told, since they are down.

    Lists that a topic has already are replaced, as Kafka's tool does. Raises: KafkaError
    """
    assert bytes_per_second > 0
    brokers = throttled_brokers(moves)
    changes: dict[ConfigResource, list[ConfigChange]] = {
        ConfigResource(ConfigResourceType.TOPIC, topic): [
            ConfigChange(key, value) for key, value in values.items()
        ]
        for topic, values in topic_throttles(moves).items()
    }
    await admin.alter_configs(changes)
    rate = str(bytes_per_second)
    await admin.alter_configs(
        {
            ConfigResource(ConfigResourceType.BROKER, str(broker_id)): [
                ConfigChange(LEADER_RATE, rate),
                ConfigChange(FOLLOWER_RATE, rate),
            ]
            for broker_id in brokers
            if broker_id in live_broker_ids
        }
    )
    return [broker_id for broker_id in brokers if broker_id not in live_broker_ids]


async def clear_throttles(admin: Admin, topics: Iterable[str]) -> list[str]:
    """Take throttles from all brokers that answer and from topics; what was cleared.

    Raises: KafkaError
    """
    brokers = (await admin.describe_cluster()).brokers
    cleared = []
    for broker in brokers:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker.node_id))
        if await _reset(admin, resource, BROKER_KEYS, ConfigSource.DYNAMIC_BROKER_CONFIG):
            cleared.append(f"broker {broker.node_id}")
    for topic in sorted(set(topics)):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        try:
            if await _reset(admin, resource, TOPIC_KEYS, ConfigSource.DYNAMIC_TOPIC_CONFIG):
                cleared.append(f"topic {topic}")
        except UnknownTopicOrPartition:
            continue  # deleted meanwhile, with its configuration
    return cleared


async def _reset(
    admin: Admin, resource: ConfigResource, keys: Iterable[str], source: ConfigSource
) -> bool:
    """Delete those of the keys that are set on the resource itself; whether any was."""
    entries = (await admin.describe_configs([resource]))[resource]
    found = [key for key in keys if key in entries and entries[key].source == source]
    if found:
        changes = [ConfigChange(key, None, ConfigOperation.DELETE) for key in found]
        await admin.alter_configs({resource: changes})
    return bool(found)
