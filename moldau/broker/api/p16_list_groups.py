"""ListGroups v0–v5: the groups that this broker coordinates.

Behaviour: all groups for clients that may DESCRIBE the cluster, the groups they may DESCRIBE for
others. States (v4, KIP-518) and types (v5, KIP-848) filter, in any case of letters; a name that
is unknown finds nothing. COORDINATOR_LOAD_IN_PROGRESS while some of them are still being loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p16_list_groups as p16
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p16.ListGroupsRequest
) -> Iterator[None]:
    def done(error: ErrorCode, groups: list[p16.ListedGroup]) -> None:
        if not context.authorized_cluster(Operation.DESCRIBE, logs_denied=False):
            groups = [
                group
                for group in groups
                if context.authorized(
                    Operation.DESCRIBE, ResourceType.GROUP, group.group_id, logs_denied=False
                )
            ]
        context.respond(p16.ListGroupsResponse(error_code=error, groups=groups))

    states = yield from _lowered(request.states_filter)
    types = yield from _lowered(request.types_filter)
    services.coordinators.groups.list_groups(states, types, done)
    context.hold_if_waiting()


def _lowered(names: list[str]) -> Steps[frozenset[str]]:
    lowered = set()
    for name in names:
        lowered.add(name.lower())
        yield
    return frozenset(lowered)
