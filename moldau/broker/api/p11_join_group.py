"""JoinGroup v0–v9: become a member of a classic group, or come back for its next generation.

Behaviour: READ on the group. INVALID_GROUP_ID for an empty one, INVALID_SESSION_TIMEOUT outside of
`group.min/max.session.timeout.ms`, INCONSISTENT_GROUP_PROTOCOL without a protocol that all members
know, GROUP_MAX_SIZE_REACHED over `group.max.size`, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. From v4
on a new dynamic member is given its id first (MEMBER_ID_REQUIRED, KIP-394); static members keep
their place (v5, KIP-345) and, from v9 on, the answer to a leader that came back says not to assign
(KIP-814). The answer comes with the next generation: after `group.initial.rebalance.delay.ms` for
the first one, when all have joined or the rebalance timeout is over for later ones. Also on a
consumer group (KIP-848), when its migration policy lets classic members in. There every protocol of
a member has to be readable (INCONSISTENT_GROUP_PROTOCOL), and an id that is not known is
UNKNOWN_MEMBER_ID when the member says that it has partitions: it was expelled, and others may have
them by now. Kafka 4.3 reads the first protocol alone, and takes such a member in.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.group.coordinator import client_of
from moldau.broker.coordinator.group.core.joining import Joining, join_error
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p11_join_group import JoinGroupRequest
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: JoinGroupRequest
) -> Iterator[None]:
    if not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        context.respond(join_error(error, request.member_id, context.api_version))
        return
    version = context.api_version
    joining = yield from Joining.read(request, version, client_of(context), context)
    services.coordinators.groups.ask(
        request.group_id,
        context,
        lambda state, now_ms: state.join_group(joining, now_ms),
        lambda error: join_error(error, "", version),
        passes_limit=True,
    )
    if not context.is_answered:
        context.request.release_body()  # it waits for other members
