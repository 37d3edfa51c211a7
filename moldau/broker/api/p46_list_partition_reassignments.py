"""ListPartitionReassignments v0 (KIP-455): forwarded to the controller.

Behaviour: DESCRIBE on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.authorizer import Operation
from moldau.broker.forwarding import forward_whole
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
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
