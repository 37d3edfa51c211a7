"""DeleteTopics v1–v6: forwarded to the controller.

Behaviour: by name (v1–v5), by name or id (v6). A client that may not DESCRIBE a topic is not told
whether its id exists. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation, ResourceType
from moldau.broker.api.forwarding import forward
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.types import ZERO_UUID
from moldau.runtime.slices import LoopSlices


async def answer(
    services: BrokerServices, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete topics and everything in them."""
    states = (
        request.topics
        if context.api_version >= 6
        else (DeleteTopicState(name=name) for name in request.topic_names)
    )
    response = DeleteTopicsResponse()
    allowed: list[DeleteTopicState] = []
    slices = LoopSlices(services.clock)
    for state in states:
        if slices.is_over:
            await slices.next()
        refusal = _refuse(services, context, state)
        if refusal is None:
            allowed.append(state)
        else:
            response.responses.append(refusal)
    if not allowed:
        return response
    forwarded = DeleteTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms)
    answered = await forward(services, context, forwarded, timeout_ms=request.timeout_ms)
    if answered is None:
        response.responses += [
            DeletableTopicResult(
                name=state.name, topic_id=state.topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT
            )
            for state in allowed
        ]
    else:
        response.responses += answered.responses
    if context.api_version < 6:
        for result in response.responses:
            result.name = result.name or ""
    return response


def _refuse(
    services: BrokerServices, context: RequestContext, state: DeleteTopicState
) -> DeletableTopicResult | None:
    """The entry for a topic that is not forwarded, or None when it may be."""
    by_id = state.topic_id != ZERO_UUID
    if by_id == (state.name is not None):
        return DeletableTopicResult(
            name=state.name,
            topic_id=state.topic_id,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="name the topic by its name or by its id, not by both or neither",
        )
    name = state.name
    if name is None:
        known = services.metadata.image.topics.topics_by_id.get(state.topic_id)
        if known is None:
            return None  # the controller, whose view is the newest, says UNKNOWN_TOPIC_ID
        name = known.name
        if not context.authorized(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return DeletableTopicResult(
                name=None,
                topic_id=state.topic_id,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
    if not context.authorized(Operation.DELETE, ResourceType.TOPIC, name):
        return DeletableTopicResult(
            name=name, topic_id=state.topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    return None
