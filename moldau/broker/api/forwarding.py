"""Requests that only the controller may serve, forwarded to it by the broker that got them.

Owns the round trip, the wait until this broker has applied what the answer tells of, and the error
a client sees when no controller answers. Must not decide anything the controller decides.
Invariants: what authorisation refuses here never reaches the controller; the answer to a change is
given when this broker's next answers are in accord with it, or VISIBLE_WAIT_MS after the
controller's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    ControllerUnavailable,
    ForwardedClient,
)
from moldau.broker.lifecycle.metadata_loader import TooManyWaiters, catch_up, wait_applied
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p58_envelope import UNKNOWN_END_OFFSET
from moldau.protocol.schema import Message

if TYPE_CHECKING:
    from moldau.broker.api.authorizer import Operation

logger = logging.getLogger("moldau.broker.api.forwarding")

FORWARD_SLACK_MS: Final = 1_000

VISIBLE_WAIT_MS: Final = 2_000
"""How long the answer to a change waits at most for this broker's metadata. A broker that lags
further behind answers all the same: the change has happened."""

QUESTIONS: Final = frozenset({ApiKey.DESCRIBE_QUORUM, ApiKey.LIST_PARTITION_REASSIGNMENTS})
"""Forwarded, but no change: their answers do not wait for metadata."""


async def forward(
    services: BrokerServices, context: RequestContext, request: Message, *, timeout_ms: int
) -> Any | None:
    """The controller's response, or None when none came in time.

    Args:
        timeout_ms: what the client gave; a little is added for the way.
    """
    client = ForwardedClient(context.client_host, context.client_id)
    try:
        return await _send(services, context, request, client, timeout_ms)
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
    from moldau.broker.api.authorizer import CLUSTER_RESOURCE_NAME, ResourceType
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
        client = ForwardedClient(context.client_host, context.client_id, version)
        response = await _send(services, context, request, client, timeout_ms)
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        return error_response(
            request, problem.error, "the controller did not answer", api_version=version
        )
    fit_version(response, version)
    return response


async def _send(
    services: BrokerServices,
    context: RequestContext,
    request: Message,
    client: ForwardedClient,
    timeout_ms: int,
) -> Any:
    """The controller's response, once it is visible here. Raises: ControllerUnavailable."""
    loop = asyncio.get_running_loop()
    limit_ms = max(0, timeout_ms) + FORWARD_SLACK_MS
    deadline_s = loop.time() + limit_ms / 1000
    response, end_offset = await services.controller.forward(
        request, context.principal, client, timeout_ms=limit_ms
    )
    if request.API_KEY not in QUESTIONS:
        until_s = min(deadline_s, loop.time() + VISIBLE_WAIT_MS / 1000)
        await _wait_visible(services, end_offset, until_s)
    return response


async def _wait_visible(services: BrokerServices, end_offset: int, until_s: float) -> None:
    """Return when this broker has applied the metadata below `end_offset`, at `until_s` (of the
    loop's clock) at the latest.

    A controller that does not say how far its metadata went is asked how far they go now.
    """
    try:
        async with asyncio.timeout_at(until_s):
            if end_offset == UNKNOWN_END_OFFSET:
                await catch_up(services.controller, services.metadata)
            else:
                await wait_applied(services.metadata, end_offset)
    except (TimeoutError, TooManyWaiters, ControllerUnavailable) as problem:
        # No failure of the change: what clients ask next may be answered from older metadata.
        logger.info("answered before the change was visible here: %s", problem or "too late")
