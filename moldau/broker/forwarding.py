"""Requests that only the controller may serve, forwarded to it by the broker that got them.

Owns the round trip and the error a client sees when no controller answers. Must not decide anything
the controller decides. Invariant: what authorisation refuses here never reaches the controller.
"""

from __future__ import annotations

import logging
from typing import Any

from moldau.broker.controller_channel import ControllerUnavailable
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
from moldau.protocol.schema import Message

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
        return await services.controller.send(request, context.principal, timeout_ms=limit_ms)
    except ControllerUnavailable as problem:
        logger.warning("no answer from the controller: %s", problem)
        return None
