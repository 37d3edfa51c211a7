"""UpdateFeatures v0–v2 (KIP-584, KIP-1022): forwarded to the controller.

Behaviour: ALTER on the cluster; all of the request's levels are finalized, or none.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p57_update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Pass it on, and say what the controller says."""
    response: UpdateFeaturesResponse = await forward_whole(
        services, context, request, Operation.ALTER, timeout_ms=request.timeout_ms
    )
    return response
