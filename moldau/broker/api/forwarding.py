"""Requests that only the active controller may decide, forwarded to it by the broker that got them.

Owns the round trip, the wait until this broker has applied what the answer reports, and the error
a client sees when no controller answers. Must not authorise or decide anything: the controller does
both, for the client behind the request. Invariant: the answer to a change is given when this
broker's next answers are in accord with it, or VISIBLE_WAIT_MS after the controller's.
Known gaps: none.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    ControllerUnavailable,
    ForwardedClient,
)
from moldau.broker.lifecycle.metadata_loader import TooManyWaiters, catch_up, wait_applied
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.error_responses import error_response
from moldau.protocol.messages.p58_envelope import UNKNOWN_END_OFFSET
from moldau.protocol.schema import AnyRequest, Message, Request, Response
from moldau.runtime.fault_words import words_of
from moldau.server.apis import APIS
from moldau.server.request import RequestContext

logger = logging.getLogger(__name__)

FORWARD_SLACK_MS: Final = 1_000

MAX_FORWARD_MS: Final = 60_000
"""How long a forwarded request waits at most, whatever time its client gives it: as long as Apache
Kafka's brokers try to reach a controller."""

VISIBLE_WAIT_MS: Final = 2_000
"""How long the answer to a change waits at most for this broker's metadata. A broker that lags
further behind answers all the same: the change has happened."""


async def answer(
    services: BrokerServices, context: RequestContext, request: AnyRequest
) -> Message | bytes:
    """Pass a request on as the client sent it; the response is always one of its own API.

    To another node go the bytes of the body, and those of the response come back. The router has
    decoded the request nevertheless: within the budget of the client's rights, so that a client
    without any cannot fill the controller's memory; for the time that the client gives it; and for
    a failure, whose answer has what the request names.
    """
    version, sent = context.api_version, context.request
    # Where requests have a quota of time, the response is decoded: it says the longer pause.
    body = sent.body if context.stopwatch is None else None
    timeout_ms = getattr(request, "timeout_ms", DEFAULT_TIMEOUT_MS)
    client = _client(context)._replace(api_version=version)
    try:
        response: Message | bytes = await _send(
            services, context, request, client, timeout_ms, body
        )
        return response
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        failed: partial[Message] = partial(
            error_response,
            request,
            problem.error,
            "the controller did not answer",
            api_version=version,
        )
        return await sent.connection.offload(failed) if sent.is_large else failed()


async def forward(
    services: BrokerServices,
    context: RequestContext,
    request: Request[Response],
    *,
    timeout_ms: int,
) -> Response | None:
    """The controller's response to what a handler made of its request, or None when none came in
    time.

    Args:
        timeout_ms: what the client gave; a little is added for the way.
    """
    response: Response
    try:
        response = await _send(services, context, request, _client(context), timeout_ms)
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        return None
    return response


def _client(context: RequestContext) -> ForwardedClient:
    return ForwardedClient(
        context.client_host,
        context.client_id,
        token_authenticated=context.token_authenticated,
        listener_name=context.listener_name,
        correlation_id=context.request.correlation_id,
    )


async def _send(
    services: BrokerServices,
    context: RequestContext,
    request: AnyRequest,
    client: ForwardedClient,
    timeout_ms: int,
    body: memoryview | None = None,
) -> Any:
    """The controller's response, once it is visible here. Raises: ControllerUnavailable."""
    loop = asyncio.get_running_loop()
    limit_ms = min(max(0, timeout_ms) + FORWARD_SLACK_MS, MAX_FORWARD_MS)
    deadline_s = loop.time() + limit_ms / 1000
    response, end_offset = await services.controller.forward(
        request, context.principal, client, body=body, timeout_ms=limit_ms
    )
    if APIS[ApiKey(request.API_KEY)].changes_metadata:
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
        logger.info("answered before the change was visible here: %s", words_of(problem))
