"""Cases about groups, their offsets, coordinators and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.asking import Ground
from tests.interop.differential.running import Case
from tests.interop.differential.topic_cases import FIXED, UNKNOWN_ID

GROUPS: Final = ("offsets-only", "modern", "no-such-group", "")
OPERATIONS: Final = 3
TYPES_SINCE, STATES_SINCE = 5, 4


def setup() -> Iterator[Case]:
    """A group that has only offsets, and one of the new protocol with one member."""
    yield Case(
        ApiKey.FIND_COORDINATOR,
        "makes the internal topics",
        lambda g: {"key": "offsets-only", "key_type": 0},
        changes=True,
        versions=(3,),
    )
    yield Case(
        ApiKey.FIND_COORDINATOR,
        "makes the transaction topic",
        lambda g: {"key": "t", "key_type": 1},
        changes=True,
        versions=(3,),
    )


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _coordinators()
    yield from _commits()
    yield from _fetches()
    yield from _members()
    yield from _descriptions()
    yield from _transactions()
    yield from _deletions()


def _coordinators() -> Iterator[Case]:
    for kind in (0, 1, 2, 3, -1):
        for key in ("offsets-only", "", "ä", "x" * 300, "g:AAAAAAAAAAAAAAAAAAAATQ:0"):
            word = key if len(key) < 30 else "long"

            def fields(ground: Ground, key: str = key, kind: int = kind) -> dict[str, Any]:
                if ground.api_version >= 4:
                    return {"coordinator_keys": [key], "key_type": kind}
                return {"key": key, **({"key_type": kind} if ground.api_version else {})}

            yield Case(ApiKey.FIND_COORDINATOR, f"type {kind} {word!r}", fields)
    for word, keys in (("none", []), ("two", ["a", "b"]), ("twice", ["a", "a"])):
        yield Case(
            ApiKey.FIND_COORDINATOR,
            word,
            lambda g, keys=keys: {"coordinator_keys": keys, "key_type": 0},
            versions=(4, 5, 6),
        )


def _topic(ground: Ground, name: str) -> dict[str, Any]:
    """A topic as OffsetCommit and OffsetFetch name it: by id since version 10."""
    if ground.api_version < 10:
        return {"name": name}
    return {"topic_id": ground.node.topic_ids.get(name, UNKNOWN_ID)}


def _commits() -> Iterator[Case]:
    def case(name: str, group: str, topic: str = FIXED, **partition: Any) -> Case:
        values = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}

        def fields(ground: Ground) -> dict[str, Any]:
            member = {
                each: partition[each]
                for each in ("generation_id_or_member_epoch", "member_id", "group_instance_id")
                if each in partition
            }
            committed = {key: value for key, value in partition.items() if key not in member}
            return {
                "group_id": group,
                **member,
                "topics": [{**_topic(ground, topic), "partitions": [{**values, **committed}]}],
            }

        return Case(ApiKey.OFFSET_COMMIT, name, fields)

    yield case("good", "offsets-only")
    yield case("null metadata", "offsets-only", committed_metadata=None, partition_index=1)
    yield case("too much metadata", "offsets-only", committed_metadata="m" * 5000)
    yield case("negative offset", "offsets-only", committed_offset=-1, partition_index=2)
    yield case("unknown partition", "offsets-only", partition_index=9)
    yield case("negative partition", "offsets-only", partition_index=-1)
    yield case("unknown topic", "offsets-only", "no-such")
    yield case("bad topic", "offsets-only", "a/b")
    yield case("no group", "")
    yield case("as a member", "offsets-only", member_id="m", generation_id_or_member_epoch=1)
    yield case(
        "as a member of none", "no-such-group", member_id="m", generation_id_or_member_epoch=1
    )
    yield case("as an instance", "offsets-only", group_instance_id="i")
    yield case("generation without a member", "no-such-group", generation_id_or_member_epoch=3)
    yield case("in the modern group", "modern")


def _fetches() -> Iterator[Case]:
    def case(name: str, group: str, topics: list[tuple[str, list[int]]] | None) -> Case:
        def fields(ground: Ground) -> dict[str, Any]:
            if ground.api_version >= 8:
                asked = topics and [
                    {**_topic(ground, topic), "partition_indexes": parts} for topic, parts in topics
                ]
                return {"groups": [{"group_id": group, "topics": asked}]}
            old = topics and [
                {"name": topic, "partition_indexes": parts} for topic, parts in topics
            ]
            return {"group_id": group, "topics": old}

        return Case(ApiKey.OFFSET_FETCH, name, fields)

    for group in GROUPS:
        yield case(f"{group!r} all", group, None)
        yield case(f"{group!r} none", group, [])
        yield case(f"{group!r} some", group, [(FIXED, [0, 1, 2, 9])])
        yield case(f"{group!r} unknown topic", group, [("no-such", [0]), (FIXED, [0])])
        yield case(f"{group!r} partition twice", group, [(FIXED, [0, 0])])
        yield case(f"{group!r} topic twice", group, [(FIXED, [0]), (FIXED, [1])])
        yield Case(
            ApiKey.OFFSET_FETCH,
            f"{group!r} as a member",
            lambda g, group=group: {
                "groups": [{"group_id": group, "topics": None, "member_id": "m", "member_epoch": 1}]
            },
            versions=(9, 10),
        )
    yield Case(
        ApiKey.OFFSET_FETCH,
        "several groups",
        lambda g: {"groups": [{"group_id": each, "topics": None} for each in GROUPS]},
    )
    yield Case(ApiKey.OFFSET_FETCH, "no groups", lambda g: {"groups": []}, versions=(8, 9, 10))


def _members() -> Iterator[Case]:
    def case(name: str, group: str, **fields: Any) -> Case:
        return Case(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            name,
            lambda g: {
                "group_id": group.format(v=g.api_version),
                "member_id": "first-member",
                **fields,
            },
        )

    joining: dict[str, Any] = {
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [FIXED],
        "topic_partitions": [],
    }
    yield case("joins", "modern-{v}", **joining)
    yield case("goes on", "modern-{v}", member_epoch=2, topic_partitions=[])
    yield case("same again", "modern-{v}", **joining)
    yield case("wrong epoch", "modern-{v}", member_epoch=7)
    yield case("no timeout", "bad-{v}", **{**joining, "rebalance_timeout_ms": -1})
    yield case("no topics", "bad-{v}", **{**joining, "subscribed_topic_names": None})
    yield case("empty topics", "empty-{v}", **{**joining, "subscribed_topic_names": []})
    yield case("owned at once", "bad-{v}", **{**joining, "topic_partitions": None})
    yield case("unknown assignor", "bad-{v}", **joining, server_assignor="none")
    yield case("empty assignor", "bad-{v}", **joining, server_assignor="")
    yield case("a known assignor", "range-{v}", **joining, server_assignor="range")
    yield case("empty group", "", **joining)
    yield case("empty instance", "bad-{v}", **joining, instance_id="")
    yield case("empty rack", "bad-{v}", **joining, rack_id="")
    yield case("a rack", "racked-{v}", **joining, rack_id="r1")
    yield case("unknown topic", "unknown-{v}", **{**joining, "subscribed_topic_names": ["no-such"]})
    yield case("instance", "static-{v}", **joining, instance_id="i1")
    yield case("same instance", "static-{v}", **joining, instance_id="i1", member_id="second")
    yield case(
        "pattern",
        "pattern-{v}",
        **{**joining, "subscribed_topic_names": None},
        subscribed_topic_regex="fix.*",
    )
    yield case(
        "bad pattern",
        "pattern-{v}",
        **{**joining, "subscribed_topic_names": None},
        subscribed_topic_regex="fix[",
    )
    yield case("never there", "modern-{v}", member_id="x", member_epoch=1)
    yield case("no such group", "none-{v}", member_id="x", member_epoch=1)
    yield case("leaves none", "none-{v}", member_id="x", member_epoch=-1)
    yield case("minus three", "none-{v}", member_id="x", member_epoch=-3)
    yield case("empty member", "bad-{v}", **{**joining, "member_id": ""})


def _descriptions() -> Iterator[Case]:
    def both(name: str, groups: list[str]) -> Iterator[Case]:
        for operations in (False, True):
            word = f"{name}{', operations' if operations else ''}"
            yield Case(
                ApiKey.DESCRIBE_GROUPS,
                word,
                lambda g, operations=operations: {
                    "groups": groups,
                    **(
                        {"include_authorized_operations": operations}
                        if g.api_version >= OPERATIONS
                        else {}
                    ),
                },
            )
            yield Case(
                ApiKey.CONSUMER_GROUP_DESCRIBE,
                word,
                lambda g, operations=operations: {
                    "group_ids": groups,
                    "include_authorized_operations": operations,
                },
            )

    for group in (*GROUPS, "modern-0", "static-1", "pattern-1", "empty-0", "range-0"):
        yield from both(repr(group), [group])
    yield from both("none", [])
    yield from both("twice", ["offsets-only"] * 2)
    yield from both("several", ["offsets-only", "no-such-group", "modern-0"])
    for states in ([], ["Stable"], ["empty"], ["Empty", "stable"], ["no-such-state"], [""]):
        yield Case(
            ApiKey.LIST_GROUPS,
            f"states {states}",
            lambda g, states=states: {"states_filter": states} if g.api_version >= 4 else {},
            versions=None if not states else (4, 5),
        )
    for types in (["classic"], ["Consumer"], ["share"], ["streams"], ["no-such-type"], [""]):
        yield Case(
            ApiKey.LIST_GROUPS,
            f"types {types}",
            lambda g, types=types: {"types_filter": types},
            versions=(5,),
        )


def _transactions() -> Iterator[Case]:
    for name, ids in {
        "none": [],
        "unknown": ["no-such"],
        "empty": [""],
        "twice": ["a", "a"],
    }.items():
        yield Case(
            ApiKey.DESCRIBE_TRANSACTIONS, name, lambda g, ids=ids: {"transactional_ids": ids}
        )
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "a state": {"state_filters": ["Ongoing"]},
        "an unknown state": {"state_filters": ["no-such", "Empty"]},
        "lower case": {"state_filters": ["ongoing"]},
        "a producer": {"producer_id_filters": [5, -1]},
        "a duration": {"duration_filter": 5},
        "a pattern": {"transactional_id_pattern": "t.*"},
        "a bad pattern": {"transactional_id_pattern": "t["},
        "an empty pattern": {"transactional_id_pattern": ""},
    }
    for name, fields in filters.items():
        yield Case(ApiKey.LIST_TRANSACTIONS, name, lambda g, fields=fields: fields)


def _deletions() -> Iterator[Case]:
    def offsets(name: str, group: str, topics: list[tuple[str, list[int]]]) -> Case:
        return Case(
            ApiKey.OFFSET_DELETE,
            name,
            lambda g: {
                "group_id": group,
                "topics": [
                    {"name": topic, "partitions": [{"partition_index": each} for each in parts]}
                    for topic, parts in topics
                ],
            },
        )

    yield offsets("one", "offsets-only", [(FIXED, [0, 0, 9])])
    yield offsets("unknown topic", "offsets-only", [("no-such", [0])])
    yield offsets("unknown group", "no-such-group", [(FIXED, [0])])
    yield offsets("empty group", "", [(FIXED, [0])])
    yield offsets("subscribed", "modern-0", [(FIXED, [0])])
    yield offsets("not subscribed", "modern-0", [("fixed_dotted", [0])])
    yield offsets("none", "offsets-only", [])
    for name, groups in {
        "unknown": ["no-such-group"],
        "empty name": [""],
        "none": [],
        "not empty": ["modern-0"],
        "twice": ["no-such-group"] * 2,
        "good and bad": ["offsets-only", "", "modern-1"],
        "gone": ["offsets-only"],
    }.items():
        yield Case(ApiKey.DELETE_GROUPS, name, lambda g, groups=groups: {"groups_names": groups})
