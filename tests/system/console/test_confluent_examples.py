"""The examples of Confluent's documentation of its REST v3, sent to three brokers of ours: status,
content type and shape of each answer are the documented ones, but for a list of differences with
reasons, all of which are still there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from moldau.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from moldau.testing import Cluster
from tests.kit.waiting import until_async
from tests.system.console.confluent_shapes import ERROR, REPORT, complaints
from tests.system.console.site import CONSOLE, Answer, Site, http_address

JSON: Final = "application/json"
GROUP, TOPIC, GROWN = "consumer-group-1", "topic-1", "topic-X"
NO_CONTENT, CREATED = 204, 201
DELETED_ACLS: Final = "deleted entries"
MOVES: Final = "/topics/-/partitions/-/reassignment"
AUTHORIZED: Final = {
    **CONSOLE,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True, slots=True)
class Example:
    """One documented request, and what answers it.

    Attributes:
        path: below the cluster's, with `{member}` for a consumer's id; whole if it begins with /v3.
        shape: as `complaints` has it; "" for no body.
        number: the error's, 0 without one.
        body: what becomes JSON, or bytes as they are sent.
        settles: whether the next request waits until all brokers know what was changed.
    """

    method: str
    path: str
    status: int = 200
    shape: str = ""
    body: Any = None
    number: int = 0
    settles: bool = False

    @property
    def name(self) -> str:
        body = repr(self.body) if isinstance(self.body, bytes) else json.dumps(self.body)
        return f"{self.method} {self.path}{'' if self.body is None else ' ' + body}"


def get(path: str, shape: str) -> Example:
    return Example("GET", path, shape=shape)


def refused(method: str, path: str, status: int, number: int, body: Any = None) -> Example:
    return Example(method, path, status, ERROR, body, number)


GZIP: Final = {"value": "gzip"}
_ALTERED: Final = [
    {"name": "max.connections", "operation": "DELETE"},
    {"name": "compression.type", "value": "gzip"},
]
_TOPICS_ALTERED: Final = [{**_ALTERED[0], "name": "cleanup.policy"}, _ALTERED[1]]
_CONFIGS: Final = [{"name": "cleanup.policy", "value": "compact"}, {**_ALTERED[1]}]
_UNIFORM: Final = {"topic_name": GROWN, "partitions_count": 64, "replication_factor": 3}
_ASSIGNED: Final = [(0, [1, 2]), (1, [2, 3]), (2, [3, 1])]
_DENIED: Final = {
    "resource_type": "CLUSTER",
    "resource_name": "kafka-cluster",
    "pattern_type": "LITERAL",
    "principal": "principalType:principalName",
    "host": "*",
    "operation": "DESCRIBE",
    "permission": "DENY",
}
_ALLOWED: Final = {**_DENIED, "resource_type": "TOPIC", "operation": "READ", "permission": "ALLOW"}
_AVRO: Final = {
    "partition_id": 1,
    "headers": [
        {"name": "Header-1", "value": "SGVhZGVyLTE="},
        {"name": "Header-2", "value": "SGVhZGVyLTI="},
    ],
    "key": {"type": "BINARY", "data": "Zm9vYmFy"},
    "value": {
        "type": "AVRO",
        "subject": "topic-1-key",
        "schema": '{"type":"string"}',
        "data": "foobar",
    },
    "timestamp": "2021-02-05T19:14:42Z",
}
_IN_JSON: Final = {**_AVRO, "value": {"type": "JSON", "data": "foobar"}}
_OF_SCHEMAS: Final = (
    {
        "key": {"subject_name_strategy": "TOPIC_NAME", "schema_id": 1, "data": 1000},
        "value": {"schema_version": 1, "data": {"foo": "bar"}},
    },
    {"key": {"data": 1000}, "value": {"data": "foobar"}},
    {"key": {"schema_id": 1}, "value": {"schema_version": 1, "data": None}},
    {"key": {"data": 1000}},
)
_ONE, _PARTITION = f"/topics/{TOPIC}", f"/topics/{TOPIC}/partitions/1"
_RECORDS: Final = f"{_ONE}/records"
_MEMBER: Final = f"/consumer-groups/{GROUP}/consumers/{{member}}"
_LAGS: Final = f"/consumer-groups/{GROUP}/lags"


def _changed(path: str, altered: list[dict[str, str]]) -> Iterator[Example]:
    """A key, and several, of something that has configurations."""
    one = f"{path}/compression.type"
    yield Example("PUT", one, NO_CONTENT, "", GZIP, settles=True)
    kind = {"/t": "Topic", "/b": "Broker"}[path[:2]]
    shape = f"Kafka{'Cluster' if path == '/broker-configs' else kind}Config"
    yield get(one, shape)
    yield get(path, f"{shape}List")
    yield Example("DELETE", one, NO_CONTENT)
    yield Example("POST", f"{path}:alter", NO_CONTENT, "", {"data": altered}, settles=True)


EXAMPLES: Final = (
    get("/v3/clusters", "KafkaClusterList"),
    get("", "KafkaCluster"),
    get("/brokers", "KafkaBrokerList"),
    get("/brokers/1", "KafkaBroker"),
    get("/brokers/1/partition-replicas", "KafkaReplicaList"),
    *_changed("/brokers/1/configs", _ALTERED),
    get("/brokers/-/configs", "KafkaBrokerConfigList"),
    *_changed("/broker-configs", _ALTERED),
    *_changed(f"{_ONE}/configs", _TOPICS_ALTERED),
    Example(
        "POST",
        f"{_ONE}/configs:alter",
        NO_CONTENT,
        "",
        {"data": _TOPICS_ALTERED, "validate_only": True},
    ),
    get("/topics/-/configs", "KafkaTopicConfigList"),
    get("/topics", "KafkaTopicList"),
    get(_ONE, "KafkaTopic"),
    Example("POST", "/topics", 200, "KafkaTopic", {**_UNIFORM, "validate_only": True}),
    Example("POST", "/topics", CREATED, "KafkaTopic", {**_UNIFORM, "configs": _CONFIGS}),
    refused("POST", "/topics", 400, 40002, _UNIFORM),
    Example("DELETE", f"/topics/{GROWN}", NO_CONTENT, settles=True),
    Example(
        "POST",
        "/topics",
        CREATED,
        "KafkaTopic",
        {
            "topic_name": GROWN,
            "replicas_assignments": [
                {"partition_id": index, "broker_ids": ids} for index, ids in _ASSIGNED
            ],
            "configs": _CONFIGS,
        },
    ),
    Example("PATCH", f"/topics/{GROWN}", 200, "KafkaTopic", {"partitions_count": 10}),
    get(f"{_ONE}/partitions", "KafkaPartitionList"),
    get(_PARTITION, "KafkaPartition"),
    get(f"{_PARTITION}/replicas", "KafkaReplicaList"),
    get(f"{_PARTITION}/replicas/1", "KafkaReplica"),
    get("/consumer-groups", "KafkaConsumerGroupList"),
    get(f"/consumer-groups/{GROUP}", "KafkaConsumerGroup"),
    get(f"/consumer-groups/{GROUP}/consumers", "KafkaConsumerList"),
    get(_MEMBER, "KafkaConsumer"),
    get(f"{_MEMBER}/assignments", "KafkaConsumerAssignmentList"),
    get(f"{_MEMBER}/assignments/{TOPIC}/partitions/1", "KafkaConsumerAssignment"),
    get(f"/consumer-groups/{GROUP}/lag-summary", "KafkaConsumerGroupLagSummary"),
    get(_LAGS, "KafkaConsumerLagList"),
    get(f"{_LAGS}/{TOPIC}/partitions/1", "KafkaConsumerLag"),
    Example("POST", "/acls", CREATED, "", _DENIED),
    Example("POST", "/acls:batch", CREATED, "", {"data": [_DENIED, _ALLOWED]}, settles=True),
    get("/acls?principal=principalType:principalName", "KafkaAclList"),
    Example(
        "DELETE",
        "/acls?resource_type=TOPIC&pattern_type=LITERAL&operation=READ&permission=ALLOW",
        shape=DELETED_ACLS,
    ),
    Example("POST", _RECORDS, 200, REPORT, _IN_JSON),
    Example("POST", _RECORDS, 200, REPORT, _AVRO),
    *(Example("POST", _RECORDS, 200, REPORT, each) for each in _OF_SCHEMAS),
    refused("GET", "/no-such-endpoint", 404, 404),
    refused("GET", "/v3/clusters/my-cluster", 404, 404),
    refused("GET", "/topics/my-topic", 404, 40403),
    refused("GET", f"{_ONE}/partitions/77", 404, 40403),
    refused("POST", "/topics", 400, 400, b"{'key"),
    get(MOVES, "KafkaReassignmentList"),
    get(f"{_ONE}/partitions/-/reassignments", "KafkaReassignmentList"),
    get(f"{_PARTITION}/reassignment", "KafkaReassignment"),
)
"""The order lets each find what it is about; moves of replicas are the last, as those go on
for as long as a broker is away.
"""

_A_PROBLEM: Final = "errors are problems of RFC 9457: they have its content type and members, too"
_NO_REGISTRY: Final = "records have the types BINARY, JSON and STRING, and say which"
DIFFERENCES: Final = {
    **{each.name: _A_PROBLEM for each in EXAMPLES if each.shape == ERROR},
    **{
        Example("POST", _RECORDS, 200, REPORT, each).name: _NO_REGISTRY
        for each in (_AVRO, *_OF_SCHEMAS)
    },
}
"""Examples whose answers have another shape, and why; docs/console.md has them, too."""
OF_PROBLEMS: Final = frozenset(
    f"{name} is not documented"
    for name in ("type", "title", "status", "detail", "instance", "kafka_error")
) | {"the content type is application/problem+json"}


async def test_answers_have_the_documented_shapes() -> None:
    found: dict[str, list[str]] = {}
    with Cluster(brokers=3, config=AUTHORIZED) as cluster:
        site = Site(cluster, http_address(cluster))
        async with _member_of_the_group(site) as member:
            for each in EXAMPLES:
                if each.path == MOVES:
                    await _begin_a_move(cluster)
                found[each.name] = await _replayed(site, each, member)
    assert len(found) == len(EXAMPLES), "two examples have one name"
    print(f"{len(EXAMPLES)} examples, {len(DIFFERENCES)} of them with a listed difference")
    wrong = {name: why for name, why in found.items() if why and name not in DIFFERENCES}
    assert not wrong, "\n".join(f"{name}: {'; '.join(why)}" for name, why in wrong.items())
    of_errors = [found[each.name] for each in EXAMPLES if each.shape == ERROR]
    assert all(set(each) == OF_PROBLEMS for each in of_errors), of_errors
    gone = [name for name in DIFFERENCES if not found[name]]
    assert not gone, f"these differences are gone: {gone}"


@asynccontextmanager
async def _member_of_the_group(site: Site) -> AsyncIterator[str]:
    """The id of a consumer that reads a topic of two of the brokers."""
    servers = site.cluster.bootstrap_server
    async with Admin(servers) as admin, Producer(servers) as producer:
        await admin.create_topics(
            [NewTopic(TOPIC, replica_assignment={each: [1, 2] for each in range(3)})]
        )
        for index in range(3):
            await producer.send(TOPIC, b"value", partition=index)
    settings = {"group_instance_id": "consumer-instance-1", "auto_offset_reset": "earliest"}
    async with Consumer(servers, group_id=GROUP, client_id="client-1", **settings) as consumer:
        consumer.subscribe([TOPIC])
        seen = {(await consumer.getone()).partition for _ in range(3)}
        assert seen == {0, 1, 2}
        await consumer.commit()
        at = f"/v3/clusters/{await site.cluster_id()}/consumer-groups/{GROUP}/consumers"
        [shown] = (await site.ask(at)).document["data"]
        yield shown["consumer_id"]


async def _begin_a_move(cluster: Cluster) -> None:
    """One that does not end, as the broker that replicas move to is away."""
    await asyncio.to_thread(cluster.stop, 3)
    async with Admin(cluster.bootstrap_server) as admin:
        await admin.alter_partition_reassignments({TopicPartition(TOPIC, 1): [1, 3]})


async def _replayed(site: Site, example: Example, member: str) -> list[str]:
    """What is wrong with the answer to an example."""
    path = example.path.replace("{member}", member)
    if not path.startswith("/v3"):
        path = f"/v3/clusters/{await site.cluster_id()}{path}"
    answer = await site.ask(path, method=example.method, body=example.body)
    if example.settles:
        await _settled(site, path, example)
    return [*_compared(example, answer)]


async def _settled(site: Site, path: str, example: Example) -> None:
    """Wait until the broker that is asked shows the change."""

    async def is_shown() -> bool:
        if example.method == "DELETE":
            return (await site.ask(path)).status == 404
        if path.endswith("acls:batch"):
            listed = await site.ask(path.removesuffix(":batch"))
            return len(listed.document["data"]) == len(example.body["data"])
        shown = await site.ask(path.replace(":alter", "/compression.type"))
        return bool(shown.document.get("value") == GZIP["value"])

    await until_async(is_shown, what=f"{example.name} to be shown")


def _compared(example: Example, answer: Answer) -> Iterator[str]:
    if answer.status != example.status:
        yield f"the status is {answer.status}: {answer.document}"
        return
    if not example.shape:
        if answer.document:
            yield f"there is a body: {answer.document}"
        return
    kind = answer.headers["Content-Type"].partition(";")[0]
    if kind != JSON:
        yield f"the content type is {kind}"
    if example.shape == DELETED_ACLS:
        if set(answer.document) != {"data"} or not answer.document["data"]:
            yield f"it has {answer.document}"
        for each in answer.document.get("data", ()):
            yield from complaints(each, "KafkaAcl")
        return
    yield from complaints(answer.document, example.shape)
    number = answer.document.get("error_code", 0)
    expected = 200 if example.shape == REPORT else example.number
    if number != expected:
        yield f"error_code is {number}: {answer.document.get('message')}"
