"""The new group protocol's requests: ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

Owns who is refused and why. Must not compute assignments: the group does. Invariant: a heartbeat of
a fenced or unknown member changes nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages import p69_consumer_group_describe as describe
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.fake_broker.consumer_group import ConsumerGroup, ConsumerMember, Partition
from tests.fake_broker.context import Context, Handler

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
_CLIENT_MADE_ID_SINCE = 1
ASSIGNORS = ("uniform", "range")


async def heartbeat(
    context: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Join, stay or leave, and hear what to own."""
    groups = context.cluster.groups
    error = context.refusal("top") or groups.here(context, request.group_id)
    if error:
        return ConsumerGroupHeartbeatResponse(error_code=error)
    group = groups.get(request.group_id)
    if group.classic.members:
        return _refused(ErrorCode.GROUP_ID_NOT_FOUND, "the group uses the classic protocol")
    consumer = group.consumer
    if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
        return _leave(consumer, request)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        return _refused(ErrorCode.UNSUPPORTED_ASSIGNOR, f"one of {', '.join(ASSIGNORS)}")
    if request.subscribed_topic_regex:
        try:
            re.compile(request.subscribed_topic_regex)
        except re.error as wrong:
            return _refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(wrong))
    if request.member_epoch == JOIN_EPOCH:
        return _join(context, consumer, request)
    member = consumer.members.get(request.member_id)
    if member is None:
        return _refused(ErrorCode.UNKNOWN_MEMBER_ID, "not a member")
    refusal = _refused_epoch(consumer, member, request)
    if refusal:
        return _refused(refusal, f"epoch {request.member_epoch}, not {member.epoch}")
    return _stay(context, consumer, member, request)


def _refused(error: ErrorCode, message: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)


def _refused_epoch(
    group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest
) -> ErrorCode:
    if member.instance_id != request.instance_id and request.instance_id is not None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.member_epoch == member.epoch:
        return ErrorCode.NONE
    owned = _owned(request)
    if (
        request.member_epoch == member.previous_epoch
        and owned is not None
        and owned <= member.assigned
    ):
        # The answer that brought the new epoch was lost.
        return ErrorCode.NONE
    return ErrorCode.FENCED_MEMBER_EPOCH


def _join(
    context: Context, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    holder = group.by_instance(request.instance_id)
    if holder is not None and not holder.is_away and holder.member_id != request.member_id:
        return _refused(ErrorCode.UNRELEASED_INSTANCE_ID, "the instance id is in use")
    member_id = request.member_id
    if not member_id:
        if context.version >= _CLIENT_MADE_ID_SINCE:
            return _refused(ErrorCode.INVALID_REQUEST, "a member brings its own id")
        member_id = context.cluster.groups.new_member_id(context.received.client_id)
    if not request.subscribed_topic_names and not request.subscribed_topic_regex:
        return _refused(ErrorCode.INVALID_REQUEST, "a join needs a subscription")
    if request.rebalance_timeout_ms < 0 or request.topic_partitions is None:
        return _refused(ErrorCode.INVALID_REQUEST, "a join needs a timeout and owned partitions")
    if request.topic_partitions:
        return _refused(ErrorCode.INVALID_REQUEST, "who joins owns nothing")
    member = group.members.get(member_id)
    is_new = member is None
    if holder is not None and holder.is_away:
        # Back under another id: what it had is still its own.
        group.members.pop(holder.member_id)
        group.target[member_id] = group.target.pop(holder.member_id)
        holder.member_id = member_id
        holder.is_away = False
        member = group.members[member_id] = holder
        is_new = False
    if member is None:
        client_id = context.received.client_id or ""
        member = ConsumerMember(member_id, request.instance_id, client_id)
        group.members[member_id] = member
    member.epoch = 0
    member.revoking = frozenset()
    member.assigned = frozenset()
    member.told = None
    has_changed = _note_subscription(member, request)
    group.refresh(force=is_new or has_changed)
    return _answer(context, group, member, frozenset(), is_full=True)


def _note_subscription(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    before = (member.topics, member.regex)
    if request.subscribed_topic_names is not None:
        member.topics = tuple(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        member.regex = request.subscribed_topic_regex or None
    if request.rebalance_timeout_ms >= 0:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.server_assignor is not None:
        member.assignor = request.server_assignor
    return before != (member.topics, member.regex)


def _stay(
    context: Context,
    group: ConsumerGroup,
    member: ConsumerMember,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse:
    group.refresh(force=_note_subscription(member, request))
    is_full = request.topic_partitions is not None and request.rebalance_timeout_ms >= 0
    return _answer(context, group, member, _owned(request), is_full=is_full)


def _answer(
    context: Context,
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: frozenset[Partition] | None,
    *,
    is_full: bool,
) -> ConsumerGroupHeartbeatResponse:
    epoch_before = member.epoch
    group.touch(member)
    group.reconcile(member, owned)
    assignment = None
    if is_full or member.told != member.assigned or epoch_before != member.epoch:
        member.told = member.assigned
        assignment = Assignment(topic_partitions=_by_topic(member.assigned))
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=context.cluster.settings.consumer_heartbeat_interval_ms,
        assignment=assignment,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> frozenset[Partition] | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions
    )


def _by_topic(partitions: Iterable[Partition]) -> list[TopicPartitions]:
    grouped = defaultdict(list)
    for topic_id, index in sorted(partitions):
        grouped[topic_id].append(index)
    return [TopicPartitions(topic_id=key, partitions=value) for key, value in grouped.items()]


def _leave(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    member = group.members.get(request.member_id)
    if member is None:
        return _refused(ErrorCode.UNKNOWN_MEMBER_ID, "not a member")
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        member.is_away = True
    else:
        group.remove(member)
    return ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )


async def describe_groups(
    context: Context, request: describe.ConsumerGroupDescribeRequest
) -> describe.ConsumerGroupDescribeResponse:
    """Members and their assignments."""
    response = describe.ConsumerGroupDescribeResponse()
    for group_id in request.group_ids:
        error = context.refusal("top") or context.cluster.groups.here(context, group_id)
        group = context.cluster.groups.find(group_id)
        if not error and (group is None or not group.consumer.members):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        answer = describe.DescribedGroup(error_code=error, group_id=group_id)
        response.groups.append(answer)
        if error or group is None:
            continue
        consumer = group.consumer
        answer.group_state = consumer.state_name
        answer.group_epoch = answer.assignment_epoch = consumer.epoch
        answer.assignor_name = consumer.assignor
        for member in consumer.members.values():
            answer.members.append(
                describe.Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host="/127.0.0.1",
                    subscribed_topic_names=list(member.topics),
                    subscribed_topic_regex=member.regex,
                    assignment=_described(context, member.assigned),
                    target_assignment=_described(context, consumer.target[member.member_id]),
                    member_type=1,
                )
            )
    return response


def _described(context: Context, partitions: Iterable[Partition]) -> describe.Assignment:
    answer = describe.Assignment()
    for each in _by_topic(partitions):
        topic = context.cluster.topic_by_id(each.topic_id)
        answer.topic_partitions.append(
            describe.TopicPartitions(
                topic_id=each.topic_id,
                topic_name=topic.name if topic else "",
                partitions=each.partitions,
            )
        )
    return answer


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: describe_groups,
}
