"""RemoveRaftVoter v0 (KIP-853): forwarded to the quorum's leader.

Behaviour: ALTER on the cluster.
Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.authorizer import Operation
from moldau.broker.forwarding import forward_whole
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
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
