"""Metadata that Apache Kafka wrote: our replay of its log is what its own snapshot says."""

from __future__ import annotations

from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.raft.batch_codec import decode_batches, encode_data_batch
from moldau.raft.core.voters import VoterSet
from moldau.raft.snapshot_files import snapshot_batches

from .builders import golden, metadata_records, replay

LOG = "00000000000000000000.log"
SNAPSHOT = "00000000000000000047-0000000001.checkpoint"


def test_replaying_kafkas_log_gives_kafkas_snapshot() -> None:
    from_log = replay(MetadataImage.EMPTY, metadata_records(golden(LOG), below_offset=47))
    from_snapshot = replay(MetadataImage.EMPTY, metadata_records(golden(SNAPSHOT)))
    assert from_log == from_snapshot
    assert from_log.digest() == from_snapshot.digest()


def test_the_whole_log_is_what_kafkas_tools_did() -> None:
    image = replay(MetadataImage.EMPTY, metadata_records(golden(LOG)))
    assert sorted(image.topics.topics_by_name) == ["late", "orders"]
    orders = image.topics.topics_by_name["orders"]
    assert sorted(orders.partitions) == [0, 1, 2, 3, 4, 5]
    assert image.configs.get(ConfigResourceType.TOPIC, "orders") == {"max.message.bytes": "2000000"}
    assert image.configs.get(ConfigResourceType.BROKER, "")["log.retention.ms"] == "123456"
    assert image.configs.names(ConfigResourceType.CLIENT_METRICS) == ["sub1"]
    assert image.client_quotas.quotas_by_entity[(("user", "alice"),)] == {
        "producer_byte_rate": 1024.0
    }
    assert image.client_quotas.quotas_by_entity[(("client-id", None),)] == {
        "consumer_byte_rate": 2048.0
    }
    assert image.producer_ids.next_producer_id == 1000
    assert [entry.principal for entry in image.acls.entries_by_id.values()] == ["User:alice"]
    (credential,) = image.scram.credentials.values()
    assert credential.iterations == 4096
    broker = image.cluster.brokers[1]
    assert broker.fenced
    assert broker.in_controlled_shutdown
    # Both runs ended in a controlled shutdown, which left every partition to its eligible leader.
    partition = orders.partitions[0]
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), (1,))
    assert (partition.leader_epoch, partition.partition_epoch) == (3, 3)


def test_an_image_survives_its_own_snapshot() -> None:
    image = replay(MetadataImage.EMPTY, metadata_records(golden(LOG)))
    batches = snapshot_batches(
        image.write(),
        leader_epoch=2,
        last_contained_log_time_ms=5,
        voters=VoterSet(),
        timestamp_ms=6,
    )
    written = b"".join(bytes(batch) for batch in batches)
    assert replay(MetadataImage.EMPTY, metadata_records(written)) == image


def test_our_batches_of_kafkas_records_are_kafkas_bytes() -> None:
    compared = 0
    data = golden(LOG)
    position = 0
    for batch in decode_batches(data, "golden"):
        size_bytes = batch.header.size_bytes
        if batch.records:
            # Versions are not kept by decoding: 0 fits all records but these batches' others.
            versions = {type(record).__name__ for record in batch.records}
            if versions <= {
                "TopicRecord",
                "ConfigRecord",
                "ProducerIdsRecord",
                "FeatureLevelRecord",
            }:
                encoded = encode_data_batch(
                    [(record, 0) for record in batch.records],
                    timestamp_ms=batch.header.base_timestamp_ms,
                    base_offset=batch.header.base_offset,
                    leader_epoch=batch.header.partition_leader_epoch,
                )
                assert bytes(encoded) == data[position : position + size_bytes]
                compared += 1
        position += size_bytes
    assert compared >= 4
    assert position == len(data)


def test_kafkas_bootstrap_snapshot_names_the_feature_levels() -> None:
    records = metadata_records(golden("bootstrap.checkpoint"))
    levels = {r.name: r.feature_level for r in records if isinstance(r, FeatureLevelRecord)}
    assert levels["metadata.version"] == 30
    assert levels["transaction.version"] == 2
    assert levels["eligible.leader.replicas.version"] == 1
