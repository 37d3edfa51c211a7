"""ConsumerGroupDescribe v0–v1: consumer groups of the new protocol with members and assignments.

Behaviour: DESCRIBE on each group, and on every topic that its members are subscribed to or own;
without the latter the group is TOPIC_AUTHORIZATION_FAILED and shows nothing. Refused as
UNSUPPORTED_VERSION like the heartbeat; GROUP_ID_NOT_FOUND for classic and unknown groups;
`include_authorized_operations` as KIP-430 has it; v1 names which protocol each member speaks.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.p68_consumer_group_heartbeat import is_served
from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Collector
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p69_consumer_group_describe as p69
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p69.ConsumerGroupDescribeRequest
) -> Iterator[None]:
    is_enabled = is_served(services)

    def shown(described: p69.DescribedGroup) -> p69.DescribedGroup:
        group = _visible(context, described)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = context.authorized_operations_on(
                ResourceType.GROUP, group.group_id
            )
        return group

    def done(groups: list[p69.DescribedGroup]) -> None:
        context.respond(p69.ConsumerGroupDescribeResponse(groups=groups))

    collector = Collector(done)
    for group_id in request.group_ids:
        part = collector.part(shown)
        if not is_enabled:
            part.respond(_refused(group_id, ErrorCode.UNSUPPORTED_VERSION))
        elif not context.authorized(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            part.respond(_refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        elif not group_id:
            part.respond(_refused(group_id, ErrorCode.INVALID_GROUP_ID))
        else:
            services.coordinators.groups.describe_consumer_group(group_id, part)
        yield
    collector.all_asked()
    context.hold_if_waiting()


def _refused(group_id: str, error: ErrorCode) -> p69.DescribedGroup:
    return p69.DescribedGroup(group_id=group_id, error_code=error)


def _visible(context: RequestContext, group: p69.DescribedGroup) -> p69.DescribedGroup:
    names = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            names.update(topic.topic_name for topic in assignment.topic_partitions)
    if all(context.authorized_topic(Operation.DESCRIBE, name) for name in names):
        return group
    return p69.DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="not allowed on all topics of this group",
    )
