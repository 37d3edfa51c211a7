"""FindCoordinator v0–v6: which broker coordinates a group, a transactional id or a share partition.

Behaviour: the leader of the key's partition of `__consumer_offsets` or `__transaction_state`. The
first question makes the topic; while there is none, or the partition has no leader with such a
listener, the answer is COORDINATOR_NOT_AVAILABLE, and clients ask again. Batches of keys from v4 on
(KIP-699); an unknown kind of key is INVALID_REQUEST.
Known gaps: share partitions have no coordinator here; they get COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p10_find_coordinator as p10
from moldau.server.request import RequestContext

FIRST_BATCHED_VERSION: Final = 4
FIRST_SHARE_VERSION: Final = 6
NO_NODE: Final = -1


class Kind(NamedTuple):
    """What guards a key, the error where that forbids it, and the topic that coordinates it."""

    guard: ResourceType
    refusal: ErrorCode
    topic: str | None


SHARE: Final = 2

KINDS: Final = {
    0: Kind(ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, CONSUMER_OFFSETS.topic),
    1: Kind(
        ResourceType.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        TRANSACTION_STATE.topic,
    ),
    SHARE: Kind(ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, None),
}


def handle(
    services: BrokerServices, context: RequestContext, request: p10.FindCoordinatorRequest
) -> Iterator[None]:
    keys = request.coordinator_keys
    if context.api_version < FIRST_BATCHED_VERSION:
        keys = [request.key]
    found = []
    for key in keys:
        found.append(_coordinator(services, context, request.key_type, key))
        yield
    if context.api_version >= FIRST_BATCHED_VERSION:
        context.respond(p10.FindCoordinatorResponse(coordinators=found))
        return
    context.respond(
        p10.FindCoordinatorResponse(
            error_code=found[0].error_code,
            # Apache Kafka's word for a success, too.
            error_message=found[0].error_message or ErrorCode.NONE.name,
            node_id=found[0].node_id,
            host=found[0].host,
            port=found[0].port,
        )
    )


def _coordinator(
    services: BrokerServices, context: RequestContext, key_type: int, key: str
) -> p10.Coordinator:
    kind = KINDS.get(key_type)
    if kind is None or (key_type == SHARE and context.api_version < FIRST_SHARE_VERSION):
        message = f"key type {key_type} is unknown: 0 group, 1 transaction"
        return _refusal(key, ErrorCode.INVALID_REQUEST, message)
    if not context.authorized(Operation.DESCRIBE, kind.guard, key):
        return _refusal(key, kind.refusal, kind.refusal.message)
    if kind.topic is None:
        message = "there is no coordinator of share groups here"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    image = services.metadata.image
    topic = image.topics.topics_by_name.get(kind.topic)
    if topic is None:
        services.internal_topics.ensure(kind.topic)
        message = services.internal_topics.problem(kind.topic)
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    registration = topic.partitions.get(partition_for(key, len(topic.partitions)))
    leader_id = NO_NODE if registration is None else registration.leader
    broker = image.cluster.brokers.get(leader_id)
    endpoint = (
        None if broker is None or broker.fenced else broker.listeners.get(context.listener_name)
    )
    if endpoint is None:
        message = f"the key's partition of {kind.topic} has no leader that can be reached"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return p10.Coordinator(key=key, node_id=leader_id, host=endpoint.host, port=endpoint.port)


def _refusal(key: str, error: ErrorCode, message: str) -> p10.Coordinator:
    return p10.Coordinator(
        key=key, node_id=NO_NODE, port=NO_NODE, error_code=error, error_message=message
    )
