"""Images and deltas: what each record does, what a snapshot removes, what is refused."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.metadata.image import (
    ConfigResourceType,
    InvalidMetadataRecord,
    MetadataDelta,
    MetadataImage,
    Provenance,
    TransactionFilter,
)
from moldau.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition

from .builders import golden, metadata_records, replay

TOPIC = UUID(int=0x11)
OTHER = UUID(int=0x22)


def topic_records(topic_id: UUID = TOPIC, name: str = "t", partitions: int = 2) -> list[Message]:
    records: list[Message] = [TopicRecord(name=name, topic_id=topic_id)]
    records += [
        PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[1, 2],
            isr=[1, 2],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[UUID(int=0x101), UUID(int=0x102)],
        )
        for index in range(partitions)
    ]
    return records


def broker(broker_id: int = 1, broker_epoch: int = 5) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(broker_id=broker_id, broker_epoch=broker_epoch, rack=None)


def test_partition_changes_count_epochs() -> None:
    image = replay(MetadataImage.EMPTY, topic_records())
    change = PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=2, isr=[2])
    image = replay(image, [change])
    partition = image.topics.partition(TOPIC, 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 1, 1)
    image = replay(image, [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=[2, 1])])
    partition = image.topics.partition(TOPIC, 0)
    assert partition is not None
    assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((2, 1), 1, 2)
    # Naming the same leader is an election too.
    image = replay(image, [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=2)])
    partition = image.topics.partition(TOPIC, 0)
    assert partition is not None
    assert partition.leader_epoch == 2


def test_reassigned_replicas_keep_the_directories_that_are_known() -> None:
    image = replay(MetadataImage.EMPTY, topic_records())
    image = replay(image, [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, replicas=[3, 2])])
    partition = image.topics.partition(TOPIC, 0)
    assert partition is not None
    assert partition.directory(2) == UUID(int=0x102)
    assert partition.directory(3) == UUID(int=0)


def test_a_delta_leaves_its_base_alone_and_shares_what_did_not_change() -> None:
    base = replay(MetadataImage.EMPTY, [*topic_records(), broker()])
    digest = base.digest()
    after = replay(base, [PartitionChangeRecord(partition_id=1, topic_id=TOPIC, leader=2)])
    assert base.digest() == digest
    assert after.digest() != digest
    assert after.cluster is base.cluster
    old, new = base.topics.topics_by_id[TOPIC], after.topics.topics_by_id[TOPIC]
    assert new.partitions[0] is old.partitions[0]
    assert after.topics.topics_by_name["t"] is new


def test_deleting_a_topic_takes_its_configuration_along() -> None:
    config = ConfigRecord(
        resource_type=ConfigResourceType.TOPIC, resource_name="t", name="retention.ms", value="1"
    )
    image = replay(MetadataImage.EMPTY, [*topic_records(), config])
    image = replay(image, [RemoveTopicRecord(topic_id=TOPIC)])
    assert image == MetadataImage.EMPTY
    # Also when the topic never was in its own image.
    image = replay(
        MetadataImage.EMPTY, [*topic_records(), config, RemoveTopicRecord(topic_id=TOPIC)]
    )
    assert image == MetadataImage.EMPTY


def test_a_topic_deleted_and_created_in_one_delta_has_its_new_id() -> None:
    image = replay(MetadataImage.EMPTY, topic_records())
    delta = MetadataDelta(image)
    for record in [RemoveTopicRecord(topic_id=TOPIC), *topic_records(OTHER, "t", 1)]:
        delta.replay(record)
    image = delta.apply(Provenance())
    assert list(image.topics.topics_by_id) == [OTHER]
    assert image.topics.topics_by_name["t"].topic_id == OTHER
    assert list(delta.topics_delta.deleted) == [TOPIC]
    assert list(delta.topics_delta.created) == [OTHER]


def test_what_a_delta_means_for_one_broker() -> None:
    image = replay(MetadataImage.EMPTY, [*topic_records(), *topic_records(OTHER, "u")])
    delta = MetadataDelta(image)
    delta.replay(PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=2))
    delta.replay(PartitionChangeRecord(partition_id=1, topic_id=TOPIC, replicas=[1, 3]))
    delta.replay(RemoveTopicRecord(topic_id=OTHER))
    changes = delta.topics_delta.local_changes(2)
    assert list(changes.leaders) == [TopicPartition("t", 0)]
    assert not changes.followers
    assert sorted(changes.deleted) == [
        TopicPartition("t", 1),
        TopicPartition("u", 0),
        TopicPartition("u", 1),
    ]
    changes = delta.topics_delta.local_changes(1)
    assert list(changes.followers) == [TopicPartition("t", 0)]
    assert list(changes.leaders) == [TopicPartition("t", 1)]


def test_clear_elr_of_one_topic_and_of_all() -> None:
    def with_elr(topic_id: UUID) -> PartitionChangeRecord:
        return PartitionChangeRecord(
            partition_id=0,
            topic_id=topic_id,
            isr=[1],
            eligible_leader_replicas=[2],
            last_known_elr=[2],
        )

    base = replay(
        MetadataImage.EMPTY,
        [*topic_records(), *topic_records(OTHER, "u"), with_elr(TOPIC), with_elr(OTHER)],
    )
    image = replay(base, [ClearElrRecord(topic_name="t")])
    assert image.topics.partition(TOPIC, 0).elr == ()  # type: ignore[union-attr]
    assert image.topics.partition(OTHER, 0).elr == (2,)  # type: ignore[union-attr]
    image = replay(base, [ClearElrRecord()])
    assert image.topics.partition(OTHER, 0).elr == ()  # type: ignore[union-attr]


def test_broker_registration_changes() -> None:
    image = replay(MetadataImage.EMPTY, [broker()])
    assert image.cluster.brokers[1].fenced
    image = replay(image, [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1)])
    assert not image.cluster.brokers[1].fenced
    image = replay(
        image,
        [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)],
    )
    assert image.cluster.brokers[1].in_controlled_shutdown
    assert not image.cluster.brokers[1].fenced
    image = replay(image, [FenceBrokerRecord(id=1, epoch=5)])
    assert image.cluster.brokers[1].fenced
    image = replay(image, [UnfenceBrokerRecord(id=1, epoch=5)])
    assert not image.cluster.brokers[1].fenced
    image = replay(image, [UnregisterBrokerRecord(broker_id=1, broker_epoch=5)])
    assert not image.cluster.brokers


@pytest.mark.parametrize(
    "record",
    [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1),
        BrokerRegistrationChangeRecord(broker_id=9, broker_epoch=5, fenced=-1),
        UnregisterBrokerRecord(broker_id=1, broker_epoch=6),
        PartitionChangeRecord(partition_id=7, topic_id=TOPIC, leader=1),
        PartitionChangeRecord(partition_id=0, topic_id=OTHER, leader=1),
        PartitionRecord(partition_id=0, topic_id=OTHER, replicas=[1], isr=[1]),
        PartitionRecord(
            partition_id=0, topic_id=TOPIC, replicas=[1, 2], isr=[1], directories=[UUID(int=1)]
        ),
        RemoveTopicRecord(topic_id=OTHER),
        ClearElrRecord(topic_name="absent"),
        ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=500),
        BeginTransactionRecord(name="x"),
        EndTransactionRecord(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_contradicts_the_image_is_refused(record: Message) -> None:
    ids = ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000)
    image = replay(MetadataImage.EMPTY, [*topic_records(), broker(), ids])
    with pytest.raises(InvalidMetadataRecord):
        replay(image, [record])


def test_a_snapshot_removes_what_it_does_not_mention() -> None:
    full = replay(MetadataImage.EMPTY, metadata_records(golden("00000000000000000000.log")))
    token = DelegationTokenRecord(owner="User:a", token_id="x")
    full = replay(full, [token, *topic_records()])
    delta = MetadataDelta(full)
    delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=30))
    delta.replay(NoOpRecord())
    delta.finish_snapshot()
    image = delta.apply(Provenance(99, 3, 1))
    # Producer ids never go back, so a snapshot without any leaves them.
    expected = replay(
        MetadataImage.EMPTY,
        [
            FeatureLevelRecord(name="metadata.version", feature_level=30),
            ProducerIdsRecord(next_producer_id=1000),
        ],
    )
    assert image.digest() == expected.digest()
    assert image.provenance == Provenance(99, 3, 1)
    assert set(delta.topics_delta.deleted) == set(full.topics.topics_by_id)


def test_a_snapshot_onto_another_image_gives_exactly_the_snapshot() -> None:
    target = replay(MetadataImage.EMPTY, metadata_records(golden("00000000000000000000.log")))
    other = replay(
        target,
        [
            *topic_records(),
            RemoveTopicRecord(topic_id=target.topics.topics_by_name["late"].topic_id),
            FeatureLevelRecord(name="streams.version", feature_level=0),
            ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="7"),
            ConfigRecord(resource_type=4, resource_name="1", name="num.io.threads", value="7"),
        ],
    )
    delta = MetadataDelta(other)
    for record, _version in target.write():
        delta.replay(record)
    delta.finish_snapshot()
    assert delta.apply(Provenance()) == target


def test_tokens_come_and_go() -> None:
    token = DelegationTokenRecord(owner="User:a", requester="User:a", token_id="x", renewers=["b"])
    image = replay(MetadataImage.EMPTY, [token])
    assert replay(MetadataImage.EMPTY, [record for record, _ in image.write()]) == image
    assert replay(image, [RemoveDelegationTokenRecord(token_id="x")]) == MetadataImage.EMPTY


def test_transactions_are_held_back_until_they_end() -> None:
    held = TransactionFilter()
    begin, end = BeginTransactionRecord(name="x"), EndTransactionRecord()
    assert held.feed([NoOpRecord(), begin, TopicRecord(name="a")]) == [NoOpRecord()]
    assert held.is_open
    assert held.feed([TopicRecord(name="b")]) == []
    assert held.feed([end, NoOpRecord()]) == [
        TopicRecord(name="a"),
        TopicRecord(name="b"),
        NoOpRecord(),
    ]
    assert held.feed([begin, TopicRecord(name="c"), AbortTransactionRecord()]) == []
    assert not held.is_open
    with pytest.raises(InvalidMetadataRecord):
        held.feed([end])
    held.feed([begin])
    with pytest.raises(InvalidMetadataRecord):
        held.feed([begin])


def test_older_metadata_levels_write_older_records() -> None:
    records = topic_records()
    for level, version in ((7, 0), (17, 1), (23, 2)):
        image = replay(
            MetadataImage.EMPTY,
            [FeatureLevelRecord(name="metadata.version", feature_level=level), *records, broker()],
        )
        versions = {v for record, v in image.write() if isinstance(record, PartitionRecord)}
        assert versions == {version}
        for record, v in image.write():
            record.to_bytes(v)  # what the version cannot carry was left out


def test_an_image_made_from_nothing_is_as_one_replayed() -> None:
    """What a late publisher gets: the same changes as if the image's records were replayed."""
    image = replay(MetadataImage.EMPTY, metadata_records(golden("00000000000000000000.log")))
    replayed = MetadataDelta(MetadataImage.EMPTY)
    for record, _version in image.write():
        replayed.replay(record)
    replayed.finish_snapshot()
    made = MetadataDelta.from_nothing(image)
    assert made.apply(image.provenance).digest() == image.digest()
    assert made.apply(image.provenance) == image
    assert made.touched == replayed.touched
    assert made.configs_delta.changes == replayed.configs_delta.changes
    topics, expected = made.topics_delta, replayed.topics_delta
    assert expected.created
    assert list(topics.created) == list(topics.changed)
    assert set(topics.changed) == set(expected.changed)
    for topic_id, topic in topics.changed.items():
        assert topic.partition_changes == expected.changed[topic_id].partition_changes
        assert topic.image == expected.changed[topic_id].image
    for broker_id in image.cluster.brokers:
        changes = topics.local_changes(broker_id)
        assert changes == expected.local_changes(broker_id)
        assert changes.leaders or changes.followers
    topics.replay_clear_elr(ClearElrRecord(topic_name=next(iter(image.topics.topics_by_name))))


def test_from_nothing_leaves_the_image_as_it_is() -> None:
    image = replay(MetadataImage.EMPTY, topic_records())
    delta = MetadataDelta.from_nothing(image)
    delta.replay(PartitionChangeRecord(topic_id=TOPIC, partition_id=0, leader=2))
    assert delta.apply(Provenance()).topics.topics_by_name["t"].partitions[0].leader == 2
    assert image.topics.topics_by_name["t"].partitions[0].leader == 1
