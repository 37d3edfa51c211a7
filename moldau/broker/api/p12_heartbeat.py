"""Heartbeat v0–v4: a member of a classic group lives (`group.core.classic_groups`).

Behaviour: READ on the group. REBALANCE_IN_PROGRESS while the next generation is prepared,
ILLEGAL_GENERATION for any but the current one, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (v3).
While the coordinator is still loading every member gets NONE.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.server.request import RequestContext


def handle(services: BrokerServices, context: RequestContext, request: HeartbeatRequest) -> None:
    if not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        context.respond(HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    services.coordinators.groups.ask(
        request.group_id,
        context,
        lambda state, now_ms: state.protocol_of(request.group_id).heartbeat(
            request, context, now_ms
        ),
        lambda error: HeartbeatResponse(
            error_code=ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        ),
        passes_limit=True,
    )
