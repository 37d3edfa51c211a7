"""AlterConfigs v0–v2: replace a resource's whole configuration (superseded by KIP-339, still used).

Behaviour: every dynamic key that the request does not name goes back to its default. Loggers cannot
be altered this way. A resource named twice is INVALID_REQUEST. Known gaps: as
IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from moldau.broker.api.config_resources import (
    Problem,
    authorized_for,
    problem,
)
from moldau.broker.api.forwarding import forward
from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from moldau.runtime.slices import LoopSlices
from moldau.server.authorizer import Operation
from moldau.server.request import RequestContext

FORWARD_TIMEOUT_MS: Final = 30_000


async def answer(
    services: BrokerServices, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    slices = LoopSlices(services.clock)
    counts = Counter[tuple[int, str]]()
    by_identity: dict[tuple[int, str], AlterConfigsResource] = {}
    for resource in request.resources:
        if slices.is_over:
            await slices.next()
        identity = (resource.resource_type, resource.resource_name)
        counts[identity] += 1
        by_identity[identity] = resource
    response = AlterConfigsResponse()
    forwarded: list[AlterConfigsResource] = []
    for identity, resource in by_identity.items():
        if slices.is_over:
            await slices.next()
        refused: Problem | None
        if counts[identity] > 1:
            refused = ErrorCode.INVALID_REQUEST, "named twice in one request"
        elif resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            refused = (
                ErrorCode.INVALID_REQUEST,
                "levels of loggers are changed with IncrementalAlterConfigs",
            )
        else:
            refused = authorized_for(context, Operation.ALTER_CONFIGS, *identity) or problem(
                services, *identity
            )
        if refused is None:
            forwarded.append(resource)
        else:
            response.responses.append(_entry(resource, refused))
    if forwarded:
        answered = await forward(
            services,
            context,
            AlterConfigsRequest(resources=forwarded, validate_only=request.validate_only),
            timeout_ms=FORWARD_TIMEOUT_MS,
        )
        if answered is None:
            silence = ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer"
            response.responses += [_entry(resource, silence) for resource in forwarded]
        else:
            response.responses += answered.responses
    return response


def _entry(resource: AlterConfigsResource, outcome: Problem) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=outcome[0],
        error_message=outcome[1],
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
