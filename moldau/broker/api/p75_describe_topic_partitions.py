"""DescribeTopicPartitions v0 (KIP-966): partitions with their eligible leaders, page by page.

Behaviour: topics come in name order; the cursor names the first topic and partition of the next
page; an empty list of topics means all. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.cluster_view import (
    alive_brokers,
    described_partitions,
    is_internal_topic,
)
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p75_describe_topic_partitions as p75
from moldau.protocol.types import is_legal_topic_name
from moldau.runtime.slices import LoopSlices, sorted_in_slices
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: p75.DescribeTopicPartitionsRequest
) -> p75.DescribeTopicPartitionsResponse:
    image = services.metadata.image
    alive = alive_brokers(image)
    topics_by_name = image.topics.topics_by_name
    slices = LoopSlices(services.clock)
    named = {topic.name for topic in request.topics}
    if slices.is_over:
        await slices.next()
    start_name, start_partition = "", 0
    if request.cursor is not None:
        start_name, start_partition = request.cursor.topic_name, request.cursor.partition_index
        if start_partition < 0 or (request.topics and start_name not in named):
            return await _bad_cursor(slices, named)
    names = await sorted_in_slices(
        slices, (name for name in named or topics_by_name if name >= start_name)
    )
    configured: int = services.node_config["max.request.partition.size.limit"]
    budget = max(1, min(request.response_partition_limit, configured))
    response = p75.DescribeTopicPartitionsResponse()
    for name in names:
        if slices.is_over:
            await slices.next()
        topic = topics_by_name.get(name)
        if topic is None or not context.authorized_topic(
            Operation.DESCRIBE, name, logs_denied=False
        ):
            if request.topics:
                response.topics.append(_absent(context, name))
            continue
        first = start_partition if name == start_name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        if budget == 0:
            response.next_cursor = p75.Cursor(topic_name=name, partition_index=0)
            break
        page = indexes[:budget]
        budget -= len(page)
        described = described_partitions(
            p75.DescribeTopicPartitionsResponsePartition, topic, page, alive, context.listener_name
        )
        for each in described:
            registration = topic.partitions[each.partition_index]
            each.eligible_leader_replicas = list(registration.elr)
            each.last_known_elr = list(registration.last_known_elr)
        response.topics.append(
            p75.DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=is_internal_topic(name),
                partitions=described,
                topic_authorized_operations=context.authorized_topic_operations(name),
            )
        )
        if len(page) < len(indexes):
            response.next_cursor = p75.Cursor(topic_name=name, partition_index=indexes[len(page)])
            break
    return response


async def _bad_cursor(
    slices: LoopSlices, names: Iterable[str]
) -> p75.DescribeTopicPartitionsResponse:
    response = p75.DescribeTopicPartitionsResponse()
    for name in await sorted_in_slices(slices, names):
        if slices.is_over:
            await slices.next()
        response.topics.append(
            p75.DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=name
            )
        )
    return response


def _absent(context: RequestContext, topic_name: str) -> p75.DescribeTopicPartitionsResponseTopic:
    absent = p75.DescribeTopicPartitionsResponseTopic(name=topic_name)
    if not context.authorized_topic(Operation.DESCRIBE, topic_name):
        absent.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return absent
    is_legal = is_legal_topic_name(topic_name)
    absent.error_code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    absent.topic_authorized_operations = context.authorized_topic_operations(topic_name)
    return absent
