"""UnregisterBroker v0 (KIP-500): forwarded to the controller.

Behaviour: ALTER on the cluster. A broker that is alive loses its registration all the same and
has to be restarted.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p64_unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Pass it on, and say what the controller says."""
    response: UnregisterBrokerResponse = await forward_whole(
        services, context, request, Operation.ALTER
    )
    return response
