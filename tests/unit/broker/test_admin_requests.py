"""Administrative handlers of one broker: what they do before and without the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.api.p03_metadata import PARTITIONS_PER_TURN
from moldau.broker.lifecycle.controller_channel import (
    ControllerAnswer,
    ControllerUnavailable,
    ForwardedClient,
)
from moldau.config import NodeConfig
from moldau.metadata import descriptions
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.error_responses import error_response, has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import encode_response
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p49_alter_client_quotas import AlterClientQuotasRequest, EntryData
from moldau.protocol.messages.p51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from moldau.protocol.registry import request_class
from moldau.protocol.schema import Message
from moldau.server.apis import BROKER_APIS, FORWARDED
from moldau.server.authorizer import Authorizer
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath


class ScriptedController:
    """Answers as the test says; None plays a controller that does not answer."""

    def __init__(self, answer: Callable[[Message], Message] | None) -> None:
        self.answer = answer
        self.clients: list[ForwardedClient] = []
        self.bodies: list[bytes] = []
        self.answers_bytes = False

    async def forward(
        self,
        request: Message,
        principal: str,
        client: ForwardedClient,
        *,
        body: memoryview | None = None,
        timeout_ms: int = 0,
    ) -> ControllerAnswer:
        if body is not None:
            self.bodies.append(bytes(body))
        self.clients.append(client)
        if self.answer is None:
            raise ControllerUnavailable("no controller answers")
        answer = self.answer(request)
        version = client.api_version
        if not self.answers_bytes or version is None:
            return ControllerAnswer(answer, committed_end_offset=0)
        parts: list[Any] = encode_response(answer, api_version=version, correlation_id=7)
        return ControllerAnswer(b"".join(parts)[4:], committed_end_offset=0)


def combined_node_config(home: Path) -> NodeConfig:
    """The configuration of a node with both roles."""
    properties = home / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:1\n"
        f"log.dirs={home}/data\n"
    )
    return NodeConfig.load(str(properties), {}, {})


@pytest.fixture
def administered(broker: DataPath, tmp_path: Path) -> DataPath:
    """A broker with what administrative handlers need besides the data path."""
    services = broker.services
    services.node_config = combined_node_config(tmp_path)
    services.controller = ScriptedController(None)
    broker.metadata.controller_id_for_clients = lambda: 1  # type: ignore[attr-defined]
    return broker


async def test_metadata_without_a_controller_shows_what_there_is(administered: DataPath) -> None:
    """A missing topic cannot be created now; that is no reason to end the connection."""
    administered.create_topic("known")
    topics = [MetadataRequestTopic(name=name) for name in ("known", "missing")]
    response = await administered.ask(MetadataRequest(topics=topics), 12)
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "known": ErrorCode.NONE,
        "missing": ErrorCode.LEADER_NOT_AVAILABLE,
    }


async def test_metadata_of_very_many_partitions_lets_others_have_their_turn(
    administered: DataPath,
) -> None:
    """One image, though it takes several turns: a topic that comes in between is not in it."""
    topic_count, partition_count = 9, 600
    for topic in range(topic_count):
        # Of another broker: no logs are made here.
        administered.create_topic(
            f"many-{topic}", partition_count, replicas=(OTHER_BROKER_ID,), leader=OTHER_BROKER_ID
        )
    asked = administered.send(MetadataRequest(topics=None), 12)
    turn_count = 0
    while not asked.is_answered:
        turn_count += 1
        await asyncio.sleep(0)
        if turn_count == 2:
            administered.create_topic("late")
    assert turn_count >= topic_count * partition_count // PARTITIONS_PER_TURN - 1
    response = asked.response
    names = [topic.name for topic in response.topics]
    assert names == [f"many-{topic}" for topic in range(topic_count)]
    assert {len(topic.partitions) for topic in response.topics} == {partition_count}
    leaders = {each.leader_id for topic in response.topics for each in topic.partitions}
    assert leaders == {OTHER_BROKER_ID}


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (set(), ErrorCode.LEADER_NOT_AVAILABLE),
        ({(Operation.CREATE, ResourceType.TOPIC)}, ErrorCode.LEADER_NOT_AVAILABLE),
        ({(Operation.CREATE, ResourceType.CLUSTER)}, ErrorCode.LEADER_NOT_AVAILABLE),
        (
            {(Operation.CREATE, ResourceType.TOPIC), (Operation.CREATE, ResourceType.CLUSTER)},
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        ({(Operation.DESCRIBE, ResourceType.TOPIC)}, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_who_may_make_topics_by_asking_for_them(
    administered: DataPath, refused: set[Any], expected: ErrorCode
) -> None:
    """CREATE on the cluster or the topic; who may not see a topic does not make one either."""

    class Some(Authorizer):
        def authorize(
            self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
        ) -> bool:
            return (operation, kind) not in refused

    asked: list[Message] = []

    def answer(request: Message) -> Message:
        asked.append(request)
        raise ControllerUnavailable("only asked")

    administered.router._authorizer = Some()
    administered.services.controller = ScriptedController(answer)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="missing")])
    response = await administered.ask(request, 12)
    assert response.topics[0].error_code == expected
    assert bool(asked) == (expected is ErrorCode.LEADER_NOT_AVAILABLE)


async def test_a_topic_that_may_not_be_described_is_refused_by_its_id(
    administered: DataPath,
) -> None:
    class Blind(Authorizer):
        def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
            return operation is not Operation.DESCRIBE

    topic_id = UUID(int=5)
    administered.create_topic("t", topic_id=topic_id)
    administered.router._authorizer = Blind()
    wanted = [MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, UUID(int=77))]
    response = await administered.ask(MetadataRequest(topics=wanted), 13)
    assert [(each.name, each.error_code) for each in response.topics] == [
        (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_a_missing_topic_has_its_authorized_operations(administered: DataPath) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="missing")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = await administered.ask(request, 12)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.topics[0].topic_authorized_operations > 0


@pytest.mark.parametrize(
    ("request_class", "resource_class", "version", "told_count"),
    [
        (p33.AlterConfigsRequest, p33.AlterConfigsResource, 2, 1),
        (p44.IncrementalAlterConfigsRequest, p44.AlterConfigsResource, 1, 2),
    ],
)
async def test_configurations_that_no_controller_changes(
    administered: DataPath, request_class: Any, resource_class: Any, version: int, told_count: int
) -> None:
    """What is named twice is refused here: AlterConfigs reports it once, IncrementalAlterConfigs
    each time. The rest is reported last.
    """
    for name in ("once", "twice"):
        administered.create_topic(name)
    resources = [
        resource_class(resource_type=2, resource_name=name)
        for name in ("twice", "once", "twice", "missing")
    ]
    response = await administered.ask(request_class(resources=resources), version)
    told = [
        (each.resource_name, each.error_code, each.error_message) for each in response.responses
    ]
    twice = ("twice", ErrorCode.INVALID_REQUEST, "named twice in one request")
    assert told == [
        *[twice] * told_count,
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic missing"),
        ("once", ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer"),
    ]


@pytest.mark.parametrize("keys", [None, []])
async def test_no_keys_mean_all_keys(administered: DataPath, keys: list[str] | None) -> None:
    administered.create_topic("t", retention_ms="1234")
    resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=keys)
    response = await administered.ask(DescribeConfigsRequest(resources=[resource]), 4)
    described = {config.name: config.value for config in response.results[0].configs}
    assert described["retention.ms"] == "1234"
    assert len(described) > 30


async def test_described_resources_share_entries_up_to_a_limit(
    administered: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    administered.create_topic("a")
    administered.create_topic("b")
    administered.create_topic("own", retention_ms="7")

    async def described(*named: tuple[int, str]) -> list[DescribeConfigsResult]:
        resources = [
            DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in named
        ]
        response = await administered.ask(DescribeConfigsRequest(resources=resources), 4)
        assert [(each.resource_type, each.resource_name) for each in response.results] == [*named]
        results: list[DescribeConfigsResult] = response.results
        return results

    first, again, changed, group, node, defaults, loggers = await described(
        (2, "a"), (2, "b"), (2, "own"), (32, "g"), (4, str(BROKER_ID)), (4, ""), (8, str(BROKER_ID))
    )
    assert first.configs == again.configs
    count = len(first.configs)
    retention = [
        {config.name: config.value for config in each.configs}["retention.ms"]
        for each in (first, changed)
    ]
    assert retention == ["604800000", "7"]
    names = [{config.name for config in each.configs} for each in (group, node, loggers)]
    for expected, found in zip(
        ("consumer.session.timeout.ms", "node.id", "root"), names, strict=True
    ):
        assert expected in found
    assert not defaults.configs, "nothing is set for the whole cluster"

    assert count * 10_000 < descriptions.MAX_DESCRIBED_ENTRIES, "ten thousand topics at once"
    monkeypatch.setattr(descriptions, "MAX_DESCRIBED_ENTRIES", 3 * count + 1)
    results = await described(
        (2, "a"), (2, "b"), (2, "a"), (2, "b"), (2, "none"), (8, str(BROKER_ID))
    )
    assert [each.error_code for each in results] == [
        *([ErrorCode.NONE] * 3),
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert not results[3].configs


FORWARDED_APIS = [key for key, served in BROKER_APIS.items() if served.broker == FORWARDED]


def made(api_key: ApiKey, version: int) -> Message:
    """A request that names something, so that its answer has room for an error in every version."""
    match api_key:
        case ApiKey.ELECT_LEADERS:
            partitions = [TopicPartitions(topic="t", partitions=[0])]
            return ElectLeadersRequest(topic_partitions=partitions)
        case ApiKey.CREATE_TOPICS:
            return CreateTopicsRequest(topics=[CreatableTopic(name="t")])
        case ApiKey.CREATE_ACLS:
            return CreateAclsRequest(creations=[AclCreation(resource_name="t", principal="User:a")])
        case ApiKey.DELETE_ACLS:
            return DeleteAclsRequest(filters=[DeleteAclsFilter()])
        case ApiKey.ALTER_CLIENT_QUOTAS:
            return AlterClientQuotasRequest(entries=[EntryData()])
        case ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            return AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name="a", mechanism=1)]
            )
        case ApiKey.DELETE_TOPICS:
            if version < 6:
                return DeleteTopicsRequest(topic_names=["t"])
            return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        case ApiKey.CREATE_PARTITIONS:
            return CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t")])
    return request_class(api_key)()


@pytest.mark.parametrize("api_key", FORWARDED_APIS, ids=lambda api_key: api_key.name)
async def test_what_is_forwarded_in_every_version(administered: DataPath, api_key: ApiKey) -> None:
    """The client's version, name and address go along; answers and silence fit that version."""
    services = administered.services
    served = BROKER_APIS[api_key]
    for version in range(served.min_version, served.max_version + 1):
        answering = ScriptedController(
            lambda request, version=version: error_response(
                request, ErrorCode.POLICY_VIOLATION, "as scripted", api_version=version
            )
        )
        services.controller = answering
        for answering.answers_bytes in (False, True):
            response = await administered.ask(made(api_key, version), version)
            assert has_error(response, ErrorCode.POLICY_VIOLATION)
            assert answering.bodies.pop() == made(api_key, version).to_bytes(version)
            assert answering.clients.pop() == ForwardedClient(
                "127.0.0.1", "tests", version, False, "PLAINTEXT", correlation_id=7
            )
        services.controller = ScriptedController(None)
        response = await administered.ask(made(api_key, version), version)
        assert has_error(response, ErrorCode.REQUEST_TIMED_OUT)
