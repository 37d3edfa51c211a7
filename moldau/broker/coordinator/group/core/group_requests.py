"""DescribeGroups, ListGroups and DeleteGroups.

Owns: what these say about the groups of one partition. Must not: know who may see what. Invariant:
what is told is committed, or never goes into the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator.core.result import CoordinatorResult, ReplyTo
from moldau.broker.coordinator.group.core import classic_answers as answers
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.offset_removal import MAX_RECORDS_AT_ONCE
from moldau.broker.coordinator.group.core.results import merge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p15_describe_groups import DescribedGroup, DescribedGroupMember
from moldau.protocol.messages.p16_list_groups import ListedGroup

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval

FIRST_NOT_FOUND_VERSION: Final = 6
"""DescribeGroups calls a missing group an error from this version on; before, a dead one."""


class GroupRequests:
    """What administrators ask about groups."""

    def __init__(self, groups: dict[str, Any], removal: OffsetRemoval) -> None:
        self._groups = groups
        self._removal = removal

    def describe(self, group_id: str, api_version: int, reply_to: ReplyTo) -> CoordinatorResult:
        """Describe a classic group; answers DescribedGroup."""
        group = self._groups.get(group_id)
        if group is None:
            described = not_found(group_id, api_version, f"Group {group_id} not found.")
        elif not isinstance(group, ClassicGroup):
            message = f"Group {group_id} is not a classic group."
            described = not_found(group_id, api_version, message)
        else:
            described = _describe(group)
        return CoordinatorResult.reply_when_committed(
            reply_to,
            described,
            on_error=lambda error: DescribedGroup(
                group_id=group_id, error_code=group_write_error(error), error_message=None
            ),
        )

    def list(
        self, states: frozenset[str], types: frozenset[str], reply_to: ReplyTo
    ) -> CoordinatorResult:
        """List groups in any of these states and of any of these kinds, both in lower case; an
        empty set is every one. Answers a list of ListedGroup, or an ErrorCode.
        """
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.kind,
            )
            for group in self._groups.values()
            if (not states or group.state_name.lower() in states)
            and (not types or group.kind in types)
        ]
        return CoordinatorResult.reply_when_committed(reply_to, listed, on_error=group_write_error)

    def delete(
        self, group_id: str, reply_to: ReplyTo, max_count: int = MAX_RECORDS_AT_ONCE
    ) -> CoordinatorResult:
        """Delete a group and its offsets, at most `max_count` at a time; answers an ErrorCode."""
        group = self._groups.get(group_id)
        if group is None:
            return CoordinatorResult.reply(reply_to, ErrorCode.GROUP_ID_NOT_FOUND)
        error = group.validate_delete()
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, error)
        records = self._removal.next_tombstones(group_id, max_count)
        if records:
            # Offsets first, in portions; who commits meanwhile keeps the group alive.
            def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
                del now_ms
                if error is ErrorCode.NONE:
                    if group_id in self._groups:
                        return self.delete(group_id, reply_to, max_count)
                    # Expiry or another DeleteGroups has written the group's tombstone since; the
                    # tombstone may not be committed yet.
                    return CoordinatorResult.reply_when_committed(
                        reply_to, ErrorCode.NONE, on_error=group_write_error
                    )
                if error is ErrorCode.MESSAGE_TOO_LARGE and len(records) > 1:
                    return self.delete(group_id, reply_to, len(records) // 2)
                return CoordinatorResult.reply(reply_to, group_write_error(error))

            return CoordinatorResult(records=records, after=after)
        result = CoordinatorResult.reply_when_committed(
            reply_to, ErrorCode.NONE, on_error=group_write_error, records=group.tombstones()
        )
        if isinstance(group, ClassicGroup):
            timers = CoordinatorResult()
            answers.cancel_timers(group, timers)
            merge(result, timers)
        return result


def not_found(group_id: str, api_version: int, message: str) -> DescribedGroup:
    """What is said about a group that is not there."""
    is_error = api_version >= FIRST_NOT_FOUND_VERSION
    return DescribedGroup(
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=message if is_error else None,
    )


def _describe(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is ClassicGroupState.STABLE
    protocol = group.protocol_name or ""
    return DescribedGroup(
        group_id=group.group_id,
        error_message=None,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=protocol if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
