"""Cases about topics, partitions, records and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.asking import Ground
from tests.interop.differential.running import Case

Fields = dict[str, Any]

FIXED: Final = "fixed"
"""A topic with three partitions that no case changes."""

UNKNOWN_ID: Final = UUID(int=77)

BAD_NAMES: Final = {
    "empty": "",
    "dot": ".",
    "two dots": "..",
    "a space": "a b",
    "a slash": "a/b",
    "an umlaut": "ä",
    "too long": "x" * 250,
    "the longest": "x" * 249,
    "internal": "__consumer_offsets",
    "metadata": "__cluster_metadata",
}


RETENTION: Final = [{"name": "retention.ms", "value": "5000"}]
PLACED: Final = {"num_partitions": -1, "replication_factor": -1}
CREATIONS: Final[dict[str, Fields]] = {
    "one partition": {},
    "defaults": PLACED,
    "no partitions": {"num_partitions": 0},
    "minus two partitions": {"num_partitions": -2},
    "too many partitions": {"num_partitions": 2_000_000_000},
    "no replicas": {"replication_factor": 0},
    "minus two replicas": {"replication_factor": -2},
    "two replicas": {"replication_factor": 2},
    "a configuration": {"configs": RETENTION},
    "an unknown key": {"configs": [{"name": "no.such.key", "value": "1"}]},
    "a bad value": {"configs": [{"name": "retention.ms", "value": "soon"}]},
    "a null value": {"configs": [{"name": "retention.ms", "value": None}]},
    "an empty key": {"configs": [{"name": "", "value": "1"}]},
    "a key twice": {"configs": [*RETENTION, {"name": "retention.ms", "value": "6000"}]},
    "replicas given": {**PLACED, "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
    "replicas and counts given": {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
    "replicas of an unknown broker": {
        **PLACED,
        "assignments": [{"partition_index": 0, "broker_ids": [9]}],
    },
    "a replica twice": {
        **PLACED,
        "assignments": [{"partition_index": 0, "broker_ids": [1, 1]}],
    },
    "no replicas given": {**PLACED, "assignments": [{"partition_index": 0, "broker_ids": []}]},
    "a gap between partitions": {
        **PLACED,
        "assignments": [{"partition_index": each, "broker_ids": [1]} for each in (0, 2)],
    },
    "a partition given twice": {
        **PLACED,
        "assignments": [{"partition_index": 0, "broker_ids": [1]} for _ in range(2)],
    },
    "replica counts that differ": {
        **PLACED,
        "assignments": [
            {"partition_index": 0, "broker_ids": [1]},
            {"partition_index": 1, "broker_ids": [1, 2]},
        ],
    },
    "partitions in reverse": {
        **PLACED,
        "assignments": [{"partition_index": each, "broker_ids": [1]} for each in (1, 0)],
    },
}
"""What is asked of a topic, beside its name."""


def setup() -> Iterator[Case]:
    """The topics that all other cases rely on."""
    yield _create(
        "the fixed topics",
        lambda v: [
            {"name": FIXED, "num_partitions": 3, "replication_factor": 1},
            {
                "name": "fixed.configured",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [
                    {"name": "retention.ms", "value": "1000000"},
                    {"name": "cleanup.policy", "value": "compact,delete"},
                ],
            },
            {"name": "fixed_dotted", "num_partitions": 1, "replication_factor": 1},
        ],
        versions=(7,),
    )


def cases() -> Iterator[Case]:
    """All of them, changes before what reads them."""
    yield from _create_topics()
    yield from _create_partitions()
    yield from _metadata()
    yield from _describe_topic_partitions()
    yield from _reassignments()
    yield from _listed_reassignments()
    yield from _elections()
    yield from _records()
    yield from _log_dirs()
    yield from _producers()
    yield from _delete_topics()


def _create(
    name: str,
    topics: Callable[[int], list[Fields]],
    *,
    versions: tuple[int, ...] | None = None,
    **others: Any,
) -> Case:
    def fields(ground: Ground) -> Fields:
        return {"topics": topics(ground.api_version), "timeout_ms": 30_000, **others}

    return Case(ApiKey.CREATE_TOPICS, name, fields, changes=True, versions=versions)


def _create_topics() -> Iterator[Case]:
    def one(stem: str, **values: Any) -> Callable[[int], list[Fields]]:
        plain = {"num_partitions": 1, "replication_factor": 1}
        return lambda v: [{"name": f"{stem}-{v}", **plain, **values}]

    for name, body in CREATIONS.items():
        stem = "create-" + name.replace(" ", "-")
        if name != "a key twice":  # one of the two does not take it: what follows would differ
            yield _create(name, one(stem, **body))
        yield _create(f"{name}, only validated", one(f"{stem}-v", **body), validate_only=True)
    plain = {"num_partitions": 1, "replication_factor": 1}
    for name, topic in BAD_NAMES.items():
        yield _create(
            f"name: {name}", lambda v, topic=topic: [{"name": topic, **plain}], validate_only=True
        )
    yield _create("no topics", lambda v: [])
    yield _create("there already", lambda v: [{"name": FIXED, **plain}])
    yield _create(
        "there already, validated", lambda v: [{"name": FIXED, **plain}], validate_only=True
    )
    yield _create("collides by dot and underscore", lambda v: [{"name": "fixed.dotted", **plain}])
    yield _create("named twice", lambda v: [{"name": f"twice-{v}", **plain}] * 2)
    yield _create(
        "twice among others",
        lambda v: [{"name": f"{stem}-{v}", **plain} for stem in ("tw", "lone", "tw")],
    )
    yield _create(
        "good and bad",
        lambda v: [
            {"name": f"good-{v}", **plain},
            {"name": "bad/name", **plain},
            {"name": f"good2-{v}", **plain, "replication_factor": 7},
        ],
    )
    yield _create(
        "no time", lambda v: [{"name": f"no-time-{v}", **plain}], timeout_ms=0, validate_only=True
    )
    yield _create("two partitions", lambda v: [{"name": f"two-{v}", **plain, "num_partitions": 2}])


def _create_partitions() -> Iterator[Case]:
    def case(name: str, topics: list[Fields], **others: Any) -> Case:
        return Case(
            ApiKey.CREATE_PARTITIONS,
            name,
            lambda g: {
                "topics": [
                    {**topic, "name": topic["name"].format(v=g.api_version)} for topic in topics
                ],
                "timeout_ms": 30_000,
                **others,
            },
            changes=True,
        )

    grown = "create-one-partition-{v}"
    for v in (0, 1):  # CreateTopics begins with version 2
        yield _create(
            f"for partitions {v}",
            lambda _, v=v: [
                {"name": f"create-one-partition-{v}", "num_partitions": 1, "replication_factor": 1}
            ],
            versions=(7,),
        )
    yield case(
        "only validated", [{"name": grown, "count": 2, "assignments": None}], validate_only=True
    )
    yield case("two", [{"name": grown, "count": 2, "assignments": None}])
    yield case("the same", [{"name": grown, "count": 2, "assignments": None}])
    yield case("fewer", [{"name": grown, "count": 1, "assignments": None}])
    yield case("none", [{"name": grown, "count": 0, "assignments": None}])
    yield case("negative", [{"name": grown, "count": -1, "assignments": None}])
    yield case("too many", [{"name": grown, "count": 2_000_000_000, "assignments": None}])
    yield case("unknown topic", [{"name": "no-such", "count": 2, "assignments": None}])
    yield case("empty name", [{"name": "", "count": 2, "assignments": None}])
    yield case("bad name", [{"name": "a/b", "count": 2, "assignments": None}])
    yield case("twice", [{"name": grown, "count": 5, "assignments": None}] * 2)
    yield case("no topics", [])
    yield case("internal", [{"name": "__cluster_metadata", "count": 2, "assignments": None}])
    for name, assignments in {
        "placed": [[1]],
        "placed too few": [],
        "placed too many": [[1], [1]],
        "placed on an unknown broker": [[5]],
        "placed on one broker twice": [[1, 1]],
        "placed nowhere": [[]],
        "placed on two": [[1, 5]],
        "placed on a negative broker": [[-1]],
    }.items():
        placed = [{"broker_ids": each} for each in assignments]
        yield case(name, [{"name": grown, "count": 3, "assignments": placed}], validate_only=True)
    yield case(
        "no time",
        [{"name": grown, "count": 3, "assignments": None}],
        timeout_ms=0,
        validate_only=True,
    )


def _metadata() -> Iterator[Case]:
    def case(name: str, topics: Any, **others: Any) -> Case:
        return Case(
            ApiKey.METADATA,
            name,
            lambda g: {
                "topics": topics(g) if callable(topics) else topics,
                "allow_auto_topic_creation": g.api_version < 4,
                **others,
            },
        )

    yield case("all topics", None)
    yield case("no topics", [])
    yield case("one", [{"name": FIXED}])
    yield case("two", [{"name": FIXED}, {"name": "fixed_dotted"}])
    yield case("reversed", [{"name": "fixed_dotted"}, {"name": FIXED}])
    yield case("twice", [{"name": FIXED}, {"name": FIXED}])
    for name, topic in BAD_NAMES.items():
        if name not in ("internal", "the longest"):
            yield case(f"name: {name}", [{"name": topic}])
    yield Case(
        ApiKey.METADATA,
        "unknown",
        lambda g: {
            "topics": [{"name": "no-such"}],
            "allow_auto_topic_creation": False,
        },
    )
    yield Case(
        ApiKey.METADATA,
        "known and unknown",
        lambda g: {
            "topics": [{"name": "no-such"}, {"name": FIXED}, {"name": "nor-this"}],
            "allow_auto_topic_creation": False,
        },
    )
    yield case("null name", [{"name": None}])
    yield case("by id", lambda g: [{"topic_id": g.topic_id(FIXED), "name": None}])
    yield case("by unknown id", [{"topic_id": UNKNOWN_ID, "name": None}])
    yield case("by id and name", lambda g: [{"topic_id": g.topic_id(FIXED), "name": FIXED}])
    yield case("by wrong id and name", [{"topic_id": UNKNOWN_ID, "name": FIXED}])
    yield case(
        "by ids",
        lambda g: [
            {"topic_id": g.topic_id(FIXED), "name": None},
            {"topic_id": UNKNOWN_ID, "name": None},
            {"topic_id": g.topic_id("fixed_dotted"), "name": None},
        ],
    )
    yield case("authorized operations", [{"name": FIXED}], include_topic_authorized_operations=True)
    yield case(
        "authorized operations of all",
        [{"name": FIXED}],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def _describe_topic_partitions() -> Iterator[Case]:
    def case(name: str, topics: list[str], **others: Any) -> Case:
        return Case(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            name,
            lambda g: {"topics": [{"name": each} for each in topics], **others},
        )

    yield case("all", [])
    yield case("one", [FIXED])
    yield case("two reversed", ["fixed_dotted", FIXED])
    yield case("twice", [FIXED, FIXED])
    yield case("unknown", ["no-such", FIXED])
    for name, topic in BAD_NAMES.items():
        if name != "internal":
            yield case(f"name: {name}", [topic])
    for limit in (-1, 0, 1, 2, 4, 3_000_000):
        yield case(f"limit {limit}", [FIXED, "fixed_dotted"], response_partition_limit=limit)
    for place in ((FIXED, 0), (FIXED, 1), (FIXED, 9), (FIXED, -1), ("nix", 0), ("a", 0), ("", 0)):
        cursor = {"topic_name": place[0], "partition_index": place[1]}
        yield case(f"cursor {place[0]}-{place[1]}", [FIXED, "fixed_dotted"], cursor=cursor)
        yield case(
            f"cursor {place[0]}-{place[1]} in all", [], cursor=cursor, response_partition_limit=3
        )


def _reassignments() -> Iterator[Case]:
    def alter(name: str, topics: list[Fields], **others: Any) -> Case:
        return Case(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            name,
            lambda g: {"topics": topics, "timeout_ms": 30_000, **others},
            changes=True,
        )

    for name, replicas in {
        "as it is": [1],
        "cancel": None,
        "nowhere": [],
        "unknown broker": [9],
        "twice there": [1, 1],
        "negative broker": [-1],
        "more": [1, 9],
    }.items():
        yield alter(
            name, [{"name": FIXED, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        )
        yield alter(
            f"{name}, count kept",
            [{"name": FIXED, "partitions": [{"partition_index": 0, "replicas": replicas}]}],
            allow_replication_factor_change=False,
        )
    for name, index, topic in (
        ("unknown partition", 9, FIXED),
        ("negative partition", -1, FIXED),
        ("unknown topic", 0, "no-such"),
        ("bad name", 0, "a/b"),
        ("empty name", 0, ""),
    ):
        yield alter(
            name, [{"name": topic, "partitions": [{"partition_index": index, "replicas": [1]}]}]
        )
    yield alter("no topics", [])
    yield alter("no partitions", [{"name": FIXED, "partitions": []}])
    yield alter(
        "partition twice",
        [
            {
                "name": FIXED,
                "partitions": [
                    {"partition_index": 0, "replicas": [1]},
                    {"partition_index": 0, "replicas": [1]},
                ],
            }
        ],
    )
    yield alter(
        "topic twice",
        [
            {"name": FIXED, "partitions": [{"partition_index": each, "replicas": [1]}]}
            for each in (0, 1)
        ],
    )
    yield alter(
        "no time",
        [{"name": FIXED, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        timeout_ms=0,
    )


def _listed_reassignments() -> Iterator[Case]:
    def listing(name: str, topics: list[Fields] | None) -> Case:
        return Case(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            name,
            lambda g: {"topics": topics, "timeout_ms": 30_000},
        )

    yield listing("all", None)
    yield listing("none", [])
    yield listing("one", [{"name": FIXED, "partition_indexes": [0, 1]}])
    yield listing("unknown partition", [{"name": FIXED, "partition_indexes": [9, -1]}])
    yield listing("unknown topic", [{"name": "no-such", "partition_indexes": [0]}])
    yield listing("bad name", [{"name": "a/b", "partition_indexes": [0]}])
    yield listing("twice", [{"name": FIXED, "partition_indexes": [0, 0]}] * 2)


def _elections() -> Iterator[Case]:
    def case(
        name: str, topics: list[Fields] | None, kind: int = 0, timeout_ms: int = 30_000
    ) -> Case:
        return Case(
            ApiKey.ELECT_LEADERS,
            name,
            lambda g: {
                "topic_partitions": topics,
                "timeout_ms": timeout_ms,
                **({"election_type": kind} if g.api_version >= 1 else {}),
            },
            changes=True,
        )

    for kind in (0, 1, 2, -1):
        yield case(f"one, type {kind}", [{"topic": FIXED, "partitions": [0]}], kind)
        yield case(f"all, type {kind}", None, kind)
    yield case("no topics", [])
    yield case("no partitions", [{"topic": FIXED, "partitions": []}])
    yield case("unknown partition", [{"topic": FIXED, "partitions": [0, 9, -1]}])
    yield case("unknown topic", [{"topic": "no-such", "partitions": [0]}])
    yield case("bad name", [{"topic": "a/b", "partitions": [0]}])
    yield case("partition twice", [{"topic": FIXED, "partitions": [0, 0]}])
    yield case("topic twice", [{"topic": FIXED, "partitions": [each]} for each in (0, 1)])
    yield case("no time", [{"topic": FIXED, "partitions": [0]}], timeout_ms=0)


def _records() -> Iterator[Case]:
    def case(
        name: str, topics: list[tuple[str, list[tuple[int, int]]]], timeout_ms: int = 9000
    ) -> Case:
        return Case(
            ApiKey.DELETE_RECORDS,
            name,
            lambda g: {
                "timeout_ms": timeout_ms,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": index, "offset": offset} for index, offset in parts
                        ],
                    }
                    for topic, parts in topics
                ],
            },
        )

    for offset in (0, -1, -2, 1, 99):
        yield case(f"to {offset}", [(FIXED, [(0, offset)])])
    yield case("unknown partition", [(FIXED, [(9, 0), (-1, 0), (1, 0)])])
    yield case("unknown topic", [("no-such", [(0, 0)]), (FIXED, [(0, 0)])])
    yield case("bad name", [("a/b", [(0, 0)])])
    yield case("empty name", [("", [(0, 0)])])
    yield case("partition twice", [(FIXED, [(0, 0), (0, 0)])])
    yield case("topic twice", [(FIXED, [(0, 0)]), (FIXED, [(1, 0)])])
    yield case("no topics", [])
    yield case("no partitions", [(FIXED, [])])
    yield case("no time", [(FIXED, [(0, 0)])], 0)
    yield case("negative time", [(FIXED, [(0, 0)])], -1)
    yield case("compacted and deleted", [("fixed.configured", [(0, 0)])])


def _log_dirs() -> Iterator[Case]:
    def case(name: str, topics: list[Fields] | None) -> Case:
        return Case(ApiKey.DESCRIBE_LOG_DIRS, name, lambda g: {"topics": topics})

    yield case("all", None)
    yield case("none", [])
    yield case("one", [{"topic": FIXED, "partitions": [0, 2]}])
    yield case("no partitions", [{"topic": FIXED, "partitions": []}])
    yield case("unknown", [{"topic": "no-such", "partitions": [0]}])
    yield case("unknown partition", [{"topic": FIXED, "partitions": [7]}])
    yield case("twice", [{"topic": FIXED, "partitions": [0]}] * 2)
    yield case("bad name", [{"topic": "a/b", "partitions": [0]}])


def _producers() -> Iterator[Case]:
    def case(name: str, topics: list[Fields]) -> Case:
        return Case(ApiKey.DESCRIBE_PRODUCERS, name, lambda g: {"topics": topics})

    yield case("one", [{"name": FIXED, "partition_indexes": [0, 1]}])
    yield case("unknown partition", [{"name": FIXED, "partition_indexes": [9, -1]}])
    yield case("unknown topic", [{"name": "no-such", "partition_indexes": [0]}])
    for name, topic in BAD_NAMES.items():
        yield case(f"name: {name}", [{"name": topic, "partition_indexes": [0]}])
    yield case("none", [])
    yield case("no partitions", [{"name": FIXED, "partition_indexes": []}])
    yield case("partition twice", [{"name": FIXED, "partition_indexes": [0, 0]}])
    yield case("topic twice", [{"name": FIXED, "partition_indexes": [0]}] * 2)


def _delete_topics() -> Iterator[Case]:
    def case(name: str, names: Callable[[int], list[str]], **others: Any) -> Case:
        def fields(ground: Ground) -> Fields:
            chosen = names(ground.api_version)
            by_state = ground.api_version >= 6
            topics = [{"name": each} for each in chosen]
            return {
                **({"topics": topics} if by_state else {"topic_names": chosen}),
                "timeout_ms": 30_000,
                **others,
            }

        return Case(ApiKey.DELETE_TOPICS, name, fields, changes=True)

    def by_id(name: str, topics: Callable[[Ground], list[Fields]]) -> Case:
        return Case(
            ApiKey.DELETE_TOPICS,
            name,
            lambda g: {"topics": topics(g), "timeout_ms": 30_000},
            changes=True,
            versions=(6,),
        )

    yield _create(
        "one for version 1",
        lambda v: [{"name": "two-1", "num_partitions": 1, "replication_factor": 1}],
        versions=(7,),
    )
    yield case("one", lambda v: [f"two-{v}"])
    yield case("gone", lambda v: [f"two-{v}"])
    yield case("unknown among others", lambda v: ["no-such", f"good-{v}"])
    yield case("none", lambda v: [])
    yield case("twice", lambda v: [FIXED, FIXED])
    yield case("internal", lambda v: ["__cluster_metadata"])
    for word, bad in BAD_NAMES.items():
        if word not in ("internal", "metadata"):
            yield case(f"name: {word}", lambda v, bad=bad: [bad])
    yield case("no time", lambda v: ["no-such"], timeout_ms=0)
    yield by_id("by id", lambda g: [{"topic_id": g.topic_id("create-defaults-7")}])
    yield by_id("by unknown id", lambda g: [{"topic_id": UNKNOWN_ID}])
    yield by_id("by neither", lambda g: [{"name": None}])
    yield by_id("by both", lambda g: [{"name": FIXED, "topic_id": g.topic_id(FIXED)}])
    yield by_id("id twice", lambda g: [{"topic_id": g.topic_id(FIXED)}] * 2)
    yield by_id("id and name of one", lambda g: [{"name": FIXED}, {"topic_id": g.topic_id(FIXED)}])
