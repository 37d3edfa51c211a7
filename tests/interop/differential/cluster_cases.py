"""Cases about the cluster as a whole: versions, brokers, the quorum, features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.running import Case

FEATURES: Final = (
    "metadata.version",
    "kraft.version",
    "transaction.version",
    "group.version",
    "eligible.leader.replicas.version",
    "share.version",
    "streams.version",
    "no.such.version",
    "",
)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _api_versions()
    yield from _describe_cluster()
    yield from _quorum()
    yield from _features()
    yield from _unregister()
    yield from _voters()


def _api_versions() -> Iterator[Case]:
    names = {"plain": "probe", "empty": "", "a space": "a b", "dashes": "-a-", "dots": "a.b-c"}
    for word, name in names.items():
        yield Case(
            ApiKey.API_VERSIONS,
            f"name {word}",
            lambda g, name=name: {"client_software_name": name, "client_software_version": "1.0"},
        )
        yield Case(
            ApiKey.API_VERSIONS,
            f"version {word}",
            lambda g, name=name: {"client_software_name": "probe", "client_software_version": name},
        )


def _describe_cluster() -> Iterator[Case]:
    for operations in (False, True):
        for kind in (0, 1, 2, 3, -1):
            for fenced in (False, True):
                yield Case(
                    ApiKey.DESCRIBE_CLUSTER,
                    f"operations {operations}, type {kind}, fenced {fenced}",
                    lambda g, operations=operations, kind=kind, fenced=fenced: {
                        "include_cluster_authorized_operations": operations,
                        **({"endpoint_type": kind} if g.api_version >= 1 else {}),
                        **({"include_fenced_brokers": fenced} if g.api_version >= 2 else {}),
                    },
                )


def _quorum() -> Iterator[Case]:
    def case(name: str, topics: list[tuple[str, list[int]]]) -> Case:
        return Case(
            ApiKey.DESCRIBE_QUORUM,
            name,
            lambda g: {
                "topics": [
                    {
                        "topic_name": topic,
                        "partitions": [{"partition_index": each} for each in parts],
                    }
                    for topic, parts in topics
                ]
            },
        )

    metadata = "__cluster_metadata"
    yield case("the quorum", [(metadata, [0])])
    yield case("another partition", [(metadata, [1])])
    yield case("both partitions", [(metadata, [0, 1])])
    yield case("another topic", [("fixed", [0])])
    yield case("none", [])
    yield case("no partitions", [(metadata, [])])
    yield case("partition twice", [(metadata, [0, 0])])
    yield case("topic twice", [(metadata, [0]), (metadata, [0])])
    yield case("unknown topic", [("no-such", [0])])


def _features() -> Iterator[Case]:
    def case(name: str, updates: list[dict[str, Any]], *, validate_only: bool = True) -> Case:
        return Case(
            ApiKey.UPDATE_FEATURES,
            name,
            lambda g: {
                "timeout_ms": 30_000,
                "feature_updates": updates,
                **({"validate_only": True} if g.api_version >= 1 and validate_only else {}),
            },
            versions=(1, 2),
        )

    for feature in FEATURES:
        for level in (-1, 0, 1, 2, 3, 29, 30, 31, 99):
            for kind in (0, 1, 2, 3, 4):
                yield case(
                    f"{feature}={level} type {kind}",
                    [{"feature": feature, "max_version_level": level, "upgrade_type": kind}],
                )
    update = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    other = {"feature": "transaction.version", "max_version_level": 9, "upgrade_type": 1}
    third = {"feature": "no.such", "max_version_level": 9, "upgrade_type": 1}
    yield case("none", [])
    yield case("twice", [update, update])
    yield case("good and bad", [update, other])
    yield case("bad and good", [other, update])
    yield case("two bad", [third, other])
    for level in (0, 1, 2, 9):
        yield Case(
            ApiKey.UPDATE_FEATURES,
            f"version 0: transaction.version={level}",
            lambda g, level=level: {
                "timeout_ms": 30_000,
                "feature_updates": [
                    {"feature": "no.such", "max_version_level": level, "allow_downgrade": True}
                ],
            },
            versions=(0,),
        )


def _unregister() -> Iterator[Case]:
    for broker_id in (9, -1, 2_000_000_000):
        yield Case(
            ApiKey.UNREGISTER_BROKER,
            f"broker {broker_id}",
            lambda g, broker_id=broker_id: {"broker_id": broker_id},
        )


def _voters() -> Iterator[Case]:
    directory = UUID(int=5)
    for word, cluster in (("another cluster", "xx"), ("any cluster", None)):
        for voter_id in (1, 9, -1):
            yield Case(
                ApiKey.REMOVE_RAFT_VOTER,
                f"{word}, voter {voter_id}",
                lambda g, cluster=cluster, voter_id=voter_id: {
                    "cluster_id": cluster,
                    "voter_id": voter_id,
                    "voter_directory_id": directory,
                },
            )
            for listeners in ([], [{"name": "X", "host": "localhost", "port": 1}]):
                if word == "any cluster" and voter_id == 9 and listeners:
                    continue  # would wait for a voter that never comes
                yield Case(
                    ApiKey.ADD_RAFT_VOTER,
                    f"{word}, voter {voter_id}, {len(listeners)} listeners",
                    lambda g, cluster=cluster, voter_id=voter_id, listeners=listeners: {
                        "cluster_id": cluster,
                        "voter_id": voter_id,
                        "timeout_ms": 1000,
                        "voter_directory_id": directory,
                        "listeners": listeners,
                    },
                )
