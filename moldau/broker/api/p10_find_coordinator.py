"""FindCoordinator v0–v6: which broker coordinates a group, a transactional id or a share partition.

Behaviour: this broker is named for every group. It does not advertise the group APIs yet, so
clients that go on to join or commit say at once that the broker does not support it; without an
answer they would retry for as long as their session lasts, also when a consumer with assigned
partitions closes. Transactional ids and share partitions get COORDINATOR_NOT_AVAILABLE. The API has
to be served because librdkafka takes its presence for the sign of LZ4 support (docs/adr/0005).
Batches of keys from v4 on (KIP-699); an unknown kind of key is INVALID_REQUEST.
Known gaps: the coordinators themselves.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from moldau.broker.authorizer import Operation, ResourceType
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

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


def handle(
    services: BrokerServices, context: RequestContext, request: FindCoordinatorRequest
) -> None:
    """Name this broker for every key that may be asked about."""
    keys = request.coordinator_keys
    if context.api_version < FIRST_BATCHED_VERSION:
        keys = [request.key]
    found = [_coordinator(services, context, request.key_type, key) for key in keys]
    if context.api_version >= FIRST_BATCHED_VERSION:
        context.respond(FindCoordinatorResponse(coordinators=found))
        return
    context.respond(
        FindCoordinatorResponse(
            error_code=found[0].error_code,
            error_message=found[0].error_message,
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
    broker = services.metadata.image.cluster.brokers.get(services.broker_id)
    endpoint = None if broker is None else broker.listeners.get(context.listener_name)
    if key_type != KeyType.GROUP or endpoint is None:
        message = "this node has no such coordinator yet"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Coordinator(
        key=key,
        node_id=services.broker_id,
        host=endpoint.host,
        port=endpoint.port,
        error_message=None,
    )


def _refusal(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_NODE, port=NO_NODE, error_code=error, error_message=message
    )
