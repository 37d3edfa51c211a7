"""Admin calls about single members of groups.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from moldau.client.admin.arguments import check_several
from moldau.client.cluster.coordinators import CoordinatorCall, Coordinators, KeyType, Refusal
from moldau.client.errors import KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.schema import Message

LEAVE_GROUP_VERSIONS: Final = (3, 5)
"""Before version 3 a request cannot name an instance (KIP-345)."""

_MemberCodes = dict[str, int]


class GroupMemberCalls:
    """The part of `Admin` that deals with static members."""

    _coordinators: Coordinators

    async def remove_group_members(
        self,
        group_id: str,
        group_instance_ids: Collection[str],
        *,
        reason: str | None = None,
        timeout_ms: float | None = None,
    ) -> dict[str, KafkaError | None]:
        """Take static members out of a group, so that nobody waits for their sessions to end
        (KIP-345).

        Returns for each instance None, or why it is still there (UNKNOWN_MEMBER_ID).

        Args:
            reason: for the brokers' log (KIP-800).
        """
        check_several(group_instance_ids)

        def request(_: Sequence[str]) -> Message:
            return LeaveGroupRequest(
                group_id=group_id,
                members=[
                    MemberIdentity(member_id="", group_instance_id=each, reason=reason)
                    for each in group_instance_ids
                ],
            )

        def read(response: Any, *_: object) -> Mapping[str, _MemberCodes | Refusal]:
            if response.error_code != ErrorCode.NONE:
                return {group_id: Refusal(response.error_code)}
            return {
                group_id: {each.group_instance_id: each.error_code for each in response.members}
            }

        call: CoordinatorCall[_MemberCodes] = CoordinatorCall(
            KeyType.GROUP, "remove members of group", request, read, versions=LEAVE_GROUP_VERSIONS
        )
        answer = (await self._coordinators.ask(call, [group_id], timeout_ms=timeout_ms))[group_id]
        if isinstance(answer, KafkaError):
            return dict.fromkeys(group_instance_ids, answer)
        outcome: dict[str, KafkaError | None] = {}
        for each in group_instance_ids:
            code = answer.get(each, ErrorCode.UNKNOWN_SERVER_ERROR)
            what = f"remove {each} from group {group_id}"
            outcome[each] = (
                None if code == ErrorCode.NONE else error_for(code, None, what, final=True)
            )
        return outcome
