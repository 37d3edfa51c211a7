"""Records of the metadata log for people: every kind says something, and secrets stay hidden."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.image import ConfigResourceType
from moldau.metadata.scram_secret import scram_secret_record
from moldau.node.http.metadata_rows import HIDDEN, SUMMARIES, UNKNOWN, rows_of
from moldau.protocol import metadata_records as kinds
from moldau.protocol.metadata_records.cluster import EntityData
from moldau.protocol.metadata_records.frame import record_class, record_types
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.schema import Message
from moldau.raft import MetadataLogError
from moldau.raft.batch_codec import encode_data_batch

TOPIC_ID = UUID(int=4711)


def name_of(topic_id: UUID) -> str | None:
    return "flights" if topic_id == TOPIC_ID else None


def rows(*records: Message, first: int = 0, limit: int = 100) -> list[dict[str, Any]]:
    data = encode_data_batch(
        [(record, 0) for record in records], timestamp_ms=77, base_offset=0, leader_epoch=3
    )
    return rows_of(bytes(data), first, limit, name_of)


def row(record: Message) -> dict[str, Any]:
    [made] = rows(record)
    return made


def test_a_row_has_all_that_is_known_of_a_record() -> None:
    assert row(kinds.TopicRecord(name="flights", topic_id=TOPIC_ID)) == {
        "offset": 0,
        "epoch": 3,
        "timestamp_ms": 77,
        "type": "TopicRecord",
        "version": 0,
        "fields": {"name": "flights", "topicId": "AAAAAAAAAAAAAAAAAAASZw"},
        "summary": "Topic flights is created",
    }


def test_rows_begin_and_end_within_a_batch() -> None:
    topics = [kinds.TopicRecord(name=name) for name in "abcd"]
    assert [each["offset"] for each in rows(*topics, first=1, limit=2)] == [1, 2]


@pytest.mark.parametrize("kind", [record_class(each) for each in record_types()])
def test_every_kind_has_a_sentence(kind: type[Message]) -> None:
    made = row(kind())
    json.dumps(made)
    assert made["type"] == kind.__name__
    if kind is not kinds.ZkMigrationStateRecord:
        assert kind in SUMMARIES


@pytest.mark.parametrize(
    ("record", "summary"),
    [
        (
            kinds.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=2, leader=1, isr=[1, 3]),
            "Partition 2 of topic flights: leader 1, ISR 1, 3",
        ),
        (
            kinds.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=-1, isr=[]),
            "Partition 0 of topic flights: no leader, ISR none",
        ),
        (
            kinds.PartitionRecord(
                topic_id=UUID(int=1), partition_id=0, leader=1, isr=[1], replicas=[1, 2]
            ),
            "Partition 0 of topic with id AAAAAAAAAAAAAAAAAAAAAQ: leader 1, ISR 1 of 1, 2",
        ),
        (
            kinds.BrokerRegistrationChangeRecord(broker_id=4, fenced=-1),
            "Broker 4 is unfenced",
        ),
        (
            kinds.ClientQuotaRecord(
                entity=[EntityData(entity_type="user", entity_name=None)], key="k", value=2.5
            ),
            "k of user (default) is 2.5",
        ),
        (
            kinds.AccessControlEntryRecord(
                resource_type=2,
                resource_name="a",
                pattern_type=4,
                principal="User:x",
                host="*",
                operation=3,
                permission_type=3,
            ),
            "User:x from *: allow READ on topic a (prefixed)",
        ),
        (
            kinds.ConfigRecord(resource_type=2, resource_name="a", name="k", value=None),
            "k of topic a is removed",
        ),
    ],
)
def test_what_a_record_does(record: Message, summary: str) -> None:
    assert row(record)["summary"] == summary


def test_keys_and_salts_of_users_are_hidden() -> None:
    credential = kinds.UserScramCredentialRecord(
        name="x", mechanism=1, salt=b"TEXT-1", stored_key=b"TEXT-2", server_key=b"TEXT-3"
    )
    made = row(credential)
    assert "TEXT" not in json.dumps(made)
    assert {made["fields"][key] for key in ("salt", "storedKey", "serverKey")} == {HIDDEN}


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        ("log.cleaner.threads", True),
        ("ssl.keystore.password", False),
        ("listener.name.a.ssl.keystore.password", False),
        ("listener.name.a.plain.sasl.jaas.config", False),
        ("of.a.newer.release", False),
    ],
)
def test_which_values_of_brokers_are_shown(name: str, is_shown: bool) -> None:
    made = row(
        kinds.ConfigRecord(
            resource_type=ConfigResourceType.BROKER, resource_name="1", name=name, value="TEXT"
        )
    )
    assert ("TEXT" in json.dumps(made)) is is_shown
    assert made["fields"]["value"] == ("TEXT" if is_shown else HIDDEN)


def test_the_clusters_own_secret_is_hidden() -> None:
    record, _ = scram_secret_record("TEXT")
    assert "TEXT" not in json.dumps(row(record))


def test_a_record_of_another_release_is_named_and_not_shown() -> None:
    data = encode_batch([Record(0, 1, None, b"\x01\x7f\x00TEXT")], partition_leader_epoch=1)
    [made] = rows_of(bytes(data), 0, 9, name_of)
    assert (made["type"], made["fields"]) == (UNKNOWN, {})
    assert "TEXT" not in json.dumps(made)


def test_damage_is_no_record() -> None:
    data = bytearray(encode_data_batch([(kinds.TopicRecord(name="a"), 0)], timestamp_ms=1))
    data[-1] ^= 1
    with pytest.raises(MetadataLogError, match="CRC"):
        rows_of(bytes(data), 0, 9, name_of)
