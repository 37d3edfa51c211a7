"""Requests that only the controller may serve, forwarded to it by the broker that got them.

Owns the round trip and the error a client sees when no controller answers. Must not decide anything
the controller decides. Invariant: what authorisation refuses here never reaches the controller.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from moldau.broker.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    ControllerUnavailable,
    ForwardedClient,
)
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message

if TYPE_CHECKING:
    from moldau.broker.authorizer import Operation

logger = logging.getLogger("moldau.broker.forwarding")

FORWARD_SLACK_MS = 1_000


async def forward(
    services: BrokerServices, context: RequestContext, request: Message, *, timeout_ms: int
) -> Any | None:
    """The controller's response, or None when none came in time.

    Args:
        timeout_ms: what the client gave; a little is added for the way.
    """
    limit_ms = max(0, timeout_ms) + FORWARD_SLACK_MS
    try:
        return await services.controller.send(
            request,
            context.principal,
            timeout_ms=limit_ms,
            client=ForwardedClient(context.client_host, context.client_id),
        )
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        return None


async def forward_whole(
    services: BrokerServices,
    context: RequestContext,
    request: Message,
    operation: Operation,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> Any:
    """Pass a request on as the client sent it; the response is always one of its own API.

    Args:
        operation: what the client must be allowed to do to the cluster.
        timeout_ms: what the client gave, where the API has such a thing.
    """
    from moldau.broker.authorizer import CLUSTER_RESOURCE_NAME, ResourceType
    from moldau.protocol.error_responses import error_response, fit_version

    version = context.api_version
    if not context.authorized(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME):
        return error_response(
            request,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "not permitted on the cluster",
            api_version=version,
        )
    try:
        response = await services.controller.send(
            request,
            context.principal,
            timeout_ms=max(0, timeout_ms) + FORWARD_SLACK_MS,
            client=ForwardedClient(context.client_host, context.client_id, version),
        )
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        return error_response(
            request, problem.error, "the controller did not answer", api_version=version
        )
    fit_version(response, version)
    return response
