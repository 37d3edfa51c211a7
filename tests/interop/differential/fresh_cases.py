"""Cases on clusters that were never used: no `__consumer_offsets`, or no `__transaction_state`.

Owns the stages a fresh cluster goes through, and what is asked in each: every API that needs a
coordinator or an internal topic. Nothing but FindCoordinator makes such a topic, so that within a
stage the order of the requests says nothing; `made` shows that it is so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p24_add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from tests.interop.differential import group_cases
from tests.interop.differential.asking import Ground, Node, build
from tests.interop.differential.running import Case
from tests.interop.differential.topic_cases import FIXED
from tests.kit.waiting import until

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators' keys; also the first coordinator that a cluster is asked for."""

STRANGER: Final = (1_000_000, 0)
"""A producer that no coordinator knows."""

INIT_VERSION: Final = 3
TIMEOUT_MS: Final = 60_000
LEFT_OUT: Final = frozenset({"instance", "same instance", "pattern"})
"""Stages that are left out: in two with groups a static member joins a second time, which Apache
Kafka 4.3 refuses to it (apache/kafka#23542); and when a pattern's topics are found is a matter of
time, on both sides.
"""

ADDED: Final = (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.ADD_PARTITIONS_TO_TXN)


def stages(first: int) -> Iterator[tuple[str, int | None]]:
    """Each stage's name, and the kind of coordinator that a cluster is asked for to get there."""
    yield "fresh", None
    yield ("with groups" if first == GROUP else "with transactions"), first
    yield "with both", TRANSACTION if first == GROUP else GROUP


def make_coordinator(node: Node, kind: int) -> None:
    """Ask for a coordinator until its topic exists and is loaded."""
    request = FindCoordinatorRequest(key="first", key_type=kind)

    def is_found() -> bool:
        answer: Any = node.ask(request, INIT_VERSION)
        return bool(answer.error_code == ErrorCode.NONE)

    def is_loaded() -> bool:
        if kind == TRANSACTION:
            return _begin(node, "first", None) is not None
        answer: Any = node.ask(DescribeGroupsRequest(groups=["first"]), 0)
        return bool(answer.groups[0].error_code == ErrorCode.NONE)

    until(is_found, what=f"{node.name} has a coordinator of kind {kind}")
    until(is_loaded, what=f"{node.name} has loaded its coordinator of kind {kind}")


def use_an_id(node: Node) -> None:
    """Wait until the controller has given the broker producer ids, and the first of them is
    used.
    """
    request = InitProducerIdRequest(transactional_id=None)

    def is_given() -> bool:
        answer: Any = node.ask(request, INIT_VERSION)
        return bool(answer.error_code == ErrorCode.NONE)

    until(is_given, what=f"{node.name} gives a producer id")


def cases(stage: str) -> Iterator[Case]:
    """What is asked in every stage: nothing of it makes a topic."""
    for case in group_cases.cases():
        if case.api_key is not ApiKey.FIND_COORDINATOR and case.name not in LEFT_OUT:
            yield case
    yield from _classic_members()
    yield from _of_a_stranger()
    if "transactions" in stage or "both" in stage:
        yield from _of_a_producer(stage)


def made() -> Case:
    """The topics that there are."""
    return Case(ApiKey.METADATA, "all topics", lambda g: {"topics": None}, versions=(12,))


def _classic_members() -> Iterator[Case]:
    member = {"group_id": "classic", "member_id": "m"}
    protocols = [{"name": "range", "metadata": b""}]
    yield Case(
        ApiKey.JOIN_GROUP,
        "an unknown member",
        lambda g: {
            **member,
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": protocols,
        },
    )
    generation = {**member, "generation_id": 1}
    yield Case(ApiKey.SYNC_GROUP, "an unknown member", lambda g: generation)
    yield Case(ApiKey.HEARTBEAT, "an unknown member", lambda g: generation)
    yield Case(
        ApiKey.LEAVE_GROUP,
        "an unknown member",
        lambda g: (
            member
            if g.api_version < 3
            else {"group_id": "classic", "members": [{"member_id": "m"}]}
        ),
    )


def _offsets(transactional_id: str, producer: tuple[int, int]) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "group_id": "readers",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "topics": [{"name": FIXED, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    }


def _ended(transactional_id: str, producer: tuple[int, int]) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": True,
    }


def _added(ground: Ground, transactional_id: str, producer: tuple[int, int]) -> dict[str, Any]:
    topics = [{"name": FIXED, "partitions": [0]}]
    if ground.api_version > 3:
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": False,
            "topics": topics,
        }
        return {"transactions": [transaction]}
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
    }


def _of_a_stranger() -> Iterator[Case]:
    """Whatever is asked in the name of a producer that has no id from here."""
    named = {"transactional_id": "none", "producer_id": STRANGER[0], "producer_epoch": STRANGER[1]}
    yield Case(
        ApiKey.INIT_PRODUCER_ID,
        "one that comes back",
        lambda g: {**named, "transaction_timeout_ms": TIMEOUT_MS},
        versions=(3, 4, 5),
    )
    yield Case(
        ApiKey.INIT_PRODUCER_ID,
        "an idempotent one",
        lambda g: {"transactional_id": None, "transaction_timeout_ms": TIMEOUT_MS},
        versions=(0, 1, 2, 3, 4, 5),
    )
    yield Case(ApiKey.ADD_PARTITIONS_TO_TXN, "a stranger's", lambda g: _added(g, "none", STRANGER))
    yield Case(
        ApiKey.ADD_OFFSETS_TO_TXN, "a stranger's", lambda g: {**named, "group_id": "readers"}
    )
    yield Case(ApiKey.TXN_OFFSET_COMMIT, "a stranger's", lambda g: _offsets("none", STRANGER))
    yield Case(ApiKey.END_TXN, "a stranger's", lambda g: _ended("none", STRANGER))


def _of_a_producer(stage: str) -> Iterator[Case]:
    """A separate producer for each request, with what has to come before it."""

    def begun(ground: Ground, name: str, added: ApiKey | None) -> tuple[str, tuple[int, int]]:
        transactional_id = f"{stage} {name} {ground.api_version}"
        producer: list[tuple[int, int]] = []

        def is_ready() -> bool:
            found = _begin(ground.node, transactional_id, added)
            producer[:] = [] if found is None else [found]
            return bool(producer)

        until(is_ready, what=f"{ground.node.name} has a producer")
        return transactional_id, producer[0]

    def new(ground: Ground) -> dict[str, Any]:
        transactional_id = f"{stage} new {ground.api_version}"
        return {"transactional_id": transactional_id, "transaction_timeout_ms": TIMEOUT_MS}

    yield Case(ApiKey.INIT_PRODUCER_ID, "a new one", new, versions=(0, 1, 2, 3, 4, 5))
    yield Case(
        ApiKey.ADD_PARTITIONS_TO_TXN, "first", lambda g: _added(g, *begun(g, "partitions", None))
    )

    def first_offsets(ground: Ground) -> dict[str, Any]:
        transactional_id, (producer_id, producer_epoch) = begun(ground, "offsets", None)
        return {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "group_id": "readers",
        }

    yield Case(ApiKey.ADD_OFFSETS_TO_TXN, "first", first_offsets)
    for added in (None, *ADDED):
        word = "nothing" if added is None else added.name.lower()
        yield Case(
            ApiKey.TXN_OFFSET_COMMIT,
            f"after {word}",
            lambda g, added=added, word=word: _offsets(*begun(g, f"commit {word}", added)),
            versions=(0, 1, 2, 3, 4),
        )
        yield Case(
            ApiKey.END_TXN,
            f"after {word}",
            lambda g, added=added, word=word: _ended(*begun(g, f"end {word}", added)),
            versions=(0, 1, 2, 3, 4),
        )


def _begin(node: Node, transactional_id: str, added: ApiKey | None) -> tuple[int, int] | None:
    """A producer, and what it adds to its transaction; None when it has to be asked again."""
    init = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )
    answer: Any = node.ask(init, INIT_VERSION)
    if answer.error_code != ErrorCode.NONE:
        return None
    producer = answer.producer_id, answer.producer_epoch
    if added is ApiKey.ADD_OFFSETS_TO_TXN:
        request: Any = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id="readers",
        )
        told: Any = node.ask(request, INIT_VERSION)
        assert told.error_code == ErrorCode.NONE, (node.name, told)
    elif added is ApiKey.ADD_PARTITIONS_TO_TXN:
        ground = Ground(INIT_VERSION, node)
        request = build(AddPartitionsToTxnRequest, **_added(ground, transactional_id, producer))
        told = node.ask(request, INIT_VERSION)
        (topic,) = told.results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == ErrorCode.NONE, told
    return producer
