"""The admin client against a broker whose answers are written down here."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.client import (
    Admin,
    BrokerError,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    InvalidTopic,
    NewTopic,
    NoBrokerAvailable,
    OffsetSpec,
    RequestTimeout,
    TopicAlreadyExists,
    TopicPartition,
    UnknownTopicOrPartition,
    UnsupportedByBroker,
)
from moldau.client.errors import ClientClosed
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from tests.unit.client.faults.harness import port_saying
from tests.unit.client.scripted_broker import ScriptedBroker
from tests.virtual.machine import pass_time

TOPIC_ID = uuid.UUID(int=42)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(
        broker.address, retry_backoff_ms=1, retry_backoff_max_ms=2, default_api_timeout_ms=5_000
    ) as client:
        yield client


def created(error: ErrorCode, message: str | None = None) -> Any:
    """Answers CreateTopics with one outcome for every topic."""

    def answer(request: Any) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(
                    name=topic.name, topic_id=TOPIC_ID, error_code=error, error_message=message
                )
                for topic in request.topics
            ]
        )

    return answer


async def test_create_topics_returns_ids_and_sends_what_was_asked(
    broker: ScriptedBroker, admin: Admin
) -> None:
    broker.script(ApiKey.CREATE_TOPICS, created(ErrorCode.NONE))
    ids = await admin.create_topics([NewTopic("a", 3, 1, {"retention.ms": "5"})])
    assert ids == {"a": TOPIC_ID}
    (request,) = broker.requests_of(CreateTopicsRequest)
    assert isinstance(request, CreateTopicsRequest)
    topic = request.topics[0]
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("a", 3, 1)
    assert [(c.name, c.value) for c in topic.configs] == [("retention.ms", "5")]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, TopicAlreadyExists),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, InvalidTopic),
        (ErrorCode.POLICY_VIOLATION, BrokerError),
    ],
)
async def test_a_final_error_is_raised_at_once_with_its_code(
    broker: ScriptedBroker, admin: Admin, code: ErrorCode, kind: type[BrokerError]
) -> None:
    broker.script(ApiKey.CREATE_TOPICS, created(code, "the broker's words"))
    with pytest.raises(kind, match="the broker's words") as caught:
        await admin.create_topics([NewTopic("a")])
    assert caught.value.code is code
    assert len(broker.requests_of(CreateTopicsRequest)) == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE]
)
async def test_a_retriable_error_is_retried(
    broker: ScriptedBroker, admin: Admin, code: ErrorCode
) -> None:
    broker.script(ApiKey.CREATE_TOPICS, created(code), created(code), created(ErrorCode.NONE))
    assert await admin.create_topics([NewTopic("a")]) == {"a": TOPIC_ID}
    assert len(broker.requests_of(CreateTopicsRequest)) == 3


async def test_a_cut_connection_is_replaced(broker: ScriptedBroker, admin: Admin) -> None:
    broker.script(ApiKey.CREATE_TOPICS, lambda _: None, created(ErrorCode.NONE))
    assert await admin.create_topics([NewTopic("a")]) == {"a": TOPIC_ID}


async def test_the_last_error_is_raised_when_the_time_is_over(
    broker: ScriptedBroker, admin: Admin
) -> None:
    broker.script(ApiKey.CREATE_TOPICS, created(ErrorCode.NOT_CONTROLLER, "elections"))
    with pytest.raises(BrokerError, match="NOT_CONTROLLER: elections"):
        await admin.create_topics([NewTopic("a")], timeout_ms=300)


async def test_an_unreachable_cluster_is_one_clear_error() -> None:
    async with ScriptedBroker() as gone:
        address = gone.address
    async with Admin(address, default_api_timeout_ms=100) as admin:
        with pytest.raises(RequestTimeout, match=address) as caught:
            await admin.list_topics()
    assert isinstance(caught.value.__cause__, NoBrokerAvailable)


async def test_an_unserved_api_is_unsupported(broker: ScriptedBroker) -> None:
    broker.served = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 13)}
    async with Admin(broker.address) as admin:
        with pytest.raises(UnsupportedByBroker, match="CREATE_TOPICS"):
            await admin.create_topics([NewTopic("a")])


async def test_offsets_of_an_unknown_topic(admin: Admin, broker: ScriptedBroker) -> None:
    broker.topics = {"known": 1}
    with pytest.raises(UnknownTopicOrPartition):
        await admin.list_offsets({TopicPartition("known", 3): OffsetSpec.LATEST})


async def test_offsets_come_back_by_partition(admin: Admin, broker: ScriptedBroker) -> None:
    broker.topics = {"t": 2}

    def answer(request: Any) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=p.partition_index, offset=100 + p.partition_index
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    broker.script(ApiKey.LIST_OFFSETS, answer)
    wanted = {TopicPartition("t", 0): OffsetSpec.LATEST, TopicPartition("t", 1): 1_700_000_000_000}
    found = await admin.list_offsets(wanted)
    assert {key: value.offset for key, value in found.items()} == {
        TopicPartition("t", 0): 100,
        TopicPartition("t", 1): 101,
    }


async def test_broker_configuration_goes_to_the_broker_it_is_of(
    admin: Admin, broker: ScriptedBroker
) -> None:
    def answer(request: Any) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    resource_type=r.resource_type, resource_name=r.resource_name
                )
                for r in request.resources
            ]
        )

    broker.script(ApiKey.INCREMENTAL_ALTER_CONFIGS, answer)
    change = [ConfigChange("log.retention.ms", "5")]
    own = ConfigResource(ConfigResourceType.BROKER, "7")
    default = ConfigResource(ConfigResourceType.BROKER, "")
    await admin.alter_configs({own: change, default: change})
    asked = broker.requests_of(IncrementalAlterConfigsRequest)
    names = [[r.resource_name for r in request.resources] for request in asked]  # type: ignore[attr-defined]
    assert sorted(names) == [[""], ["7"]]


async def test_a_cancelled_call_leaves_the_connection_usable(
    admin: Admin, broker: ScriptedBroker
) -> None:
    broker.topics = {"t": 1}
    task = asyncio.create_task(admin.list_topics())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await admin.list_topics() == ["t"]


async def test_a_closed_client_says_so(broker: ScriptedBroker) -> None:
    admin = Admin(broker.address)
    await admin.close()
    with pytest.raises(ClientClosed):
        await admin.list_topics()


async def test_closing_while_a_connection_is_being_opened_fails_the_call() -> None:
    """The caller was not cancelled: it gets an error that it can catch."""
    async with port_saying(None) as address:
        admin = Admin(address)
        asked = asyncio.ensure_future(admin.list_topics())
        await pass_time(1_000)
        await admin.close()
        with pytest.raises(ClientClosed):
            await asked


async def test_producers_are_asked_of_the_leader_of_now() -> None:
    async with ScriptedBroker() as broker, Admin(broker.address, retry_backoff_ms=1) as admin:
        broker.topics["t"] = 1

        def answer(error: ErrorCode) -> Any:
            entry = PartitionResponse(partition_index=0, error_code=error)
            return lambda _: DescribeProducersResponse(
                topics=[TopicResponse(name="t", partitions=[entry])]
            )

        codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
        broker.script(ApiKey.DESCRIBE_PRODUCERS, *map(answer, codes))
        assert await admin.describe_producers(TopicPartition("t", 0)) == []
        kinds = [type(request).__name__ for request in broker.requests]
        first = kinds.index("DescribeProducersRequest")
        assert kinds[first:] == [
            "DescribeProducersRequest",
            "MetadataRequest",
            "DescribeProducersRequest",
        ]
