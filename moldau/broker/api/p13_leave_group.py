"""LeaveGroup v0–v5: leave a classic group (`group.core.classic_groups`), or remove members.

Behaviour: READ on the group. One member up to v2, whose error is the response's; any number from v3
on, each with its own: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. A static member may be named by its
instance id alone. When the last one leaves, the answer comes when the group is stored as empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Answerable, CallbackReply
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p13_leave_group as p13
from moldau.server.request import RequestContext

FIRST_BATCHED_VERSION: Final = 3


def handle(
    services: BrokerServices, context: RequestContext, request: p13.LeaveGroupRequest
) -> Iterator[None]:
    if not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        context.respond(p13.LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    reply_to: Answerable = context

    def respond_single(message: p13.LeaveGroupResponse) -> None:
        error = message.error_code
        if not error and message.members:
            error = message.members[0].error_code
        context.respond(p13.LeaveGroupResponse(error_code=error))

    if context.api_version < FIRST_BATCHED_VERSION:
        request.members = [p13.MemberIdentity(member_id=request.member_id, group_instance_id=None)]
        reply_to = CallbackReply(respond_single)
    answers: list[p13.MemberResponse] = []
    for member in request.members:
        answers.append(
            p13.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
        )
        yield
    services.coordinators.groups.ask(
        request.group_id,
        reply_to,
        lambda state, now_ms: state.protocol_of(request.group_id).leave_group(
            request, reply_to, now_ms, answers
        ),
        lambda error: p13.LeaveGroupResponse(error_code=error),
        passes_limit=True,
    )
    context.hold_if_waiting()
