"""CreatePartitions v0–v3: forwarded to the controller.

Behaviour: a topic only grows; fewer or as many partitions as it has is INVALID_PARTITIONS; a topic
named twice in one request is INVALID_REQUEST. So is a topic of the coordinators, which Apache Kafka
lets grow: every group and transactional id would belong in another partition. Known gaps: none.
"""

from __future__ import annotations

from collections import Counter

from moldau.broker.api.authorizer import Operation, ResourceType
from moldau.broker.api.forwarding import forward
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.runtime.slices import LoopSlices


async def answer(
    services: BrokerServices, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to topics, or only validate that."""
    slices = LoopSlices(services.clock)
    counts = Counter[str]()
    topics: dict[str, CreatePartitionsTopic] = {}
    for topic in request.topics:
        if slices.is_over:
            await slices.next()
        counts[topic.name] += 1
        topics[topic.name] = topic
    response = CreatePartitionsResponse()
    allowed: list[CreatePartitionsTopic] = []
    for name, topic in topics.items():
        if slices.is_over:
            await slices.next()
        if counts[name] > 1:
            response.results.append(
                CreatePartitionsTopicResult(
                    name=name,
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message="named twice in one request",
                )
            )
        elif not context.authorized(Operation.ALTER, ResourceType.TOPIC, name):
            response.results.append(
                CreatePartitionsTopicResult(
                    name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
            )
        else:
            allowed.append(topic)
    if not allowed:
        return response
    forwarded = CreatePartitionsRequest(
        topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
    )
    answered = await forward(services, context, forwarded, timeout_ms=request.timeout_ms)
    if answered is None:
        response.results += [
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message="the controller did not answer",
            )
            for topic in allowed
        ]
    else:
        response.results += answered.results
    return response
