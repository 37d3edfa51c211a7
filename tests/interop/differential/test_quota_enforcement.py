"""What quotas in force make of requests: the same errors and pauses as Apache Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import ProduceRequest
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p49_alter_client_quotas import AlterClientQuotasRequest
from moldau.protocol.registry import request_class
from tests.interop.differential.asking import Closed, Node, Pair, build
from tests.interop.differential.comparing import normalise
from tests.unit.broker.messages import batch

pytestmark = [pytest.mark.interop, pytest.mark.java]

USER: Final = [{"entity_type": "user", "entity_name": "ANONYMOUS"}]
TINY: Final = 0.0001
"""A rate that lets one request through, and none within the test's time after that."""

MUTATIONS: Final = (
    *((ApiKey.CREATE_TOPICS, version) for version in range(2, 8)),
    *((ApiKey.CREATE_PARTITIONS, version) for version in range(4)),
    *((ApiKey.DELETE_TOPICS, version) for version in range(1, 7)),
)


def ask(node: Node, request: Any, api_version: int) -> Any:
    """The answer on its own connection: a quota may make the connection pause for long."""
    other = replace(node, _socket=None)
    try:
        return other.ask(request, api_version)
    finally:
        other.close()


def limit(pair: Pair, **values: float | None) -> None:
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in values.items()
    ]
    for node in pair.nodes:
        request = build(AlterClientQuotasRequest, entries=[{"entity": USER, "ops": ops}])
        answer = ask(node, request, 1)
        assert answer.entries[0].error_code == ErrorCode.NONE, answer
    pair.settle()


@pytest.fixture
def limited(pair: Pair) -> Iterator[Pair]:
    """The pair, without quotas before and after, and after without the topics made in between, of
    which the two have kept different ones: other tests compare them.
    """
    keys = (
        *("producer_byte_rate", "consumer_byte_rate"),
        *("request_percentage", "controller_mutation_rate"),
    )
    limit(pair, **dict.fromkeys(keys))
    yield pair
    limit(pair, **dict.fromkeys(keys))
    for node in pair.nodes:
        listed = ask(node, build(MetadataRequest, topics=None), 9)
        names = [each.name for each in listed.topics if each.name.startswith("quota-")]
        request = build(request_class(ApiKey.DELETE_TOPICS), topic_names=names, timeout_ms=10_000)
        answer = ask(node, request, 5)
        assert {each.error_code for each in answer.responses} <= {ErrorCode.NONE}, answer
    pair.settle()


def create(pair: Pair, *names: str) -> None:
    for node in pair.nodes:
        topics = [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in names]
        request = build(request_class(ApiKey.CREATE_TOPICS), topics=topics, timeout_ms=10_000)
        answer = ask(node, request, 7)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}, answer
    pair.settle()


def mutation(api_key: ApiKey, api_version: int, *, validate_only: bool = False) -> Any:
    """Three topics: a first one that is granted, and two that may not be."""
    fields: dict[str, Any] = {"timeout_ms": 10_000}
    kind = "validated" if validate_only else api_key.name.lower()
    names = [f"quota-{kind}-{api_version}-{number}" for number in range(3)]
    if api_key is ApiKey.CREATE_TOPICS:
        new = {"num_partitions": 2, "replication_factor": 1}
        fields |= {"topics": [{"name": name, **new} for name in names]}
        fields["validate_only"] = validate_only
    elif api_key is ApiKey.CREATE_PARTITIONS:
        fields["topics"] = [{"name": name, "count": 3, "assignments": None} for name in names]
    elif api_version >= 6:
        fields["topics"] = [{"name": name} for name in names]
    else:
        fields["topic_names"] = names
    return build(request_class(api_key), **fields)


def parts(answer: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The one array of an answer."""
    return {name: [*value.values()] for name, value in answer.items() if isinstance(value, dict)}


def outcome(topic: dict[str, Any]) -> tuple[int, bool]:
    """What one topic's part of an answer says, but for its names and texts."""
    has_id = topic.get("topic_id") not in (None, "zero")
    return topic["error_code"], has_id


def fill_buckets(pair: Pair) -> None:
    """Let the next request have one token, and none after it."""
    limit(pair, controller_mutation_rate=1e6)
    request = mutation(ApiKey.CREATE_TOPICS, 7, validate_only=True)
    for node in pair.nodes:
        ask(node, request, 7)
    limit(pair, controller_mutation_rate=TINY)


@pytest.mark.timeout(300)
def test_mutations(limited: Pair) -> None:
    differing: list[str] = []
    names = [
        f"quota-{api_key.name.lower()}-{version}-{number}"
        for api_key, version in MUTATIONS
        for number in range(3)
        if api_key is not ApiKey.CREATE_TOPICS
    ]
    create(limited, *names)
    for api_key, version in MUTATIONS:
        fill_buckets(limited)
        request = mutation(api_key, version)
        plain = [normalise(ask(node, request, version), node) for node in limited.nodes]
        assert [each["throttle_time_ms"] for each in plain] == ["some", "some"], (api_key, version)
        # Which of the topics comes first is not the same: Apache Kafka keeps them in a hash table.
        ours, kafka = (
            sorted(map(outcome, next(iter(topics.values())))) for topics in map(parts, plain)
        )
        if ours != kafka:
            differing.append(f"{api_key.name} v{version}: ours {ours}, Kafka's {kafka}")
    assert not differing, "\n".join(differing)


@pytest.mark.timeout(120)
def test_what_is_only_validated_uses_tokens_too(limited: Pair) -> None:
    fill_buckets(limited)
    request = mutation(ApiKey.CREATE_TOPICS, 7, validate_only=True)
    for _ in range(2):
        ours, kafka = (
            [topic.error_code for topic in ask(node, request, 7).topics] for node in limited.nodes
        )
        assert ours == kafka
    assert set(ours) == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}


@pytest.mark.timeout(120)
def test_pauses_of_producers_and_consumers(limited: Pair) -> None:
    create(limited, "quota-bytes")
    limit(limited, producer_byte_rate=100.0, consumer_byte_rate=100.0)
    records = batch(value=b"x" * 5000)
    produced = build(
        ProduceRequest,
        acks=1,
        timeout_ms=10_000,
        topic_data=[{"name": "quota-bytes", "partition_data": [{"index": 0, "records": records}]}],
    )
    fetched = build(
        FetchRequest,
        max_wait_ms=0,
        min_bytes=0,
        session_id=0,
        session_epoch=0,
        topics=[
            {
                "topic": "quota-bytes",
                "partitions": [
                    {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
                ],
            }
        ],
    )
    first = [ask(node, produced, 12) for node in limited.nodes]
    # Of one request nothing but its size and the limit decides.
    assert first[0].throttle_time_ms == first[1].throttle_time_ms > 10_000
    empty = [ask(node, fetched, 12) for node in limited.nodes]
    for answer in empty:
        assert not isinstance(answer, Closed)
        assert answer.responses == []
        assert answer.session_id == 0
        assert answer.throttle_time_ms > 10_000
    assert empty[0].throttle_time_ms == pytest.approx(empty[1].throttle_time_ms, rel=0.05)
    limit(limited, consumer_byte_rate=None)
    whole = [ask(node, fetched, 12) for node in limited.nodes]
    assert [len(each.responses) for each in whole] == [1, 1]
    assert [each.throttle_time_ms for each in whole] == [0, 0]
