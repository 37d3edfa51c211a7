"""SyncGroup v0–v5: the leader's assignment of a classic group's generation, to all its members.

Behaviour: READ on the group. Answered when the leader's assignment is committed in
`__consumer_offsets`. REBALANCE_IN_PROGRESS when the generation ends before, ILLEGAL_GENERATION,
UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (v3), INCONSISTENT_GROUP_PROTOCOL for another protocol than
the generation's, or none (v5, KIP-559).
"""

from __future__ import annotations

from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.server.request import RequestContext

PROTOCOL_SINCE: Final = 5
"""The version from which on a request must name the protocol's type and name."""


def handle(services: BrokerServices, context: RequestContext, request: SyncGroupRequest) -> None:
    if context.api_version >= PROTOCOL_SINCE and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        context.respond(SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        context.respond(SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    services.coordinators.groups.ask(
        request.group_id,
        context,
        lambda state, _now_ms: state.protocol_of(request.group_id).sync_group(request, context),
        lambda error: SyncGroupResponse(error_code=error),
        passes_limit=True,
    )
    if not context.is_answered:
        context.request.release_body()  # it waits for the leader
