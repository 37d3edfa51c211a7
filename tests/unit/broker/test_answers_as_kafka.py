"""Details of answers that Apache Kafka 4.3 gives so; found by tests/interop/differential."""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from moldau.protocol.messages.p65_describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.p75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from moldau.protocol.messages.p75_describe_topic_partitions import TopicRequest as PagedTopic
from tests.unit.broker.harness import DataPath

BROKER_RESOURCE = 4


async def test_a_described_resource_has_an_empty_message(broker: DataPath) -> None:
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="", configuration_keys=None
    )
    answer = await broker.ask(DescribeConfigsRequest(resources=[resource]), 4)
    assert (answer.results[0].error_code, answer.results[0].error_message) == (0, "")


@pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250])
async def test_producers_of_an_illegal_topic(broker: DataPath, name: str) -> None:
    topic = TopicRequest(name=name, partition_indexes=[0])
    answer = await broker.ask(DescribeProducersRequest(topics=[topic]), 0)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_an_unknown_transactional_id_has_the_fields_defaults(broker: DataPath) -> None:
    request = DescribeTransactionsRequest(transactional_ids=[""])
    (state,) = (await broker.ask(request, 0)).transaction_states
    assert state.error_code == ErrorCode.INVALID_REQUEST
    assert (state.producer_id, state.producer_epoch) == (0, 0)


@pytest.mark.parametrize(("topic", "partition"), [("a", -1), ("b", 0), ("", 0)])
async def test_a_cursor_must_be_one_of_the_topics_asked_for(
    broker: DataPath, topic: str, partition: int
) -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[PagedTopic(name="a")], cursor=Cursor(topic_name=topic, partition_index=partition)
    )
    answer = await broker.ask(request, 0)
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("a", ErrorCode.INVALID_REQUEST)
    ]


async def test_an_unknown_topic_has_its_authorized_operations(broker: DataPath) -> None:
    request = DescribeTopicPartitionsRequest(topics=[PagedTopic(name="no-such")])
    (topic,) = (await broker.ask(request, 0)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.topic_authorized_operations > 0


async def test_a_resource_named_twice_is_refused_twice(broker: DataPath) -> None:
    resource = AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="", configs=[])
    request = IncrementalAlterConfigsRequest(resources=[resource, resource])
    answer = await broker.ask(request, 1)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
