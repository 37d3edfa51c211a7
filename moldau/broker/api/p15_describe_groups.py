"""DescribeGroups v0–v6: the state and the members of classic groups.

Behaviour: DESCRIBE on each group. What members subscribe to and are assigned is shown while the
group is stable. A group that does not exist, or is no classic one, is "Dead"; from v6 on it is
GROUP_ID_NOT_FOUND with a message. `include_authorized_operations` (v3) as KIP-430 has it.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Collector
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: DescribeGroupsRequest
) -> Iterator[None]:
    include = request.include_authorized_operations

    def shown(group: DescribedGroup) -> DescribedGroup:
        if include and group.error_code == ErrorCode.NONE:
            group.authorized_operations = context.authorized_operations_on(
                ResourceType.GROUP, group.group_id
            )
        return group

    def done(described: list[DescribedGroup]) -> None:
        context.respond(DescribeGroupsResponse(groups=described))

    collector = Collector(done)
    for group_id in request.groups:
        part = collector.part(shown)
        if context.authorized(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            services.coordinators.groups.describe_group(group_id, context.api_version, part)
        else:
            part.respond(
                DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            )
        yield
    collector.all_asked()
    context.hold_if_waiting()
