"""UnregisterBroker v0 (KIP-500): forwarded to the controller.

Behaviour: ALTER on the cluster. A broker that is alive loses its registration all the same and
has to be restarted.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.authorizer import Operation
from moldau.broker.forwarding import forward_whole
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
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
