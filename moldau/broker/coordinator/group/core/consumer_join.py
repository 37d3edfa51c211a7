"""JoinGroup of the classic protocol to a consumer group (KIP-848's online migration).

Owns: who joins, whose place it takes, and the answer. Must not: decide how the group changes; that
is `consumer_update`. Invariant: no member of a consumer group assigns partitions: it is told that
another member leads, or that it leads and shall not assign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    ReplyTo,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.classic_answers import join_error, join_response
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.classic_join import FIRST_SKIP_ASSIGNMENT_VERSION
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_heartbeat import known_static_member, successor
from moldau.broker.coordinator.group.core.consumer_member import (
    Assignment,
    ClassicProtocols,
    ConsumerGroupMember,
)
from moldau.broker.coordinator.group.core.consumer_protocol import by_topic_id
from moldau.broker.coordinator.group.core.consumer_update import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_TIMERS,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
)
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.joining_protocols import JoiningProtocols
from moldau.broker.coordinator.group.core.migration import Migration
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from moldau.protocol.messages.consumer_protocol import (
        ConsumerProtocolSubscription,
    )

_MEMBER_ID_REQUIRED_VERSION: Final = 4
"""From this version of JoinGroup on a member first gets an id, and joins with it (KIP-394)."""


class ClassicJoins:
    """Serves JoinGroup.

    Args:
        joined: these members do not owe a JoinGroup any more.
    """

    def __init__(
        self,
        context: GroupContext,
        updates: MemberUpdates,
        migration: Migration,
        joined: Callable[[str, list[str]], None],
    ) -> None:
        self._context = context
        self._settings = context.consumer_settings
        self._updates = updates
        self._migration = migration
        self._joined = joined

    def join_group(
        self,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Answers JoinGroupResponse, as to a follower."""
        group = self._context.groups[request.group_id]
        try:
            return self._join(group, request, protocols, api_version, client, reply_to, now_ms)
        except Refusal as refusal:
            return CoordinatorResult.reply(
                reply_to, join_error(refusal.error_code, "", api_version)
            )

    def _join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        self._check_join(group, request)
        if (
            not request.member_id
            and request.group_instance_id is None
            and api_version >= _MEMBER_ID_REQUIRED_VERSION
        ):
            required = join_error(
                ErrorCode.MEMBER_ID_REQUIRED, self._context.random_id(), api_version
            )
            return CoordinatorResult.reply(reply_to, required)
        subscription = _subscription(request, protocols)
        update = self._update(group, request, protocols, subscription, client, now_ms)
        replaced = group.members.get(update.replaced_id or update.old.member_id)
        converts = (
            replaced is not None
            and request.group_instance_id is not None
            and not replaced.uses_classic_protocol
            and self._migration.can_downgrade(group, [replaced], joining=1)
        )
        if update.replaced_id is not None and not converts:
            update.records += replacement_records(group, update.replaced_id, update.old)
        self._updates.tell(update)
        if converts:
            assert replaced is not None
            result = self._convert(update, replaced, api_version)
        else:
            target_epoch, target = self._updates.refresh_target(update)
            self._updates.reconcile(update, target_epoch, target)
            result = CoordinatorResult(
                records=update.records, timers=update.timers, commands=update.commands
            )
        result.after = self._when_joined(update, request, api_version, reply_to, converts=converts)
        return result

    def _convert(
        self, update: MemberUpdate, replaced: ConsumerGroupMember, api_version: int
    ) -> CoordinatorResult:
        """The last member of the new protocol, a static one, goes on with the classic protocol.

        From now on a member has to look after the topics: the one that joins is told to, if it can
        be told not to assign (KIP-814); otherwise there is a rebalance. Apache Kafka 4.3 tells no
        member, so that partitions that a topic gets later have no owner before the next rebalance.
        """
        group = update.group
        # What was decided of the group's next epoch is not written: the group ends here.
        rebalances = (
            api_version < FIRST_SKIP_ASSIGNMENT_VERSION
            or update.group_epoch > group.assignment_epoch
            or not all(
                member.is_reconciled_to(group.assignment_epoch)
                for member in group.members.values()
                if member is not replaced
            )
        )
        self._joined(group.group_id, list(group.members))
        update.new = replace(update.new, member_epoch=group.group_epoch)
        return self._migration.downgrade(
            group, [replaced], now_ms=update.now_ms, joining=update.new, rebalances=rebalances
        )

    def _when_joined(
        self,
        update: MemberUpdate,
        request: JoinGroupRequest,
        api_version: int,
        reply_to: ReplyTo,
        *,
        converts: bool,
    ) -> Callable[[ErrorCode, float], CoordinatorResult]:
        group, member = update.group, update.new
        assert member.classic is not None
        answer = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=member.classic.protocols[0][0],
            leader="",
            member_id=member.member_id,
            members=[],
        )

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                told = self._answer_to_leader(group.group_id, member.member_id) or answer
            else:
                told = join_error(group_write_error(error), "", api_version)
            result = CoordinatorResult.reply(reply_to, told)
            if not converts and not is_refused(error):
                self._joined(group.group_id, [member.member_id])
                result.timers = [
                    CancelTimer(_key("join", group, member.member_id)),
                    SetTimer(_key("session", group, member.member_id), request.session_timeout_ms),
                    SetTimer(_key("sync", group, member.member_id), member.rebalance_timeout_ms),
                ]
                if update.replaced_id is not None and update.replaced_id != member.member_id:
                    result.timers += [
                        CancelTimer(_key(kind, group, update.replaced_id)) for kind in MEMBER_TIMERS
                    ]
                result.timers.append(CancelTimer(_key("rebalance", group, member.member_id)))
            return result

        return after

    def _answer_to_leader(self, group_id: str, member_id: str) -> JoinGroupResponse | None:
        """The answer to the member that leads the classic group that a consumer group has become,
        if it does, and the group has not begun a rebalance since.
        """
        group = self._context.groups.get(group_id)
        if (
            not isinstance(group, ClassicGroup)
            or group.leader_id != member_id
            or group.state is not ClassicGroupState.STABLE
        ):
            return None
        return join_response(group, group.members[member_id], skip_assignment=True)

    def _check_join(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        limit = self._settings.max_group_size
        if len(group.members) >= limit and request.member_id not in group.members:
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group is full: it has {limit} members.",
            )
        names = {protocol.name for protocol in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic_protocols(
            names
        ):
            raise Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {request.member_id} does not support a protocol of the group.",
            )

    def _update(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        subscription: ConsumerProtocolSubscription,
        client: ClientInfo,
        now_ms: float,
    ) -> MemberUpdate:
        owned = by_topic_id(subscription.owned_partitions, self._context.metadata())
        old, replaced_id = self._member_for(group, request, owned)
        new = replace(
            old,
            instance_id=(
                old.instance_id if request.group_instance_id is None else request.group_instance_id
            ),
            rack_id=subscription.rack_id or old.rack_id,
            client_id=client.client_id,
            client_host=client.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex="" if old.subscribed_topic_regex else None,
            rebalance_timeout_ms=(
                request.session_timeout_ms
                if request.rebalance_timeout_ms == -1
                else request.rebalance_timeout_ms
            ),
            classic=ClassicProtocols(
                request.session_timeout_ms,
                tuple(protocols.named),
            ),
        )
        return MemberUpdate(
            group,
            old,
            old if new == old else new,
            client,
            now_ms,
            owned,
            replaced_id,
        )

    def _member_for(
        self, group: ConsumerGroup, request: JoinGroupRequest, owned: Assignment
    ) -> tuple[ConsumerGroupMember, str | None]:
        """The member as it is until now, and the id of the one whose place it takes.

        Raises:
            Refusal: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        member_id = request.member_id
        if request.group_instance_id is None:
            if not member_id:
                return ConsumerGroupMember(self._context.random_id()), None
            member = group.members.get(member_id)
            if member is None and owned:
                # Unlike Kafka 4.3, which lets it commit what others have got from it by now.
                raise Refusal(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"{member_id} has been expelled, and has to give up all its partitions first.",
                )
            return member or ConsumerGroupMember(member_id), None
        if member_id:
            static = known_static_member(group, request.group_instance_id, member_id)
            return static, None
        member_id = self._context.random_id()
        found = group.static_member(request.group_instance_id)
        if found is None:
            return ConsumerGroupMember(member_id), None
        # A static member without an id has started anew: whatever it was, it takes its place.
        return successor(found, member_id), found.member_id


def _key(kind: str, group: ConsumerGroup, member_id: str) -> ConsumerTimer:
    return ConsumerTimer(kind, group.group_id, member_id)


def _subscription(
    request: JoinGroupRequest, protocols: JoiningProtocols
) -> ConsumerProtocolSubscription:
    try:
        return protocols.subscription
    except RemoteProtocolError as error:
        raise Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"The subscription of {request.member_id} is malformed: {error}.",
        ) from None
