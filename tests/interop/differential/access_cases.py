"""Cases about access control entries: made, listed and removed by every kind of filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.running import Case

ENTRY: Final[dict[str, Any]] = {
    "resource_type": ResourceType.TOPIC,
    "resource_name": "orders",
    "resource_pattern_type": PatternType.LITERAL,
    "principal": "User:alice",
    "host": "*",
    "operation": Operation.READ,
    "permission_type": PermissionType.ALLOW,
}
FILTER: Final[dict[str, Any]] = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": PermissionType.ANY,
}
ENTRIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"operation": Operation.WRITE, "principal": "User:bob"},
    {"resource_name": "orders-eu", "host": "10.0.0.1"},
    {"resource_name": "*", "permission_type": PermissionType.DENY},
    {"resource_name": "ord", "resource_pattern_type": PatternType.PREFIXED},
    {"resource_name": "*", "resource_pattern_type": PatternType.PREFIXED},
    {"resource_type": ResourceType.GROUP, "principal": "User:*"},
    {"resource_type": ResourceType.CLUSTER, "resource_name": "kafka-cluster"},
    {"resource_type": ResourceType.TRANSACTIONAL_ID, "operation": Operation.TWO_PHASE_COMMIT},
    {"resource_type": ResourceType.USER, "operation": Operation.CREATE_TOKENS},
    {"resource_type": ResourceType.DELEGATION_TOKEN, "operation": Operation.DESCRIBE},
    {"principal": "Group:ops"},
    {"principal": "User:"},
    {"principal": ":x"},
    {"principal": "User:a:b"},
    {"principal": "User:Jürgen \U0001f600"},
    {"host": ""},
    {"host": "not an address"},
    {"host": "2001:db8:0:0:0:0:0:5"},
    {"host": "2001:DB8::5"},
    {"host": "::ffff:10.0.0.1"},
    {"host": "fe80:0:0:0:0:0:0:1%eth0"},
    {"host": "10.0.0.0/8"},
    {"host": "2001:db8::/129"},
    {"operation": Operation.ALL},
    {"operation": Operation.CLUSTER_ACTION},
    {"resource_name": "name with spaces / and é"},
)
BAD: Final[tuple[dict[str, Any], ...]] = (
    {"resource_name": ""},
    {"resource_type": ResourceType.CLUSTER},
    {"resource_type": ResourceType.CLUSTER, "resource_name": "*"},
    {"principal": ""},
    {"principal": "alice"},
    *({"resource_type": number} for number in (-1, 0, 1, 8, 99)),
    *({"resource_pattern_type": number} for number in (-1, 0, 1, 2, 5)),
    *({"operation": number} for number in (-1, 0, 1, 16, 99)),
    *({"permission_type": number} for number in (-1, 0, 1, 4)),
)


def _filters() -> Iterator[dict[str, Any]]:
    yield {}
    for kind in (-1, *ResourceType, 8):
        yield {"resource_type_filter": kind}
    names = ("orders", "orders-eu", "ord", "o", "*", "", "kafka-cluster", "zzz")
    for pattern in (-1, *PatternType, 5):
        yield {"pattern_type_filter": pattern}
        for name in names:
            yield {"pattern_type_filter": pattern, "resource_name_filter": name}
    for principal in ("User:alice", "User:*", "User:nobody", "", "alice"):
        yield {"principal_filter": principal}
    for host in ("*", "10.0.0.1", "", "2001:db8:0:0:0:0:0:5", "2001:db8::5", "10.0.0.0/8"):
        yield {"host_filter": host}
    for operation in (-1, *Operation, 16):
        yield {"operation": operation}
    for permission in (-1, *PermissionType, 4):
        yield {"permission_type": permission}
    yield {"resource_type_filter": ResourceType.TOPIC, "operation": Operation.WRITE}


def _word(fields: dict[str, Any]) -> str:
    numbers = {each for each in fields.values() if isinstance(each, int)}
    what = ", ".join(
        f"{name} {int(each) if isinstance(each, int) else each!r}" for name, each in fields.items()
    )
    return f"{'zero: ' if 0 in numbers else ''}{what}"


def _create(name: str, *entries: dict[str, Any], **options: Any) -> Case:
    creations = [{**ENTRY, **each} for each in entries]
    make = {"creations": creations}
    return Case(ApiKey.CREATE_ACLS, name, lambda g: make, changes=True, **options)


def _describe(name: str, wanted: dict[str, Any], **options: Any) -> Case:
    return Case(ApiKey.DESCRIBE_ACLS, name, lambda g: {**FILTER, **wanted}, **options)


def _delete(name: str, *filters: dict[str, Any], **options: Any) -> Case:
    wanted = [{**FILTER, **each} for each in filters]
    make = {"filters": wanted}
    return Case(ApiKey.DELETE_ACLS, name, lambda g: make, changes=True, **options)


def disabled() -> Iterator[Case]:
    """What a cluster without an authorizer says."""
    yield _create("no authorizer", {})
    yield _create("no authorizer, nothing")
    yield _create("no authorizer, bad", {"resource_name": ""})
    yield _describe("no authorizer", {})
    yield _delete("no authorizer", {})
    yield _delete("no authorizer, nothing")


def cases() -> Iterator[Case]:
    """All of them, for clusters with an authorizer."""
    for each in BAD:
        yield _create(f"bad {_word(each)}", each)
    yield _create("nothing")
    yield _create("all", *ENTRIES)
    yield _create("good, bad and good", {}, {"resource_name": ""}, {"resource_name": "second"})
    yield _create("twice", {"resource_name": "twice"}, {"resource_name": "twice"})
    for wanted in _filters():
        yield _describe(_word(wanted), wanted)
    yield _delete("nothing")
    for index, wanted in enumerate(_filters()):
        version = (1 + index % 3,)
        word = _word(wanted)
        yield _create(f"all again before {word}", *ENTRIES, versions=version)
        yield _delete(word, wanted, versions=version)
        yield _describe(f"what {word} left", {}, versions=(3,))
    for version in (1, 2, 3):
        yield _create("all once more", *ENTRIES, versions=(version,))
        yield _delete(
            "three filters",
            {"resource_type_filter": ResourceType.TOPIC},
            {"resource_name_filter": "orders"},
            {"resource_name_filter": "zzz"},
            versions=(version,),
        )
    yield _describe("at the end", {})
