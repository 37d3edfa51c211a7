"""FindCoordinator v0–v6: which broker coordinates a group, a transactional id or a share partition.

Behaviour: the leader of the key's partition of `__consumer_offsets` or `__transaction_state`. The
first question makes the topic; while there is none, or the partition has no leader with such a
listener, the answer is COORDINATOR_NOT_AVAILABLE, and clients ask again. Batches of keys from v4 on
(KIP-699); an unknown kind of key is INVALID_REQUEST.
Known gaps: share partitions have no coordinator here; they get COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.server.authorizer import Operation, ResourceType
from moldau.server.request import RequestContext

FIRST_BATCHED_VERSION: Final = 4
FIRST_SHARE_VERSION: Final = 6
NO_NODE: Final = -1


class KeyType(IntEnum):
    """What a key names."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


RESOURCE_TYPES: Final = {
    KeyType.GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    KeyType.TRANSACTION: (
        ResourceType.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    KeyType.SHARE: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}

TOPICS: Final = {
    KeyType.GROUP: CONSUMER_OFFSETS.topic,
    KeyType.TRANSACTION: TRANSACTION_STATE.topic,
}


def handle(
    services: BrokerServices, context: RequestContext, request: FindCoordinatorRequest
) -> Iterator[None]:
    keys = request.coordinator_keys
    if context.api_version < FIRST_BATCHED_VERSION:
        keys = [request.key]
    found = []
    for key in keys:
        found.append(_coordinator(services, context, request.key_type, key))
        yield
    if context.api_version >= FIRST_BATCHED_VERSION:
        context.respond(FindCoordinatorResponse(coordinators=found))
        return
    context.respond(
        FindCoordinatorResponse(
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
) -> Coordinator:
    if key_type not in RESOURCE_TYPES or (
        key_type == KeyType.SHARE and context.api_version < FIRST_SHARE_VERSION
    ):
        message = f"key type {key_type} is unknown: 0 group, 1 transaction"
        return _refusal(key, ErrorCode.INVALID_REQUEST, message)
    resource_type, refusal = RESOURCE_TYPES[KeyType(key_type)]
    if not context.authorized(Operation.DESCRIBE, resource_type, key):
        return _refusal(key, refusal, refusal.message)
    topic = TOPICS.get(KeyType(key_type))
    if topic is None:
        message = "there is no coordinator of share groups here"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return _leader(services, context, topic, key)


def _leader(
    services: BrokerServices, context: RequestContext, topic_name: str, key: str
) -> Coordinator:
    image = services.metadata.image
    topic = image.topics.topics_by_name.get(topic_name)
    if topic is None:
        services.internal_topics.ensure(topic_name)
        message = f"{topic_name} is being created"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    registration = topic.partitions.get(partition_for(key, len(topic.partitions)))
    leader_id = NO_NODE if registration is None else registration.leader
    broker = image.cluster.brokers.get(leader_id)
    endpoint = (
        None if broker is None or broker.fenced else broker.listeners.get(context.listener_name)
    )
    if endpoint is None:
        message = f"the key's partition of {topic_name} has no leader that can be reached"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Coordinator(
        key=key,
        node_id=leader_id,
        host=endpoint.host,
        port=endpoint.port,
    )


def _refusal(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_NODE, port=NO_NODE, error_code=error, error_message=message
    )
