"""What every principal asks about the cluster, configurations, access control and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.types import METADATA_TOPIC_NAME
from tests.interop.differential.asking import Ground
from tests.interop.differential.permissions.principals import (
    GROUP,
    NO_GROUP,
    ODD_GROUP,
    OTHER_GROUP,
    OWNER,
)
from tests.interop.differential.permissions.question import (
    BROKER_KEY,
    CLUSTER,
    CONFIG_BROKER,
    CONFIG_GROUP,
    CONFIG_LOGGER,
    CONFIG_METRICS,
    CONFIG_TOPIC,
    GROUP_KEY,
    GROUP_KIND,
    NO_NODE,
    NODE,
    TOKEN,
    TOPIC,
    TOPIC_KEY,
    TOPICS,
    UNKNOWN_ID,
    USER,
    Fields,
    Question,
    ask,
    since,
)
from tests.interop.differential.permissions.sides import Side


def questions() -> Iterator[Question]:
    """All of them."""
    yield from _configs()
    yield from _cluster()
    yield from _reassignments()
    yield from _access()
    yield from _tokens()


def _configs() -> Iterator[Question]:
    kinds = (TOPIC, GROUP_KIND, CLUSTER)
    resources = (
        *((CONFIG_TOPIC, topic, TOPIC_KEY) for topic in TOPICS),
        *((CONFIG_GROUP, group, GROUP_KEY) for group in (GROUP, NO_GROUP, OTHER_GROUP, ODD_GROUP)),
        (CONFIG_BROKER, str(NODE), BROKER_KEY),
        (CONFIG_BROKER, "", BROKER_KEY),
    )
    named = [{"resource_type": kind, "resource_name": name} for kind, name, _ in resources]
    keys = [key for _, _, key in resources]
    more = [
        {"resource_type": CONFIG_LOGGER, "resource_name": str(NODE), "configuration_keys": ["x"]},
        {"resource_type": CONFIG_METRICS, "resource_name": "m", "configuration_keys": ["x"]},
    ]
    yield ask(
        ApiKey.DESCRIBE_CONFIGS,
        "of all kinds",
        kinds,
        lambda g: {
            "resources": [
                *(
                    {**each, "configuration_keys": [key]}
                    for each, (key, _) in zip(named, keys, strict=True)
                ),
                *more,
            ]
        },
    )
    yield ask(
        ApiKey.ALTER_CONFIGS,
        "only validated",
        kinds,
        lambda g: {
            "resources": [
                {**each, "configs": [{"name": key, "value": value}]}
                for each, (key, value) in zip(named, keys, strict=True)
            ],
            "validate_only": True,
        },
    )
    yield ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "only validated",
        kinds,
        lambda g: {
            "resources": [
                {**each, "configs": [{"name": key, "config_operation": 0, "value": value}]}
                for each, (key, value) in zip(named, keys, strict=True)
            ],
            "validate_only": True,
        },
    )
    yield ask(
        ApiKey.LIST_CONFIG_RESOURCES,
        "all",
        kinds,
        lambda g: since(g, 1, resource_types=[]),
    )


def _cluster() -> Iterator[Question]:
    only = (CLUSTER,)
    yield ask(ApiKey.API_VERSIONS, "all", only, _software)
    yield ask(
        ApiKey.DESCRIBE_CLUSTER,
        "with operations",
        only,
        lambda g: {"include_cluster_authorized_operations": True},
    )
    yield ask(
        ApiKey.DESCRIBE_QUORUM,
        "of metadata",
        only,
        lambda g: {
            "topics": [{"topic_name": METADATA_TOPIC_NAME, "partitions": [{"partition_index": 0}]}]
        },
    )
    yield ask(
        ApiKey.DESCRIBE_LOG_DIRS,
        "of topics",
        (TOPIC, CLUSTER),
        lambda g: {"topics": [{"topic": topic, "partitions": [0]} for topic in TOPICS]},
    )
    yield ask(
        ApiKey.UPDATE_FEATURES,
        "of none such",
        only,
        lambda g: {
            "feature_updates": [
                {
                    "feature": "no.such.feature",
                    "max_version_level": 1,
                    **since(g, 1, upgrade_type=1),
                }
            ],
            **since(g, 1, validate_only=True),
        },
    )
    yield ask(ApiKey.UNREGISTER_BROKER, "none such", only, lambda g: {"broker_id": NO_NODE})
    voter: Fields = {
        "cluster_id": "another",
        "voter_id": NO_NODE,
        "voter_directory_id": UNKNOWN_ID,
    }
    yield ask(
        ApiKey.ADD_RAFT_VOTER,
        "in another cluster",
        only,
        lambda g: {**voter, "timeout_ms": 1_000, "listeners": []},
    )
    yield ask(ApiKey.REMOVE_RAFT_VOTER, "in another cluster", only, lambda g: voter)


def _software(ground: Ground) -> Fields:
    return since(ground, 3, client_software_name="tests", client_software_version="1")


def _reassignments() -> Iterator[Question]:
    kinds = (CLUSTER, TOPIC)
    yield ask(
        ApiKey.ELECT_LEADERS,
        "of topics",
        kinds,
        lambda g: {"topic_partitions": [{"topic": each, "partitions": [0]} for each in TOPICS]},
    )
    yield ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        "cancelled",
        kinds,
        lambda g: {
            "topics": [
                {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]}
                for topic in TOPICS
            ]
        },
    )
    yield ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        "of topics",
        kinds,
        lambda g: {"topics": [{"name": topic, "partition_indexes": [0]} for topic in TOPICS]},
    )


def _access() -> Iterator[Question]:
    only = (CLUSTER,)
    wanted: Fields = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": "User:no such user",
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": PermissionType.ANY,
    }
    entry: Fields = {
        "resource_type": CLUSTER,
        "resource_name": "not the name of a cluster",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:x",
        "host": "*",
        "operation": Operation.ALTER,
        "permission_type": PermissionType.ALLOW,
    }
    yield ask(ApiKey.DESCRIBE_ACLS, "of none such", only, lambda g: wanted)
    yield ask(ApiKey.DELETE_ACLS, "of none such", only, lambda g: {"filters": [wanted]})
    yield ask(ApiKey.CREATE_ACLS, "a bad one", only, lambda g: {"creations": [entry]})
    part = {"entity_type": "user", "entity_name": "x"}
    yield ask(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        "of users",
        only,
        lambda g: {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
    )
    yield ask(
        ApiKey.ALTER_CLIENT_QUOTAS,
        "only validated",
        only,
        lambda g: {
            "entries": [{"entity": [part], "ops": [{"key": "request_percentage", "value": 5.0}]}],
            "validate_only": True,
        },
    )
    yield ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        "of users",
        (CLUSTER, USER),
        lambda g: {"users": [{"name": OWNER}, {"name": "x"}]},
    )
    yield ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        "delete none such",
        (CLUSTER, USER),
        lambda g: {"deletions": [{"name": "x", "mechanism": 1}], "upsertions": []},
    )


def _tokens() -> Iterator[Question]:
    kinds = (USER, TOKEN)
    bad = [{"principal_type": "Group", "principal_name": "x"}]
    yield ask(
        ApiKey.CREATE_DELEGATION_TOKEN,
        "for oneself, a bad renewer",
        kinds,
        lambda g: {"renewers": bad, "max_lifetime_ms": -1},
    )
    for owner in (OWNER, "x"):
        yield ask(
            ApiKey.CREATE_DELEGATION_TOKEN,
            f"for {owner}, a bad renewer",
            kinds,
            lambda g, owner=owner: {
                "owner_principal_type": "User",
                "owner_principal_name": owner,
                "renewers": bad,
                "max_lifetime_ms": -1,
            },
            first=3,
        )
    principals = [{"principal_type": "User", "principal_name": each} for each in (OWNER, "x")]
    for word, owners in (("all", None), ("of owners", principals), ("of none", [])):
        yield ask(
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            word,
            kinds,
            lambda g, owners=owners: {"owners": owners},
        )
    for word in ("another's", "no such"):

        def secret(ground: Ground, word: str = word) -> bytes:
            return cast(Side, ground.node).hmac if word == "another's" else b"no such token"

        yield ask(
            ApiKey.RENEW_DELEGATION_TOKEN,
            word,
            kinds,
            lambda g, secret=secret: {"hmac": secret(g), "renew_period_ms": -1},
        )
        yield ask(
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            word,
            kinds,
            lambda g, secret=secret: {"hmac": secret(g), "expiry_time_period_ms": 10**9},
        )
