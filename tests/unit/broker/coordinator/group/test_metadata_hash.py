"""The hash of a group's topics is the number Apache Kafka 4.3 computes.

The golden numbers come from `Utils.computeTopicHash` and `computeGroupHash` of its group
coordinator, called with the same topics.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from moldau.broker.coordinator.group.core.metadata_hash import TopicHashes, topic_hash

GOLDEN = {
    "foo": -8832753732432981234,
    "flights": 2221084652252148187,
    "empty": -2249530462075804672,
}
GROUP = -6328524342499453076


def topic(name: str, topic_id: int, *replicas: list[int]) -> Any:
    return SimpleNamespace(
        name=name,
        topic_id=UUID(int=topic_id),
        partitions={
            index: SimpleNamespace(replicas=brokers) for index, brokers in enumerate(replicas)
        },
    )


def image() -> Any:
    topics = [
        topic("foo", 0x0102030405060708_1112131415161718, [], [4], [9]),
        topic("flights", 0x8122334455667788_99AABBCCDDEEFF00, [1, 2], [3]),
        topic("empty", 0x0000000000000001_0000000000000002),
    ]
    racks = {1: "b", 2: "a", 3: "rack-é", 4: None}
    return SimpleNamespace(
        cluster=SimpleNamespace(
            brokers={broker_id: SimpleNamespace(rack=rack) for broker_id, rack in racks.items()}
        ),
        topics=SimpleNamespace(topics_by_name={each.name: each for each in topics}),
    )


def test_topics_and_groups_have_kafkas_hashes() -> None:
    known = image()
    topics = known.topics.topics_by_name
    assert {name: topic_hash(topics[name], known) for name in topics} == GOLDEN
    assert TopicHashes().of_group(["foo", "gone", "flights", "empty"], known) == GROUP


def test_topics_that_do_not_exist_do_not_count() -> None:
    assert TopicHashes().of_group(["gone"], image()) == 0
    assert TopicHashes().of_group([], image()) == 0


def test_a_changed_topic_is_hashed_again() -> None:
    hashes, known = TopicHashes(), image()
    before = hashes.of_group(["foo"], known)
    known.topics.topics_by_name["foo"].partitions[3] = SimpleNamespace(replicas=[1])
    hashes.forget("foo")
    assert hashes.of_group(["foo"], known) != before
