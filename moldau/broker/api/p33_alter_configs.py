"""AlterConfigs v0–v2: replace a resource's whole configuration (superseded by KIP-339, still used).

Behaviour: every dynamic key that the request does not name goes back to its default. Loggers cannot
be altered this way. A resource named twice is INVALID_REQUEST. Known gaps: as
IncrementalAlterConfigs.
"""

from __future__ import annotations

from moldau.broker.api.config_resources import alter, listener_problem, refusal
from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.server.config_permissions import Problem
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: p33.AlterConfigsRequest
) -> p33.AlterConfigsResponse:
    async def decide(resource: p33.AlterConfigsResource) -> Problem | None:
        kind = resource.resource_type
        if kind == ConfigResourceType.BROKER_LOGGER:
            return (
                ErrorCode.INVALID_REQUEST,
                "levels of loggers are changed with IncrementalAlterConfigs",
            )
        refused = refusal(services, context, Operation.ALTER_CONFIGS, resource)
        if refused is None and kind == ConfigResourceType.BROKER:
            wanted = {each.name: each.value or "" for each in resource.configs}
            return await listener_problem(services, context, resource, wanted)
        return refused

    return p33.AlterConfigsResponse(
        responses=await alter(services, context, request, decide, tells_repeated_once=True)
    )
