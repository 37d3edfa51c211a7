"""The controller listener over sockets: what it serves, to whom, and what it bears."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from moldau.controller import permitted_parts
from moldau.controller.apis import DECIDERS
from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.permitted_parts import Filter
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import encode_envelope
from moldau.protocol.error_responses import error_codes, has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p48_describe_client_quotas import EntityData
from moldau.protocol.messages.p49_alter_client_quotas import (
    AlterClientQuotasRequest,
    EntryData,
    OpData,
)
from moldau.protocol.messages.p51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p58_envelope import EnvelopeRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest
from moldau.protocol.registry import request_class, response_class
from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection, ConnectionLost
from moldau.server import apis
from moldau.server import server as server_module
from moldau.server.apis import (
    BY_LISTENER,
    CONTROLLER_APIS,
    DESCRIBED,
    FORWARDABLE_APIS,
    FORWARDED,
    QUORUM,
    TOKENS,
)
from moldau.server.fair_shares import Lane
from moldau.server.request import LARGE_BODY_BYTES, LARGE_ELEMENT_COUNT
from moldau.server.server import ListenerSpec
from tests.kit.envelopes import decode_enveloped_response
from tests.kit.waiting import until_async
from tests.unit.controller.harness import (
    LISTENER,
    OTHER_NODE,
    ControllerBench,
    Deny,
)
from tests.unit.metadata.builders import CLUSTER_ID, registration

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

ALICE = "User:alice"
Start = Callable[..., Awaitable[ControllerBench]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    benches: list[ControllerBench] = []

    async def make(*denied: tuple[Operation, ResourceType], **options: object) -> ControllerBench:
        principal = options.pop("principal", None)
        authorizer = Deny(*denied, principal=principal) if denied else None  # type: ignore[arg-type]
        bench = await ControllerBench.start(authorizer=authorizer, **options)  # type: ignore[arg-type]
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        await bench.close()


def topics(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


def sample(api_key: ApiKey) -> Message:
    """A request that names a resource wherever the answer has no other place for an error."""
    if api_key is ApiKey.CREATE_TOPICS:
        return topics("t")
    if api_key is ApiKey.DELETE_TOPICS:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    if api_key is ApiKey.CREATE_PARTITIONS:
        return CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)]
        )
    if api_key is ApiKey.ELECT_LEADERS:
        return ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    if api_key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        moved = [ReassignablePartition(partition_index=0, replicas=[1])]
        return AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=moved)]
        )
    if api_key is ApiKey.FETCH:
        partitions = [FetchPartition(partition=0)]
        return FetchRequest(topics=[FetchTopic(topic="__cluster_metadata", partitions=partitions)])
    request = request_class(api_key)()
    if isinstance(request, CreateAclsRequest):
        request.creations = [AclCreation(resource_type=2, resource_name="t", principal="User:a")]
    if isinstance(request, DeleteAclsRequest):
        request.filters = [DeleteAclsFilter()]
    if isinstance(request, AlterClientQuotasRequest):
        request.entries = [EntryData()]
    if isinstance(request, AlterUserScramCredentialsRequest):
        request.deletions = [ScramCredentialDeletion(name="a", mechanism=1)]
    if api_key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        module = request_class(api_key).__module__
        resource = __import__(module, fromlist=["x"]).AlterConfigsResource
        request.resources = [resource(resource_type=4, resource_name="")]  # type: ignore[attr-defined]
    return request


def wrap(message: Message, api_version: int, principal: str = ALICE) -> EnvelopeRequest:
    return encode_envelope(
        message,
        api_version=api_version,
        correlation_id=77,
        client_id="client",
        principal=principal,
        client_host="10.1.2.3",
    )


def versions(api_key: ApiKey) -> range:
    api = CONTROLLER_APIS[api_key]
    return range(api.min_version, api.max_version + 1)


def unwrap(answer: object, request: Message, api_version: int) -> Message:
    assert answer.error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    return decode_enveloped_response(
        answer,  # type: ignore[arg-type]
        api_key=request.API_KEY,
        api_version=api_version,
        correlation_id=77,
    )


# -- ApiVersions, DescribeCluster, DescribeConfigs -----------------------------------------------


async def test_api_versions_has_what_is_served_and_the_features(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    assert dict(connection.versions) == {
        int(key): (api.min_version, api.max_version) for key, api in CONTROLLER_APIS.items()
    }
    assert ApiKey.METADATA not in connection.versions
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        response = await connection.send(request, api_version=version)
        assert response.error_code == ErrorCode.NONE
        finalized = {each.name: each.max_version_level for each in response.finalized_features}
        supported = {each.name for each in response.supported_features}
        assert (finalized.get("kraft.version") == 1) == (version >= 3)
        assert ("metadata.version" in finalized) == (version >= 3)
        assert ("kraft.version" in supported) == (version >= 4), "its lowest level is 0 (KIP-1022)"
    refused = await connection.send(ApiVersionsRequest(client_software_name="-"), api_version=3)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones(
    start: Start,
) -> None:
    bench = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    body = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, -1) + b"\0garbage"
    writer.write(struct.pack(">i", len(body)) + body)
    size = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 10))[0]
    frame = await reader.readexactly(size)
    assert struct.unpack(">ihihhh", frame) == (5, 35, 1, ApiKey.API_VERSIONS, 0, 4)
    writer.close()
    await writer.wait_closed()


async def test_describe_cluster_lists_the_registered_controllers(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    finalized = bench.controller.committed_image.features.finalized_levels
    response = await connection.send(
        ControllerRegistrationRequest(
            controller_id=OTHER_NODE,
            listeners=[
                Listener(name=LISTENER, host="c2", port=9093),
                Listener(name="OTHER", host="o2", port=9094),
            ],
            features=[
                Feature(name=name, min_supported_version=0, max_supported_version=level)
                for name, level in finalized.items()
            ],
        )
    )
    assert response.error_code == ErrorCode.NONE
    response = await connection.send(
        DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
    )
    assert (response.cluster_id, response.controller_id, response.endpoint_type) == (
        CLUSTER_ID,
        1,
        2,
    )
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [
        (OTHER_NODE, "c2", 9093)
    ]
    assert response.cluster_authorized_operations > 0
    for version, endpoint_type, error in (
        (0, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        request = DescribeClusterRequest(endpoint_type=endpoint_type)
        response = await connection.send(request, api_version=version)
        assert response.error_code == error


async def test_operations_on_the_cluster_are_shown_to_users_that_may_describe_it(
    start: Start,
) -> None:
    bench = await start((Operation.DESCRIBE, ResourceType.CLUSTER))
    connection = await bench.connect()
    request = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
    response = await connection.send(request)
    assert (response.error_code, response.cluster_authorized_operations) == (0, 0)


async def test_a_large_question_is_answered_and_keeps_its_place(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    count = 3000
    assert count > LARGE_ELEMENT_COUNT
    resources = [
        DescribeConfigsResource(resource_type=2, resource_name=f"a-topic-of-no-one-{number}")
        for number in range(count)
    ]
    large = DescribeConfigsRequest(resources=resources)
    assert len(large.to_bytes(4)) > LARGE_BODY_BYTES
    answers = await asyncio.gather(
        connection.send(large), connection.send(DescribeClusterRequest(endpoint_type=2))
    )
    assert [each.resource_name for each in answers[0].results] == [
        each.resource_name for each in resources
    ]
    assert answers[1].cluster_id == CLUSTER_ID


async def test_describe_configs_of_topics_and_of_this_node(start: Start) -> None:
    bench = await start((Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC))
    connection = await bench.connect()
    resources = [
        DescribeConfigsResource(resource_type=4, resource_name="1"),
        DescribeConfigsResource(resource_type=4, resource_name=""),
        DescribeConfigsResource(resource_type=4, resource_name="7"),
        DescribeConfigsResource(resource_type=2, resource_name="t"),
        DescribeConfigsResource(resource_type=16, resource_name="t"),
    ]
    response = await connection.send(DescribeConfigsRequest(resources=resources))
    assert [result.error_code for result in response.results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
    ]
    own = {config.name: config.value for config in response.results[0].configs}
    assert own["node.id"] == "1"
    defaults = {config.name for config in response.results[1].configs}
    assert defaults == {"min.insync.replicas"}, "which the first leader finalizes (KIP-966)"


# -- the active controller, and the others -------------------------------------------------------


async def test_brokers_and_clients_are_served_by_the_active_controller(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    await bench.join(connection)
    response = await connection.send(topics("a", "b", "b"))
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.INVALID_REQUEST,
    }
    response = await connection.send(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=3, assignments=None)], timeout_ms=30_000
        )
    )
    assert response.results[0].error_code == ErrorCode.NONE
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name="a",
        configs=[AlterableConfig(name="retention.ms", config_operation=0, value="77")],
    )
    response = await connection.send(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE
    described = await connection.send(
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name="a")],
            include_synonyms=True,
        )
    )
    values = {config.name: config.value for config in described.results[0].configs}
    assert values["retention.ms"] == "77"
    response = await connection.send(
        DeleteTopicsRequest(topic_names=["a"], timeout_ms=30_000), api_version=5
    )
    assert [(each.name, each.error_code) for each in response.responses] == [("a", ErrorCode.NONE)]


@pytest.mark.parametrize("api_key", sorted(DECIDERS), ids=lambda key: key.name)
async def test_a_standby_says_not_controller_in_every_version(
    start: Start, api_key: ApiKey
) -> None:
    bench = await start(leads=False)
    connection = await bench.connect()
    for version in versions(api_key):
        request = sample(api_key)
        if api_key is ApiKey.DELETE_TOPICS and version < 6:
            request = DeleteTopicsRequest(topic_names=["t"])
        response = await connection.send(request, api_version=version)
        assert type(response) is response_class(api_key)
        assert set(error_codes(response)) - {0} == {ErrorCode.NOT_CONTROLLER}


async def test_losing_leadership_answers_those_who_wait(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    await bench.join(connection)
    bench.log.commits = False
    waiting = asyncio.ensure_future(connection.send(topics("a")))
    await until_async(lambda: bench.controller.waiting_count == 1, "it waits for its commit")
    bench.log.lead(OTHER_NODE, 2)
    response = await asyncio.wait_for(waiting, 10)
    assert response.topics[0].error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    "api_key",
    [key for key in CONTROLLER_APIS if CONTROLLER_APIS[key].controller == QUORUM],
    ids=lambda key: key.name,
)
async def test_the_quorum_is_asked_with_version_and_address(start: Start, api_key: ApiKey) -> None:
    bench = await start(leads=False)
    connection = await bench.connect()
    for version in versions(api_key):
        response = await connection.send(sample(api_key), api_version=version)
        assert has_error(response, ErrorCode.UNKNOWN_LEADER_EPOCH)
    asked = [(type(request), version, host) for request, version, host in bench.quorum.asked]
    kind = request_class(api_key)
    assert asked == [(kind, version, "127.0.0.1") for version in versions(api_key)]


def test_each_row_is_whole() -> None:
    """What it names exists (functions of the core are looked for when the table is read)."""
    for api_key, api in CONTROLLER_APIS.items():
        kind = request_class(api_key)
        assert (api.min_version, api.max_version) == (kind.MIN_VERSION, kind.LATEST_STABLE_VERSION)
        restrict: Filter | None = getattr(permitted_parts, api.restricted_by, None)
        assert (restrict is None) == (api.restricted_by == "")
        if api.controller == QUORUM:
            assert api.operation is not None
        elif api.controller == DESCRIBED:
            assert hasattr(ClusterDescriptions, api_key.name.lower())
        elif api.controller.startswith("ClusterControl."):
            assert hasattr(ClusterControl, api.controller.partition(".")[2])
        if api.broker in (FORWARDED, TOKENS):
            assert api_key in FORWARDABLE_APIS


async def test_what_comes_before_the_log_is_open_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_EARLY_REQUESTS", 1)
    bench = ControllerBench(None)
    await bench.server.start([ListenerSpec(LISTENER, "127.0.0.1", 0)])
    early = asyncio.ensure_future(bench.connect())
    await until_async(lambda: bench.server._early, "it waits")
    with pytest.raises(ConnectionLost):
        await bench.connect()
    bench.controller.start()
    bench.log.lead(1, 1)
    bench.server.open(bench.router)
    connection = await asyncio.wait_for(early, 10)
    assert (await connection.send(registration(1))).error_code == ErrorCode.NONE
    await bench.close()


# -- permission ----------------------------------------------------------------------------------


OF_CLUSTER = [
    api_key
    for api_key, api in CONTROLLER_APIS.items()
    if api.operation is not None and api.controller != BY_LISTENER
]


@pytest.mark.parametrize("api_key", OF_CLUSTER, ids=lambda key: key.name)
async def test_each_api_needs_its_permission_on_the_cluster(start: Start, api_key: ApiKey) -> None:
    operation = CONTROLLER_APIS[api_key].operation
    assert operation is not None
    bench = await start((operation, ResourceType.CLUSTER))
    connection = await bench.connect()
    response = await connection.send(sample(api_key))
    assert has_error(response, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert bench.quorum.asked == []


async def test_permission_on_topics(start: Start) -> None:
    bench = await start(
        (Operation.CREATE, ResourceType.CLUSTER),
        (Operation.CREATE, ResourceType.TOPIC),
        (Operation.DELETE, ResourceType.TOPIC),
        (Operation.ALTER, ResourceType.TOPIC),
        (Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
    )
    connection = await bench.connect()
    for api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        response = await connection.send(sample(api_key))
        assert set(error_codes(response)) - {0} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    for api_key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        response = await connection.send(sample(api_key))
        assert set(error_codes(response)) - {0} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


DELETES_ALL = (Operation.DELETE, ResourceType.CLUSTER)
DELETES = (Operation.DELETE, ResourceType.TOPIC)
DESCRIBES = (Operation.DESCRIBE, ResourceType.TOPIC)


@pytest.mark.parametrize(
    ("denied", "by_name", "by_id", "named", "missing"),
    [
        ([DELETES, DESCRIBES], 0, 0, "secret", 3),
        ([DELETES_ALL], 0, 0, "secret", 3),
        ([DELETES_ALL, DELETES], 29, 29, "secret", 3),
        ([DELETES_ALL, DESCRIBES], 29, 0, "secret", 29),
        ([DELETES_ALL, DELETES, DESCRIBES], 29, 29, None, 29),
    ],
)
async def test_deleting_a_topic_needs_delete_and_describe(
    start: Start,
    denied: list[tuple[Operation, ResourceType]],
    by_name: int,
    by_id: int,
    named: str | None,
    missing: int,
) -> None:
    """DELETE on the cluster is enough; on a topic that is named, DESCRIBE is needed, too."""
    bench = await start(*denied)
    connection = await bench.connect()
    await bench.join(connection)
    created = await connection.send(topics("secret", "known-by-name"))
    ids = {topic.name: topic.topic_id for topic in created.topics}
    states = (
        DeleteTopicState(name="known-by-name"),
        DeleteTopicState(name=None, topic_id=ids["secret"]),
        DeleteTopicState(name="missing"),
    )
    told = []
    for state in states:
        response = await connection.send(DeleteTopicsRequest(topics=[state], timeout_ms=30_000))
        told += [(each.name, each.error_code) for each in response.responses]
    assert told == [("known-by-name", by_name), (named, by_id), ("missing", missing)]


# -- Envelope ------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", sorted(FORWARDABLE_APIS), ids=lambda key: key.name)
async def test_an_envelope_round_trip_per_version(start: Start, api_key: ApiKey) -> None:
    """The embedded request is served in its own version; the quorum sees the client's address."""
    bench = await start()
    connection = await bench.connect()
    await bench.join(connection)
    for version in versions(api_key):
        request = sample(api_key)
        if api_key is ApiKey.DELETE_TOPICS and version < 6:
            request = DeleteTopicsRequest(topic_names=["t"])
        answer = await connection.send(wrap(request, version))
        response = unwrap(answer, request, version)
        assert type(response) is response_class(api_key)
    assert {host for _request, _version, host in bench.quorum.asked} <= {"10.1.2.3"}


async def test_an_envelope_is_judged_by_the_clients_permission(start: Start) -> None:
    bench = await start((Operation.ALTER, ResourceType.CLUSTER), principal=ALICE)
    connection = await bench.connect()
    request = AddRaftVoterRequest()
    refused = unwrap(await connection.send(wrap(request, 1)), request, 1)
    assert has_error(refused, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    allowed = unwrap(await connection.send(wrap(request, 1, "User:bob")), request, 1)
    assert has_error(allowed, ErrorCode.UNKNOWN_LEADER_EPOCH), "what the scripted quorum says"


async def test_who_may_not_forward_is_refused_by_the_envelope(start: Start) -> None:
    bench = await start((Operation.CLUSTER_ACTION, ResourceType.CLUSTER))
    connection = await bench.connect()
    answer = await connection.send(wrap(topics("a"), 7))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.response_data is None


async def limited_bench(start: Start, rate: float) -> tuple[ControllerBench, Connection]:
    """With a quota of mutations for Alice, whose requests are forwarded."""
    bench = await start()
    connection = await bench.connect()
    await bench.join(connection)
    entity = [EntityData(entity_type="user", entity_name="alice")]
    quota = OpData(key="controller_mutation_rate", value=rate)
    change = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=[quota])])
    answer: Any = await connection.send(change)
    assert [each.error_code for each in answer.entries] == [ErrorCode.NONE]
    return bench, connection


async def test_forwarded_mutations_count_for_their_client(start: Start) -> None:
    bench, connection = await limited_bench(start, 0.05)

    async def create(*names: str, version: int, principal: str = ALICE) -> tuple[list[int], int]:
        request = topics(*names)
        envelope = wrap(request, version, principal)
        answer: Any = unwrap(await connection.send(envelope), request, version)
        return [each.error_code for each in answer.topics], answer.throttle_time_ms

    codes, throttle_ms = await create("a", "b", version=7)
    assert codes == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert 0 < throttle_ms <= 20_000
    codes, permissive_ms = await create("c", version=5)
    assert codes == [ErrorCode.NONE]
    assert permissive_ms > throttle_ms, "what is lent takes longer to come back"
    codes, throttle_ms = await create("d", version=7, principal="User:bob")
    assert (codes, throttle_ms) == ([ErrorCode.NONE], 0)
    tokens = {
        dict(each.labels)["user"]: each.instrument.value
        for each in bench.registry.collect()
        if each.name == "kafka.server:type=ControllerMutation,name=tokens"
    }
    assert tokens.keys() == {"alice"}
    assert tokens["alice"] < 0


async def test_a_changed_quota_of_mutations_counts_for_the_next_request(start: Start) -> None:
    _bench, connection = await limited_bench(start, 0.05)
    request = topics("a", "b")
    answer: Any = unwrap(await connection.send(wrap(request, 7)), request, 7)
    assert answer.topics[1].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    gone = OpData(key="controller_mutation_rate", remove=True)
    entity = [EntityData(entity_type="user", entity_name="alice")]
    await connection.send(AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=[gone])]))
    request = topics("b", "c")
    answer = unwrap(await connection.send(wrap(request, 7)), request, 7)
    assert [each.error_code for each in answer.topics] == [ErrorCode.NONE] * 2
    assert answer.throttle_time_ms == 0


async def test_a_standby_says_so_at_the_envelope(start: Start) -> None:
    bench = await start(leads=False)
    connection = await bench.connect()
    answer = await connection.send(wrap(topics("a"), 7))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


async def test_envelopes_that_cannot_be_served(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    good = wrap(topics("a"), 7)
    cases = [
        ("principal", {"request_principal": b"\0\0\xff"}, 97),
        ("principal's version", {"request_principal": b"\0\x09\0"}, 97),
        ("no principal", {"request_principal": None}, 97),
        ("address", {"client_host_address": b"12345"}, 42),
        ("header", {"request_data": b"\0"}, 35),
        ("unknown API", {"request_data": struct.pack(">hhih", 999, 0, 1, -1)}, 35),
        ("unknown version", {"request_data": struct.pack(">hhih", 19, 99, 1, -1) + b"\0"}, 35),
        ("body", {"request_data": bytes(good.request_data)[:-6]}, 35),
        ("heartbeat", {"request_data": struct.pack(">hhih", 63, 0, 1, -1) + bytes(30)}, 42),
        ("not served", {"request_data": struct.pack(">hhih", 38, 3, 1, -1) + b"\0\1\0"}, 35),
    ]
    for what, changes, error in cases:
        envelope = wrap(topics("a"), 7)
        for name, value in changes.items():
            setattr(envelope, name, value)
        answer = await connection.send(envelope)
        assert answer.error_code == error, what
    assert unwrap(await connection.send(good), topics("a"), 7)


# -- kraft.version ------------------------------------------------------------------------------


def features(*levels: tuple[str, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    updates = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels]
    return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)


async def without_groups(connection: Connection) -> None:
    """Switch a feature off that can be raised again."""
    off = FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
    response = await connection.send(UpdateFeaturesRequest(feature_updates=[off]))
    assert response.error_code == ErrorCode.NONE


async def test_kraft_version_is_raised_together_with_other_features(start: Start) -> None:
    bench = await start()
    connection = await bench.connect()
    await without_groups(connection)
    bench.kraft_version = 0
    both = (("kraft.version", 1), ("group.version", 1))

    def levels() -> tuple[int, int]:
        image = bench.controller.committed_image
        return bench.kraft_version, image.features.level("group.version")

    response = await connection.send(features(*both, validate_only=True))
    assert (response.error_code, levels()) == (ErrorCode.NONE, (0, 0)), "only validated"
    bad = await connection.send(features(("kraft.version", 1), ("group.version", 99)))
    assert (bad.error_code, levels()) == (ErrorCode.INVALID_UPDATE_VERSION, (0, 0)), "all or none"
    response = await connection.send(features(*both), api_version=1)
    assert (response.error_code, levels()) == (ErrorCode.NONE, (1, 1))
    assert {each.feature for each in response.results} == {"kraft.version", "group.version"}
    again = await connection.send(features(("kraft.version", 1)))
    assert again.error_code == ErrorCode.NONE
    for wrong in ((("kraft.version", 0),), (("kraft.version", 2),), (("kraft.version", 1),) * 2):
        response = await connection.send(features(*wrong))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION, wrong


@pytest.mark.parametrize(
    ("level", "outcome", "told"),
    [
        (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER),
        (0, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (1, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),  # not committed yet
    ],
)
async def test_a_quorum_that_does_not_upgrade_leaves_the_other_features(
    start: Start, level: int, outcome: ErrorCode, told: ErrorCode
) -> None:
    bench = await start()
    connection = await bench.connect()
    await without_groups(connection)
    bench.kraft_version, bench.kraft_upgrade_outcome = level, outcome
    response = await connection.send(features(("kraft.version", 1), ("group.version", 1)))
    assert response.error_code == told
    assert bench.controller.committed_image.features.level("group.version") == 0
    assert bench.faults == []


async def test_a_standby_does_not_answer_for_kraft_version(start: Start) -> None:
    bench = await start(leads=False)
    connection = await bench.connect()
    response = await connection.send(features(("kraft.version", 1)))
    assert response.error_code == ErrorCode.NOT_CONTROLLER


# -- limits and nonsense -------------------------------------------------------------------------


async def test_nonsense_closes_only_its_own_connection(start: Start) -> None:
    bench = await start()
    good = await bench.connect()
    frames = [
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1),  # not served by controllers
        struct.pack(">hhih", ApiKey.CREATE_TOPICS, 99, 1, -1),
        struct.pack(">hhih", ApiKey.BROKER_HEARTBEAT, 1, 1, -1) + b"\0",
        struct.pack(">hhih", ApiKey.FETCH, 17, 1, -1) + b"\0" + b"\xff" * 9,
        b"\xff",
    ]
    for frame in frames:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(struct.pack(">i", len(frame)) + frame)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.transport.abort()
    assert (await good.send(registration(1))).error_code == ErrorCode.NONE


async def test_heartbeats_do_not_wait_behind_clients(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apis, "CHANGES", Lane("changes", 2))
    bench = await start()
    peer, *clients = [await bench.connect() for _ in range(4)]
    broker_epoch = await bench.join(peer)
    bench.quorum.release.clear()
    waiting = []
    router = bench.router
    for number, client in enumerate(clients):
        waiting.append(asyncio.ensure_future(client.send(AddRaftVoterRequest())))
        await until_async(lambda count=number + 1: router.request_count == count, "it arrived")
    beat = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=broker_epoch, current_metadata_offset=broker_epoch
    )
    assert (await peer.send(beat)).error_code == ErrorCode.NONE
    assert len(bench.quorum.asked) == 1
    bench.quorum.release.set()
    for response in await asyncio.gather(*waiting):
        assert has_error(response, ErrorCode.UNKNOWN_LEADER_EPOCH)


async def test_peers_are_bounded_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apis, "PEERS", Lane("nodes", 1))
    bench = await start()
    first, second = await bench.connect(), await bench.connect()
    router = bench.router
    bench.quorum.release.clear()
    vote = request_class(ApiKey.VOTE)
    waiting = [asyncio.ensure_future(each.send(vote())) for each in (first, second)]
    await until_async(lambda: router.request_count == 2, "one waits")
    assert len(bench.quorum.asked) == 1
    bench.quorum.release.set()
    assert all(await asyncio.gather(*waiting))


async def test_closing_ends_what_waits(start: Start) -> None:
    bench = await start()
    connection: Connection = await bench.connect()
    bench.quorum.release.clear()
    waiting = asyncio.ensure_future(connection.send(request_class(ApiKey.FETCH)()))
    await until_async(lambda: len(bench.quorum.asked) == 1, "the fetch waits")
    await asyncio.wait_for(bench.close_listener(), 10)
    with pytest.raises(ConnectionLost):
        await waiting
