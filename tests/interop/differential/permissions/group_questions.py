"""What every principal asks about groups, offsets and transactions."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.asking import Ground
from tests.interop.differential.permissions.principals import (
    DOOMED_GROUP,
    GONE,
    GROUP,
    HERE,
    MODERN,
    NO_GROUP,
    NO_TRANSACTION,
    ODD_GROUP,
    ODD_TRANSACTION,
    OTHER,
    OTHER_GROUP,
    OTHER_NO_GROUP,
    OTHER_TRANSACTION,
    TRANSACTION,
)
from tests.interop.differential.permissions.question import (
    CLUSTER,
    GROUP_KIND,
    GROUPS,
    IDENTIFIER,
    PARTITIONS,
    STRANGER_ID,
    TOPIC,
    TOPICS,
    Fields,
    Question,
    ask,
    named_topic,
    since,
    topic_id,
)


def questions() -> Iterator[Question]:
    """All of them."""
    yield from _offsets()
    yield from _groups()
    yield from _heartbeats()
    yield from _descriptions()
    yield from _transactions()
    yield from _other_transactions()


def _offsets() -> Iterator[Question]:
    kinds = (TOPIC, GROUP_KIND)
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    for group in (GROUP, OTHER_GROUP, ODD_GROUP):
        yield ask(
            ApiKey.OFFSET_COMMIT,
            f"of {group}",
            kinds,
            lambda g, group=group: {
                "group_id": group,
                "topics": [
                    {
                        **named_topic(g, topic, 10),
                        "partitions": [
                            {**offset, "partition_index": index} for index in PARTITIONS
                        ],
                    }
                    for topic in TOPICS
                ],
            },
        )

    def fetched(ground: Ground) -> list[Fields]:
        return [
            {**named_topic(ground, topic, 10), "partition_indexes": list(PARTITIONS)}
            for topic in TOPICS
        ]

    for word, every in (("some", False), ("all", True)):
        yield ask(
            ApiKey.OFFSET_FETCH,
            f"{word} of one group",
            kinds,
            lambda g, every=every: {"group_id": GROUP, "topics": None if every else fetched(g)},
            first=2 if every else 0,
            last=7,
        )
        yield ask(
            ApiKey.OFFSET_FETCH,
            f"{word} of groups",
            kinds,
            lambda g, every=every: {
                "groups": [
                    {"group_id": group, "topics": None if every else fetched(g)} for group in GROUPS
                ]
            },
            first=8,
        )
    for group in (GROUP, NO_GROUP, ODD_GROUP):
        yield ask(
            ApiKey.OFFSET_DELETE,
            f"of {group}",
            kinds,
            lambda g, group=group: {
                "group_id": group,
                "topics": [
                    {"name": topic, "partitions": [{"partition_index": 1}]} for topic in TOPICS
                ],
            },
        )


def _groups() -> Iterator[Question]:
    only = (GROUP_KIND,)
    for word, group in (("there", GROUP), ("not there", NO_GROUP), ("with an odd name", ODD_GROUP)):
        yield ask(
            ApiKey.JOIN_GROUP,
            f"a group {word}",
            only,
            lambda g, group=group: {
                "group_id": group,
                "session_timeout_ms": 1,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        )
        member: Fields = {"group_id": group, "generation_id": 1, "member_id": "m"}
        yield ask(ApiKey.HEARTBEAT, f"a group {word}", only, lambda g, member=member: member)
        yield ask(
            ApiKey.SYNC_GROUP,
            f"a group {word}",
            only,
            lambda g, member=member: {
                **member,
                **since(g, 5, protocol_type="consumer", protocol_name="range"),
                "assignments": [],
            },
        )
        yield ask(
            ApiKey.LEAVE_GROUP,
            f"a group {word}",
            only,
            lambda g, group=group: {
                "group_id": group,
                **({"members": [{"member_id": "m"}]} if g.api_version >= 3 else {"member_id": "m"}),
            },
        )


def _heartbeats() -> Iterator[Question]:
    for word, group, topics in (
        ("a topic", MODERN, [HERE]),
        ("topics that are not there", MODERN, [HERE, GONE]),
        ("another topic", MODERN, [OTHER]),
        ("no topics", MODERN, None),
        ("in no group", NO_GROUP, [HERE]),
    ):
        yield ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            word,
            (GROUP_KIND, TOPIC),
            lambda g, group=group, topics=topics: {
                "group_id": group,
                "member_id": "stranger",
                "member_epoch": 5,
                "subscribed_topic_names": topics,
            },
        )
    yield ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "partitions by id",
        (GROUP_KIND, TOPIC),
        lambda g: {
            "group_id": MODERN,
            "member_id": "a-member",
            "member_epoch": 5,
            "topic_partitions": [
                {"topic_id": topic_id(g, topic), "partitions": list(PARTITIONS)} for topic in TOPICS
            ],
        },
    )
    yield ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "a pattern",
        (GROUP_KIND, TOPIC),
        lambda g: {
            "group_id": MODERN,
            "member_id": "stranger",
            "member_epoch": 5,
            "subscribed_topic_regex": "t-.*",
        },
        first=1,
    )


def _descriptions() -> Iterator[Question]:
    only = (GROUP_KIND,)
    yield ask(
        ApiKey.DESCRIBE_GROUPS,
        "with operations",
        only,
        lambda g: {"groups": list(GROUPS), **since(g, 3, include_authorized_operations=True)},
    )
    yield ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        "with operations",
        (GROUP_KIND, TOPIC),
        lambda g: {"group_ids": list(GROUPS), "include_authorized_operations": True},
    )
    yield ask(ApiKey.LIST_GROUPS, "all", (GROUP_KIND, CLUSTER), lambda g: {})
    yield ask(
        ApiKey.DELETE_GROUPS,
        "some",
        only,
        lambda g: {"groups_names": [DOOMED_GROUP, NO_GROUP, OTHER_NO_GROUP]},
        destroys=True,
    )
    for kind, keys in (
        (0, GROUPS),
        (1, (TRANSACTION, NO_TRANSACTION, OTHER_TRANSACTION, ODD_TRANSACTION)),
    ):
        yield ask(
            ApiKey.FIND_COORDINATOR,
            f"of kind {kind}",
            (GROUP_KIND, IDENTIFIER),
            lambda g, kind=kind, keys=keys: {
                **since(g, 1, key_type=kind),
                **({"coordinator_keys": list(keys)} if g.api_version >= 4 else {"key": keys[0]}),
            },
            first=kind,
        )


def _transactions() -> Iterator[Question]:
    cluster = (IDENTIFIER, CLUSTER)
    for word, identifier in (
        ("no", None),
        ("an", TRANSACTION),
        ("another", OTHER_TRANSACTION),
        ("an odd", ODD_TRANSACTION),
    ):
        yield ask(
            ApiKey.INIT_PRODUCER_ID,
            f"with {word} id",
            (*cluster, TOPIC),
            lambda g, identifier=identifier: {
                "transactional_id": identifier,
                "transaction_timeout_ms": 60_000,
            },
        )
    producer: Fields = {"producer_id": STRANGER_ID, "producer_epoch": 0}
    partitions = [{"name": topic, "partitions": [0]} for topic in TOPICS]

    def added(ground: Ground) -> Fields:
        if ground.api_version >= 4:
            return {
                "transactions": [
                    {
                        "transactional_id": each,
                        **producer,
                        "verify_only": False,
                        "topics": partitions,
                    }
                    for each in (TRANSACTION, NO_TRANSACTION, ODD_TRANSACTION)
                ]
            }
        return {
            "v3_and_below_transactional_id": TRANSACTION,
            "v3_and_below_producer_id": STRANGER_ID,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": partitions,
        }

    yield ask(ApiKey.ADD_PARTITIONS_TO_TXN, "of topics", (*cluster, TOPIC), added)
    of_one = {"transactional_id": TRANSACTION, **producer}
    yield ask(
        ApiKey.ADD_OFFSETS_TO_TXN,
        "of a group",
        (IDENTIFIER, GROUP_KIND),
        lambda g: {**of_one, "group_id": GROUP},
    )
    yield ask(ApiKey.END_TXN, "abort", (IDENTIFIER,), lambda g: {**of_one, "committed": False})
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    yield ask(
        ApiKey.TXN_OFFSET_COMMIT,
        "of a group",
        (IDENTIFIER, GROUP_KIND, TOPIC),
        lambda g: {
            **of_one,
            "group_id": GROUP,
            "topics": [{"name": topic, "partitions": [offset]} for topic in TOPICS],
        },
    )


def _other_transactions() -> Iterator[Question]:
    producer: Fields = {"producer_id": STRANGER_ID, "producer_epoch": 0}
    yield ask(
        ApiKey.WRITE_TXN_MARKERS,
        "to no topic",
        (CLUSTER,),
        lambda g: {
            "markers": [
                {
                    **producer,
                    "transaction_result": False,
                    "topics": [{"name": GONE, "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
    )
    identifiers = [TRANSACTION, NO_TRANSACTION, OTHER_TRANSACTION, ODD_TRANSACTION]
    yield ask(
        ApiKey.DESCRIBE_TRANSACTIONS,
        "some",
        (IDENTIFIER, TOPIC),
        lambda g: {"transactional_ids": identifiers},
    )
    yield ask(ApiKey.LIST_TRANSACTIONS, "all", (IDENTIFIER,), lambda g: {})
