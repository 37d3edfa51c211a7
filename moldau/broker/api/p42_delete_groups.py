"""DeleteGroups v0–v2: delete groups and their offsets.

Behaviour: DELETE on each group. NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND where
there is none. Offsets of transactions that are still open go too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Collector
from moldau.metadata.steps import each_once
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p42_delete_groups as p42
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p42.DeleteGroupsRequest
) -> Iterator[None]:
    def done(results: list[p42.DeletableGroupResult]) -> None:
        context.respond(p42.DeleteGroupsResponse(results=results))

    collector = Collector(done)
    for group_id in each_once(request.groups_names):
        part = collector.part(partial(_result, group_id))
        if context.authorized(Operation.DELETE, ResourceType.GROUP, group_id):
            services.coordinators.groups.delete_group(group_id, part)
        else:
            part.respond(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        yield
    collector.all_asked()
    context.hold_if_waiting()


def _result(group_id: str, error: ErrorCode) -> p42.DeletableGroupResult:
    return p42.DeletableGroupResult(group_id=group_id, error_code=error)
