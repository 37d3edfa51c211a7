"""What must be true of every committed image, and from one image to the next.

Owns: the invariants of Kafka's metadata that need nothing but images. Must not: know the quorum.
Invariant: each check names what it found in the Violation it raises.
"""

from __future__ import annotations

from uuid import UUID

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.values import NO_LEADER, PartitionRegistration
from tests.kit.seeds import Violation


def check_image(image: MetadataImage) -> None:
    """Fenced brokers lead nothing and share no ISR; ISR and leaders are replicas.

    Raises:
        Violation: it is not so.
    """
    brokers = image.cluster.brokers
    active = {
        broker_id
        for broker_id, broker in brokers.items()
        if not broker.fenced and not broker.in_controlled_shutdown
    }
    fenced = {broker_id for broker_id, broker in brokers.items() if broker.fenced}
    for topic in image.topics.topics_by_id.values():
        for index, partition in topic.partitions.items():
            where = f"{topic.name}-{index}: {partition}"
            _check_partition(partition, where)
            if partition.leader != NO_LEADER and partition.leader not in active:
                raise Violation("fenced-leads", f"{where}; {brokers.get(partition.leader)}")
            others = len(partition.isr) > 1
            gone = [each for each in partition.isr if each in fenced or each not in brokers]
            if others and gone:
                raise Violation("fenced-in-isr", f"{gone}; {where}")


def _check_partition(partition: PartitionRegistration, where: str) -> None:
    replicas = set(partition.replicas)
    if len(replicas) != len(partition.replicas):
        raise Violation("replicas-twice", where)
    for name, members in (
        ("isr", partition.isr),
        ("elr", partition.elr),
        ("adding", partition.adding_replicas),
        ("removing", partition.removing_replicas),
    ):
        if not replicas.issuperset(members) or len(set(members)) != len(members):
            raise Violation(f"{name}-not-replicas", where)
    if set(partition.isr) & set(partition.elr):
        raise Violation("isr-and-elr", where)
    if partition.leader != NO_LEADER and partition.leader not in partition.isr:
        raise Violation("leader-not-in-isr", where)
    if len(partition.directories) != len(partition.replicas):
        raise Violation("directories", where)


def leaderless(image: MetadataImage) -> list[str]:
    """Partitions without a leader although a broker that may lead is alive."""
    active = {
        broker_id
        for broker_id, broker in image.cluster.brokers.items()
        if not broker.fenced and not broker.in_controlled_shutdown
    }
    return [
        f"{topic.name}-{index}: {partition}"
        for topic in image.topics.topics_by_id.values()
        for index, partition in topic.partitions.items()
        if partition.leader == NO_LEADER
        and any(each in active for each in (*partition.isr, *partition.elr))
    ]


def check_step(before: MetadataImage, after: MetadataImage) -> None:
    """Epochs of partitions and brokers never fall; who changes a partition counts its epoch up.

    Raises:
        Violation: it is not so.
    """
    if before.topics is not after.topics:
        for topic_id, topic in after.topics.topics_by_id.items():
            known = before.topics.topics_by_id.get(topic_id)
            if known is None or known is topic:
                continue
            for index, partition in topic.partitions.items():
                old = known.partitions.get(index)
                if old is not None and old is not partition:
                    _check_partition_step(topic_id, index, old, partition)
            if len(topic.partitions) < len(known.partitions):
                raise Violation("partitions-fewer", topic.name)
    for broker_id, broker in after.cluster.brokers.items():
        previous = before.cluster.brokers.get(broker_id)
        if previous is not None and broker.broker_epoch < previous.broker_epoch:
            raise Violation("broker-epoch", f"{broker} after {previous}")
    if after.producer_ids.next_producer_id < before.producer_ids.next_producer_id:
        raise Violation("producer-ids", f"{after.producer_ids} after {before.producer_ids}")


def _check_partition_step(
    topic_id: UUID, index: int, old: PartitionRegistration, new: PartitionRegistration
) -> None:
    where = f"{topic_id}-{index}: {new} after {old}"
    if new.leader_epoch < old.leader_epoch:
        raise Violation("leader-epoch", where)
    if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
        raise Violation("leader-without-epoch", where)
    if new != old and new.partition_epoch <= old.partition_epoch:
        raise Violation("partition-epoch", where)
