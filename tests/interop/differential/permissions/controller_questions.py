"""What principals ask at a controller's listener: what clients ask brokers and controllers alike,
and what only brokers and controllers ask.

Invariant: what a node would have to believe names another cluster, or a node that there is none of,
so that a principal with the right changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.types import METADATA_TOPIC_NAME
from tests.interop.differential.permissions.question import (
    CLUSTER,
    NO_NODE,
    UNKNOWN_ID,
    Fields,
    Question,
    ask,
    marked,
    since,
)

OTHERS: Final = (ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.DESCRIBE_CLUSTER)
"""They mean something else here, or nothing new."""

ELSEWHERE: Final = "another"
CONTROLLERS: Final = 2
"""The kind of endpoint of DescribeCluster."""


def controller_questions(questions: Iterable[Question]) -> Iterator[Question]:
    """All of them.

    Args:
        questions: what brokers are asked; of these, the APIs that a controller serves count.
    """
    of_nodes = [*_of_quorum(), *_of_brokers()]
    for each in (*questions, *of_nodes, *map(marked, of_nodes)):
        if each.api_key not in OTHERS or each.name.startswith("by "):
            yield replace(each, name=f"at a controller, {each.name}")


def _of_quorum() -> Iterator[Question]:
    only = (CLUSTER,)
    yield ask(
        ApiKey.DESCRIBE_CLUSTER,
        "by endpoint, with operations",
        only,
        lambda g: {"include_cluster_authorized_operations": True, "endpoint_type": CONTROLLERS},
        first=1,
    )
    metadata: Fields = {"topic_name": METADATA_TOPIC_NAME}
    for key, word, fields in (
        (ApiKey.VOTE, "of another cluster", {"partition_index": 0, "replica_id": NO_NODE}),
        (ApiKey.BEGIN_QUORUM_EPOCH, "of another cluster", {"partition_index": 0}),
        (ApiKey.END_QUORUM_EPOCH, "of another cluster", {"partition_index": 0}),
    ):
        yield ask(
            key,
            word,
            only,
            lambda g, fields=fields: {
                "cluster_id": ELSEWHERE,
                "topics": [{**metadata, "partitions": [fields]}],
            },
        )
    yield ask(
        ApiKey.FETCH_SNAPSHOT,
        "of another cluster",
        only,
        lambda g: {
            "cluster_id": ELSEWHERE,
            "topics": [{"name": METADATA_TOPIC_NAME, "partitions": [{"partition": 0}]}],
        },
    )
    yield ask(
        ApiKey.UPDATE_RAFT_VOTER,
        "of another cluster",
        only,
        lambda g: {"cluster_id": ELSEWHERE, "voter_id": NO_NODE, "voter_directory_id": UNKNOWN_ID},
    )


def _of_brokers() -> Iterator[Question]:
    only = (CLUSTER,)
    yield ask(
        ApiKey.BROKER_REGISTRATION,
        "in another cluster",
        only,
        lambda g: {
            "broker_id": NO_NODE,
            "cluster_id": ELSEWHERE,
            "incarnation_id": UUID(int=5),
            **since(g, 2, log_dirs=[UUID(int=6)]),
        },
    )
    yield ask(
        ApiKey.BROKER_HEARTBEAT,
        "of no such broker",
        only,
        lambda g: {"broker_id": NO_NODE, "broker_epoch": 1},
    )
    yield ask(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        "for no such broker",
        only,
        lambda g: {"broker_id": NO_NODE, "broker_epoch": 1},
    )
    yield ask(
        ApiKey.ALTER_PARTITION,
        "by no such broker",
        only,
        lambda g: {"broker_id": NO_NODE, "broker_epoch": 1, "topics": [{"topic_id": UNKNOWN_ID}]},
    )
    yield ask(
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        "of no such broker",
        only,
        lambda g: {"broker_id": NO_NODE, "broker_epoch": 1, "directories": []},
    )
