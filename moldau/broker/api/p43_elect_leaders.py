"""ElectLeaders v0–v2 (KIP-183, KIP-460): forwarded to the controller.

Behaviour: ALTER on the cluster. Version 0 elects preferred leaders only and has no error of the
whole request: every partition that was named says it then.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Pass it on, and say what the controller says."""
    response: ElectLeadersResponse = await forward_whole(
        services, context, request, Operation.ALTER, timeout_ms=request.timeout_ms
    )
    return response
