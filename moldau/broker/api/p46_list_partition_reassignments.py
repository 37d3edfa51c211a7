"""ListPartitionReassignments v0 (KIP-455): forwarded to the controller.

Behaviour: DESCRIBE on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Pass it on, and say what the controller says."""
    response: ListPartitionReassignmentsResponse = await forward_whole(
        services, context, request, Operation.DESCRIBE, timeout_ms=request.timeout_ms
    )
    return response
