"""What every principal asks about topics, their records and partitions."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.types import ZERO_UUID
from tests.interop.differential.permissions.principals import (
    DOOMED,
    GONE,
    NO_TRANSACTION,
    OTHER_GONE,
    TRANSACTION,
)
from tests.interop.differential.permissions.question import (
    CLUSTER,
    IDENTIFIER,
    NO_NODE,
    NODE,
    PARTITIONS,
    STRANGER_ID,
    TOPIC,
    TOPIC_KEY,
    TOPICS,
    Fields,
    Make,
    Question,
    ask,
    named_topic,
    since,
    topic_id,
)


def questions() -> Iterator[Question]:
    """All of them."""
    yield from _records()
    yield from _fetches()
    yield from _places()
    yield from _topics()
    yield from _deletions()


def _records() -> Iterator[Question]:
    record = Record(0, 1_000, None, b"value")

    def produce(batch: bytes, identifier: str | None = None) -> Make:
        return lambda g: {
            "acks": 1,
            "timeout_ms": 30_000,
            "transactional_id": identifier,
            "topic_data": [
                {
                    **named_topic(g, topic, 13),
                    "partition_data": [
                        {"index": index, "records": memoryview(batch)} for index in PARTITIONS
                    ],
                }
                for topic in TOPICS
            ],
        }

    numbered: Fields = {"producer_id": STRANGER_ID, "producer_epoch": 0, "base_sequence": 0}
    plain = bytes(encode_batch([record]))
    of_transaction = bytes(encode_batch([record], **numbered, is_transactional=True))
    kinds = (TOPIC, CLUSTER, IDENTIFIER)
    yield ask(ApiKey.PRODUCE, "plain", kinds, produce(plain))
    for identifier in (TRANSACTION, NO_TRANSACTION):
        yield ask(
            ApiKey.PRODUCE,
            f"in transaction {identifier}",
            kinds,
            produce(of_transaction, identifier),
        )


def _fetches() -> Iterator[Question]:
    def fetch(replica_id: int, partition: int) -> Make:
        return lambda g: {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1,
            **({} if g.api_version >= 15 else {"replica_id": replica_id}),
            **since(g, 15, replica_state={"replica_id": replica_id, "replica_epoch": -1}),
            "topics": [
                {
                    **named_topic(g, topic, 13, "topic"),
                    "partitions": [{"partition": partition, "partition_max_bytes": 1}],
                }
                for topic in TOPICS
            ],
            **since(g, 7, forgotten_topics_data=[]),
        }

    kinds = (TOPIC, CLUSTER)
    for partition in PARTITIONS:
        yield ask(ApiKey.FETCH, f"as a consumer, {partition}", kinds, fetch(-1, partition))
        yield ask(ApiKey.FETCH, f"as a follower, {partition}", kinds, fetch(NO_NODE, partition))


def _places() -> Iterator[Question]:
    yield ask(
        ApiKey.LIST_OFFSETS,
        "earliest",
        (TOPIC,),
        lambda g: {
            "replica_id": -1,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": index, "timestamp": -2} for index in PARTITIONS
                    ],
                }
                for topic in TOPICS
            ],
        },
    )
    for word, replica_id in (("consumer", -1), ("follower", NODE)):
        yield ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            f"as a {word}",
            (TOPIC, CLUSTER),
            lambda g, replica_id=replica_id: {
                **since(g, 3, replica_id=replica_id),
                "topics": [
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": index, "leader_epoch": 0} for index in PARTITIONS
                        ],
                    }
                    for topic in TOPICS
                ],
            },
        )
    yield ask(
        ApiKey.DELETE_RECORDS,
        "up to the first",
        (TOPIC,),
        lambda g: {
            "timeout_ms": 30_000,
            "topics": [
                {
                    "name": topic,
                    "partitions": [{"partition_index": index, "offset": 0} for index in PARTITIONS],
                }
                for topic in TOPICS
            ],
        },
    )
    yield ask(
        ApiKey.DESCRIBE_PRODUCERS,
        "of topics",
        (TOPIC,),
        lambda g: {
            "topics": [{"name": topic, "partition_indexes": list(PARTITIONS)} for topic in TOPICS]
        },
    )


def _topics() -> Iterator[Question]:
    def metadata(topics: list[Fields] | None, creates: bool) -> Make:
        return lambda g: {
            "topics": [] if topics is None and not g.api_version else topics,
            **since(g, 4, allow_auto_topic_creation=creates),
            **since(g, 8, include_topic_authorized_operations=True),
            **({"include_cluster_authorized_operations": True} if 8 <= g.api_version <= 10 else {}),
        }

    named = [{"name": topic} for topic in TOPICS]
    kinds = (TOPIC, CLUSTER)
    yield ask(ApiKey.METADATA, "all topics", kinds, metadata(None, creates=False))
    yield ask(ApiKey.METADATA, "named", kinds, metadata(named, creates=False), first=4)
    yield ask(ApiKey.METADATA, "named and created", kinds, metadata(named, creates=True))
    yield ask(
        ApiKey.METADATA,
        "by id",
        kinds,
        lambda g: {
            "topics": [{"name": None, "topic_id": topic_id(g, topic)} for topic in TOPICS],
            "include_topic_authorized_operations": True,
        },
        first=12,
    )
    yield ask(
        ApiKey.METADATA,
        "by name and id",
        kinds,
        lambda g: {"topics": [{"name": t, "topic_id": topic_id(g, t)} for t in TOPICS]},
        first=12,
    )
    for word, names in (("all", ()), ("named", TOPICS)):
        yield ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            word,
            (TOPIC,),
            lambda g, names=names: {"topics": [{"name": name} for name in names]},
        )
    created = {"num_partitions": 1, "replication_factor": 1, "assignments": []}
    config = [{"name": TOPIC_KEY[0], "value": TOPIC_KEY[1]}]
    yield ask(
        ApiKey.CREATE_TOPICS,
        "only validated",
        (TOPIC, CLUSTER),
        lambda g: {
            "topics": [{"name": topic, **created, "configs": config} for topic in TOPICS],
            "timeout_ms": 30_000,
            "validate_only": True,
        },
    )
    yield ask(
        ApiKey.CREATE_PARTITIONS,
        "only validated",
        (TOPIC, CLUSTER),
        lambda g: {
            "topics": [{"name": topic, "count": 3, "assignments": None} for topic in TOPICS],
            "timeout_ms": 30_000,
            "validate_only": True,
        },
    )


def _deletions() -> Iterator[Question]:
    doomed = (DOOMED, GONE, OTHER_GONE)
    yield ask(
        ApiKey.DELETE_TOPICS,
        "by name",
        (TOPIC, CLUSTER),
        lambda g: {
            "timeout_ms": 30_000,
            **(
                {"topics": [{"name": topic} for topic in doomed]}
                if g.api_version >= 6
                else {"topic_names": list(doomed)}
            ),
        },
        destroys=True,
    )
    yield ask(
        ApiKey.DELETE_TOPICS,
        "by id",
        (TOPIC, CLUSTER),
        lambda g: {
            "timeout_ms": 30_000,
            "topics": [{"name": None, "topic_id": topic_id(g, topic)} for topic in doomed],
        },
        first=6,
        destroys=True,
    )
    yield ask(
        ApiKey.DELETE_TOPICS,
        "by name and id",
        (TOPIC, CLUSTER),
        lambda g: {
            "timeout_ms": 30_000,
            "topics": [
                *({"name": topic, "topic_id": topic_id(g, topic)} for topic in TOPICS),
                {"name": None, "topic_id": ZERO_UUID},
            ],
        },
        first=6,
    )
