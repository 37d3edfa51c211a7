"""What every principal asks through HTTP, and the requests of the protocol that say the same.

Owns how either's answer becomes an outcome. Invariant: an outcome never depends on who asked
before, as changes repeat what exists, are only checked, or are undone (`destroys`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import ProduceRequest
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.messages.p02_list_offsets import ListOffsetsRequest
from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p29_describe_acls import DescribeAclsRequest
from moldau.protocol.messages.p30_create_acls import CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsRequest
from moldau.protocol.messages.p32_describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.p37_create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.p44_incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p69_consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.p75_describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.schema import Message
from tests.interop.differential.asking import Closed, build
from tests.interop.differential.permissions.principals import DOOMED, GONE
from tests.interop.differential.permissions.question import (
    BROKER_KEY,
    CLUSTER,
    CONFIG_BROKER,
    CONFIG_TOPIC,
    GROUP_KIND,
    GROUPS,
    NODE,
    TOPIC,
    TOPIC_KEY,
    TOPICS,
)
from tests.interop.differential.permissions.sides import Session, Side

ODD_TOPIC: Final = "t-\0\n\x1b[31m"
"""No topic may have such a name; rights by prefix cover it."""
ASKED_TOPICS: Final = (*TOPICS, ODD_TOPIC)
NOWHERE: Final = "HTTP 404"
"""What HTTP answers where the protocol has an answer without what was asked for."""
LATEST, EARLIEST = -1, -2
SET, DELETE = 0, 1
CREATED: Final = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
NOBODYS: Final = "User:no such user"


class Outcome(NamedTuple):
    """What became of a question: the error's name (NONE: allowed), and the names that are shown."""

    error: str
    shown: frozenset[str] = frozenset()


def outcome(code: int, shown: Iterable[str] = ()) -> Outcome:
    return Outcome(ErrorCode(code).name, frozenset() if code else frozenset(shown))


@dataclass(frozen=True)
class Talk:
    """A principal's own connection, for the protocol's half."""

    session: Session
    side: Side

    def ask(self, request: Message, version: int) -> Any:
        """The answer."""
        self.session.send([(request, version)])
        [answer] = self.session.receive([(request, version)])
        assert not isinstance(answer, Closed), request
        return answer


ByProtocol = Callable[[Talk], Outcome]


@dataclass(frozen=True)
class HttpQuestion:
    """One request of HTTP.

    Attributes:
        name: for people.
        kinds: the resources whose rights may decide the answer.
        path: below the cluster's; one that begins with `/api` is our own, below its cluster's.
        by_protocol: asks the same by the protocol.
        shown: the names in the answer, which rights decide about.
        is_produce: whether the answer is of reports, which have Confluent's numbers.
        destroys: whether what it names may be there, or not, afterwards.
    """

    name: str
    kinds: frozenset[ResourceType]
    method: str
    path: str
    by_protocol: ByProtocol
    body: Any = None
    shown: Callable[[Any], Iterable[str]] = lambda _: ()
    is_produce: bool = False
    destroys: bool = False


def http_questions() -> Iterator[HttpQuestion]:
    """All of them."""
    yield from _topics()
    yield from _topic_changes()
    yield from _records()
    yield from _configs()
    yield from _config_lists()
    yield from _groups()
    yield from _cluster()
    yield from _access()


def _ask(
    method: str,
    path: str,
    kinds: Iterable[ResourceType],
    by_protocol: ByProtocol,
    word: str = "",
    **more: Any,
) -> HttpQuestion:
    name = f"{method} {path}{word and f', {word}'}"
    return HttpQuestion(name, frozenset(kinds), method, path, by_protocol, **more)


def _at(*segments: object) -> str:
    return "".join(f"/{quote(str(each), safe='')}" for each in segments)


def _field(name: str) -> Callable[[Any], Iterable[str]]:
    return lambda document: [each[name] for each in document["data"]]


# -- topics -----------------------------------------------------------------------------------


def _described(talk: Talk, *names: str) -> Any:
    topics = [{"name": name} for name in names]
    return talk.ask(build(DescribeTopicPartitionsRequest, topics=topics), 0).topics


def _visible(talk: Talk) -> list[str]:
    return [each.name for each in _described(talk) if not each.error_code]


def _topic(name: str) -> ByProtocol:
    def ask(talk: Talk) -> Outcome:
        [found] = _described(talk, name)
        return outcome(found.error_code)

    return ask


def _topics() -> Iterator[HttpQuestion]:
    only = (TOPIC,)

    def listed(talk: Talk) -> Outcome:
        return outcome(0, _visible(talk))

    yield _ask("GET", "/topics", only, listed, shown=_field("topic_name"))
    yield _ask("GET", "/brokers/1/partition-replicas", only, listed, shown=_field("topic_name"))
    for name in ASKED_TOPICS:
        at = _at("topics", name)
        for path in (
            at,
            f"{at}/partitions",
            f"{at}/partitions/0",
            f"{at}/partitions/0/replicas",
            f"{at}/partitions/0/replicas/{NODE}",
        ):
            yield _ask("GET", path, only, _topic(name))


def _topic_changes() -> Iterator[HttpQuestion]:
    kinds = (TOPIC, CLUSTER)

    def created(name: str, *, is_checked: bool) -> ByProtocol:
        def ask(talk: Talk) -> Outcome:
            topics = [{"name": name, **CREATED}]
            request = build(
                CreateTopicsRequest, topics=topics, timeout_ms=30_000, validate_only=is_checked
            )
            return outcome(talk.ask(request, 7).topics[0].error_code)

        return ask

    def grown(name: str) -> ByProtocol:
        def ask(talk: Talk) -> Outcome:
            topics = [{"name": name, "count": 1, "assignments": None}]
            request = build(CreatePartitionsRequest, topics=topics, timeout_ms=30_000)
            return outcome(talk.ask(request, 3).results[0].error_code)

        return ask

    def deleted(name: str) -> ByProtocol:
        def ask(talk: Talk) -> Outcome:
            request = build(DeleteTopicsRequest, topics=[{"name": name}], timeout_ms=30_000)
            return outcome(talk.ask(request, 6).responses[0].error_code)

        return ask

    for name in ASKED_TOPICS:
        at = _at("topics", name)
        body = {"topic_name": name, "partitions_count": 1, "replication_factor": 1}
        yield _ask(
            "POST",
            "/topics",
            kinds,
            created(name, is_checked=True),
            f"{name!r} only checked",
            body={**body, "validate_only": True},
        )
        yield _ask("PATCH", at, kinds, grown(name), "fewer", body={"partitions_count": 1})
    for name in (DOOMED, GONE, ODD_TOPIC):
        yield _ask("DELETE", _at("topics", name), kinds, deleted(name), destroys=True)
    body = {"topic_name": GONE, "partitions_count": 1, "replication_factor": 1}
    yield _ask(
        "POST", "/topics", kinds, created(GONE, is_checked=False), GONE, body=body, destroys=True
    )


# -- records ----------------------------------------------------------------------------------


def _produced(name: str) -> ByProtocol:
    """As clients do: they learn of the topic, get a producer's id, and produce."""
    batch = memoryview(bytes(encode_batch([Record(0, 1_000, None, b"value")])))

    def ask(talk: Talk) -> Outcome:
        [found] = _described(talk, name)
        if found.error_code:
            return outcome(found.error_code)
        given = talk.ask(InitProducerIdRequest(transactional_id=None), 5)
        partitions = [{"index": 0, "records": batch}]
        topics = [{"name": name, "partition_data": partitions}]
        request = build(ProduceRequest, acks=-1, timeout_ms=30_000, topic_data=topics)
        answer = talk.ask(request, 12)
        written = answer.responses[0].partition_responses[0].error_code
        return outcome(written or given.error_code)

    return ask


def _consumed(name: str) -> ByProtocol:
    """As clients do: they learn of the topic and of its ends, and fetch."""

    def ask(talk: Talk) -> Outcome:
        [found] = _described(talk, name)
        if found.error_code:
            return outcome(found.error_code)
        code, _ = _offset(talk, name, EARLIEST)
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]
        topics = [{"topic": name, "partitions": partitions}]
        request = build(
            FetchRequest, max_wait_ms=0, min_bytes=0, topics=topics, forgotten_topics_data=[]
        )
        fetched = talk.ask(request, 12)
        return outcome(code or fetched.responses[0].partitions[0].error_code)

    return ask


def _offset(talk: Talk, name: str, timestamp: int, index: int = 0) -> tuple[int, int]:
    partitions = [{"partition_index": index, "timestamp": timestamp}]
    topics = [{"name": name, "partitions": partitions}]
    request = build(ListOffsetsRequest, replica_id=-1, topics=topics)
    [partition] = talk.ask(request, 7).topics[0].partitions
    return partition.error_code, partition.offset


def _records() -> Iterator[HttpQuestion]:
    body = {"partition_id": 0, "value": {"type": "STRING", "data": "value"}}
    query = "records?from=earliest&until_end=true&partition=0&max_records=1"
    for name in ASKED_TOPICS:
        at = _at("topics", name)
        yield _ask(
            "POST", f"{at}/records", (TOPIC, CLUSTER), _produced(name), body=body, is_produce=True
        )
        yield _ask("GET", f"/api{at}/{query}", (TOPIC,), _consumed(name))


# -- configurations ---------------------------------------------------------------------------


def _read_config(kind: int, *names: str) -> ByProtocol:
    def ask(talk: Talk) -> Outcome:
        return outcome(_config_error(talk, kind, names))

    return ask


def _config_error(talk: Talk, kind: int, names: Iterable[str]) -> int:
    """The only error for several, as who asks for all of them gets all or none."""
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names
    ]
    answer = talk.ask(build(DescribeConfigsRequest, resources=resources), 4)
    codes: set[int] = {each.error_code for each in answer.results} - {0}
    assert len(codes) <= 1, codes
    return codes.pop() if codes else 0


def _changed_config(
    kind: int, name: str, key: str, value: str | None, *, is_checked: bool = False
) -> ByProtocol:
    def ask(talk: Talk) -> Outcome:
        operation = DELETE if value is None else SET
        configs = [{"name": key, "config_operation": operation, "value": value}]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        request = build(
            IncrementalAlterConfigsRequest, resources=[resource], validate_only=is_checked
        )
        return outcome(talk.ask(request, 1).responses[0].error_code)

    return ask


def _configs() -> Iterator[HttpQuestion]:
    owners = (
        *((_at("topics", name, "configs"), CONFIG_TOPIC, name, TOPIC_KEY) for name in ASKED_TOPICS),
        (f"/brokers/{NODE}/configs", CONFIG_BROKER, str(NODE), BROKER_KEY),
        ("/broker-configs", CONFIG_BROKER, "", BROKER_KEY),
    )
    for at, kind, name, (key, value) in owners:
        kinds = (TOPIC,) if kind == CONFIG_TOPIC else (CLUSTER,)
        one, read = f"{at}/{key}", _read_config(kind, name)
        yield _ask("GET", at, kinds, read)
        is_clusters = kind == CONFIG_BROKER and not name
        if not is_clusters:  # a key of the cluster exists only while it is set
            yield _ask("GET", one, kinds, read)
        put = _changed_config(kind, name, key, value)
        yield _ask("PUT", one, kinds, put, body={"value": value})
        yield _ask("DELETE", one, kinds, _changed_config(kind, name, key, None))
        yield _ask(
            "POST",
            f"{at}:alter",
            kinds,
            _changed_config(kind, name, key, value, is_checked=True),
            "only checked",
            body={"data": [{"name": key, "value": value}], "validate_only": True},
        )


def _config_lists() -> Iterator[HttpQuestion]:
    def of_topics(talk: Talk) -> Outcome:
        names = _visible(talk)
        return outcome(_config_error(talk, CONFIG_TOPIC, names) if names else 0, names)

    yield _ask("GET", "/topics/-/configs", (TOPIC,), of_topics, shown=_field("topic_name"))
    brokers = _read_config(CONFIG_BROKER, str(NODE))
    yield _ask("GET", "/brokers/-/configs", (CLUSTER,), brokers)


# -- groups -----------------------------------------------------------------------------------


def _group_error(talk: Talk, name: str) -> int:
    """As admin clients do: they ask for a group of the newer kind first."""
    [newer] = talk.ask(build(ConsumerGroupDescribeRequest, group_ids=[name]), 1).groups
    if newer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        return int(newer.error_code)
    [older] = talk.ask(build(DescribeGroupsRequest, groups=[name]), 6).groups
    return int(older.error_code)


def _group(name: str) -> ByProtocol:
    return lambda talk: outcome(_group_error(talk, name))


def _lags(name: str, missing: str) -> ByProtocol:
    """A group's lags: those of the topics that one may describe.

    Args:
        missing: what HTTP answers when there are none.
    """

    def ask(talk: Talk) -> Outcome:
        code = _group_error(talk, name)
        if code:
            return outcome(code)
        wanted = [{"group_id": name, "topics": None}]
        [found] = talk.ask(build(OffsetFetchRequest, groups=wanted), 9).groups
        if found.error_code:
            return outcome(found.error_code)
        shown = [
            topic.name
            for topic in found.topics
            for each in topic.partitions
            if not _offset(talk, topic.name, LATEST, each.partition_index)[0]
        ]
        return Outcome("NONE" if shown or not missing else missing, frozenset(shown))

    return ask


def _lag(name: str, topic: str) -> ByProtocol:
    every = _lags(name, "")

    def ask(talk: Talk) -> Outcome:
        found = every(talk)
        if found.error != "NONE":
            return found
        return Outcome("NONE" if topic in found.shown else NOWHERE)

    return ask


def _groups() -> Iterator[HttpQuestion]:
    def listed(talk: Talk) -> Outcome:
        names = [each.group_id for each in talk.ask(ListGroupsRequest(), 5).groups]
        return outcome(0, (each for each in names if not _group_error(talk, each)))

    kinds = (GROUP_KIND, TOPIC)
    yield _ask(
        "GET", "/consumer-groups", (*kinds, CLUSTER), listed, shown=_field("consumer_group_id")
    )
    for name in GROUPS:
        at = _at("consumer-groups", name)
        yield _ask("GET", at, kinds, _group(name))
        yield _ask("GET", f"{at}/consumers", kinds, _group(name))
        lags = _lags(name, "")
        yield _ask("GET", f"{at}/lags", kinds, lags, shown=_field("topic_name"))
        summary = _lags(name, NOWHERE)
        yield _ask("GET", f"{at}/lag-summary", kinds, lambda talk, ask=summary: _bare(ask(talk)))
        for topic in TOPICS:
            yield _ask("GET", f"{at}/lags/{topic}/partitions/0", kinds, _lag(name, topic))


def _bare(found: Outcome) -> Outcome:
    return Outcome(found.error)


# -- the cluster, and its rules ---------------------------------------------------------------


def _cluster() -> Iterator[HttpQuestion]:
    def described(talk: Talk) -> Outcome:
        return outcome(talk.ask(DescribeClusterRequest(), 1).error_code)

    def moved(talk: Talk, topic: str | None = None) -> Outcome:
        topics = None if topic is None else [{"name": topic, "partition_indexes": [0]}]
        request = build(ListPartitionReassignmentsRequest, topics=topics)
        return outcome(talk.ask(request, 0).error_code)

    def moved_one(talk: Talk, topic: str) -> Outcome:
        found = moved(talk, topic)
        return found if found.error != "NONE" else Outcome(NOWHERE)

    only = (CLUSTER,)
    for path in ("", "/brokers", f"/brokers/{NODE}"):
        yield _ask("GET", path, only, described)
    yield _ask("GET", "/topics/-/partitions/-/reassignment", only, moved)
    for name in TOPICS:
        at = f"/topics/{name}/partitions"
        yield _ask("GET", f"{at}/-/reassignment", (*only, TOPIC), moved)
        yield _ask(
            "GET",
            f"{at}/0/reassignment",
            (*only, TOPIC),
            lambda talk, name=name: moved_one(talk, name),
        )


def _access() -> Iterator[HttpQuestion]:
    only = (CLUSTER,)

    def filtered(principal: str) -> dict[str, Any]:
        return {
            "resource_type_filter": ResourceType.ANY,
            "resource_name_filter": None,
            "pattern_type_filter": PatternType.ANY,
            "principal_filter": principal,
            "host_filter": None,
            "operation": Operation.ANY,
            "permission_type": PermissionType.ANY,
        }

    def described(talk: Talk) -> Outcome:
        return outcome(talk.ask(build(DescribeAclsRequest, **filtered(NOBODYS)), 3).error_code)

    def deleted(talk: Talk) -> Outcome:
        request = build(DeleteAclsRequest, filters=[filtered(NOBODYS)])
        return outcome(talk.ask(request, 3).filter_results[0].error_code)

    def created(resource: ResourceType, name: str) -> ByProtocol:
        def ask(talk: Talk) -> Outcome:
            entry = {
                "resource_type": resource,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": "User:x",
                "host": "*",
                "operation": Operation.ALTER,
                "permission_type": PermissionType.ALLOW,
            }
            return outcome(
                talk.ask(build(CreateAclsRequest, creations=[entry]), 3).results[0].error_code
            )

        return ask

    asked = f"principal={quote(NOBODYS)}"
    every = "resource_type=ANY&pattern_type=ANY&operation=ANY&permission=ANY"
    yield _ask("GET", f"/acls?{asked}", only, described)
    yield _ask("DELETE", f"/acls?{every}&{asked}", only, deleted)
    for resource, name in ((CLUSTER, "not the name of a cluster"), (TOPIC, "a-topic-of-x")):
        body = {
            "resource_type": resource.name,
            "resource_name": name,
            "pattern_type": "LITERAL",
            "principal": "User:x",
            "host": "*",
            "operation": "ALTER",
            "permission": "ALLOW",
        }
        yield _ask("POST", "/acls", only, created(resource, name), name, body=body)
        several = {"data": [body]}
        yield _ask("POST", "/acls:batch", only, created(resource, name), name, body=several)
