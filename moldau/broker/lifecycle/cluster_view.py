"""One metadata image as clients of one listener see it: brokers, topics and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from moldau.metadata.image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.protocol.coordinator_records import INTERNAL_TOPICS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p03_metadata as p03
from moldau.protocol.messages import p75_describe_topic_partitions as p75

NO_LEADER: Final = -1
NO_OPERATIONS_ASKED: Final = -(2**31)

PartitionT = TypeVar(
    "PartitionT", p03.MetadataResponsePartition, p75.DescribeTopicPartitionsResponsePartition
)


def is_internal_topic(topic_name: str) -> bool:
    return topic_name in INTERNAL_TOPICS


def alive_brokers(image: MetadataImage) -> dict[int, BrokerRegistration]:
    """The registered brokers that are not fenced, by id in ascending order."""
    brokers = sorted(image.cluster.brokers.items())
    return {
        broker_id: registration for broker_id, registration in brokers if not registration.fenced
    }


def metadata_brokers(image: MetadataImage, listener_name: str) -> list[p03.MetadataResponseBroker]:
    """Every live broker that can be reached through `listener_name`, as Metadata lists them."""
    return [
        p03.MetadataResponseBroker(
            node_id=broker_id,
            host=registration.listeners[listener_name].host,
            port=registration.listeners[listener_name].port,
            rack=registration.rack,
        )
        for broker_id, registration in alive_brokers(image).items()
        if listener_name in registration.listeners
    ]


def partition_state(
    partition: PartitionRegistration,
    alive: Mapping[int, BrokerRegistration],
    listener_name: str,
) -> tuple[ErrorCode, int, list[int]]:
    """The error, the leader to name and the offline replicas of one partition, seen from a
    listener.

    A leader that is fenced or gone is LEADER_NOT_AVAILABLE; one that has no such listener is
    LISTENER_NOT_FOUND (KIP-302's reading of listeners).
    """
    offline_replicas = [replica for replica in partition.replicas if replica not in alive]
    leader = alive.get(partition.leader)
    if leader is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline_replicas
    if listener_name not in leader.listeners:
        return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER, offline_replicas
    return ErrorCode.NONE, partition.leader, offline_replicas


def described_partitions(
    entry: type[PartitionT],
    topic: TopicImage,
    partition_indexes: Iterable[int],
    alive: Mapping[int, BrokerRegistration],
    listener_name: str,
) -> list[PartitionT]:
    """Partition entries of Metadata, or of DescribeTopicPartitions but for the eligible leaders."""
    described = []
    for partition_index in partition_indexes:
        registration = topic.partitions[partition_index]
        error, leader_id, offline_replicas = partition_state(registration, alive, listener_name)
        described.append(
            entry(
                error_code=error,
                partition_index=partition_index,
                leader_id=leader_id,
                leader_epoch=registration.leader_epoch,
                replica_nodes=list(registration.replicas),
                isr_nodes=list(registration.isr),
                offline_replicas=offline_replicas,
            )
        )
    return described
