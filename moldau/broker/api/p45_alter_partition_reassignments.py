"""AlterPartitionReassignments v0–v1 (KIP-455): forwarded to the controller.

Behaviour: ALTER on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Pass it on, and say what the controller says."""
    response: AlterPartitionReassignmentsResponse = await forward_whole(
        services, context, request, Operation.ALTER, timeout_ms=request.timeout_ms
    )
    return response
