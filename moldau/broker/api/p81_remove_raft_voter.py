"""RemoveRaftVoter v0 (KIP-853): forwarded to the quorum's leader.

Behaviour: ALTER on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.authorizer import Operation
from moldau.broker.api.forwarding import forward_whole
from moldau.broker.api.request_context import RequestContext
from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p81_remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)


async def answer(
    services: BrokerServices, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Pass it on, and say what the controller says."""
    response: RemoveRaftVoterResponse = await forward_whole(
        services, context, request, Operation.ALTER
    )
    return response
