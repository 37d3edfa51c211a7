"""DescribeQuorum v0–v2 (KIP-595, KIP-836, KIP-853): forwarded to the quorum's leader.

Behaviour: DESCRIBE on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Pass it on, and say what the controller says."""
    response: DescribeQuorumResponse = await forward_whole(
        services, context, request, Operation.DESCRIBE
    )
    return response
