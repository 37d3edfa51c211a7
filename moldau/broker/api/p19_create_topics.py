"""CreateTopics v2–v7: forwarded to the controller.

Behaviour: allowed by CREATE on the cluster or on the topic; who may not DESCRIBE_CONFIGS is not
shown the created topic's configuration; a name given twice in one request is INVALID_REQUEST for
that name.
Known gaps: none.
"""

from __future__ import annotations

from collections import Counter

from moldau.broker.api.authorizer import CLUSTER_RESOURCE_NAME, Operation, ResourceType
from moldau.broker.api.forwarding import forward
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.runtime.slices import LoopSlices


async def answer(
    services: BrokerServices, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create topics, or only validate them."""
    slices = LoopSlices(services.clock)
    counts = Counter[str]()
    topics: dict[str, CreatableTopic] = {}
    for topic in request.topics:
        if slices.is_over:
            await slices.next()
        counts[topic.name] += 1
        topics[topic.name] = topic
    cluster_wide = context.authorized(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
    refused: list[CreatableTopicResult] = []
    allowed: list[CreatableTopic] = []
    for name, topic in topics.items():
        if slices.is_over:
            await slices.next()
        if counts[name] > 1:
            refused.append(_refusal(name, ErrorCode.INVALID_REQUEST, "named twice in one request"))
        elif not cluster_wide and not context.authorized(
            Operation.CREATE, ResourceType.TOPIC, name
        ):
            refused.append(
                _refusal(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "creating it is not allowed")
            )
        else:
            allowed.append(topic)
    response = CreateTopicsResponse(topics=refused)
    if not allowed:
        return response
    forwarded = CreateTopicsRequest(
        topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
    )
    answered = await forward(services, context, forwarded, timeout_ms=request.timeout_ms)
    if answered is None:
        response.topics += [
            _refusal(topic.name, ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer")
            for topic in allowed
        ]
        return response
    for result in answered.topics:
        if slices.is_over:
            await slices.next()
        if not context.authorized(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.configs, result.num_partitions, result.replication_factor = [], -1, -1
        response.topics.append(result)
    return response


def _refusal(topic_name: str, error: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic_name, error_code=error, error_message=message)
