"""FindCoordinator v0–v6: which broker coordinates a group, a transactional id or a share partition.

Behaviour: this node has no coordinators yet, so every key is answered with
COORDINATOR_NOT_AVAILABLE, which clients retry until their own time limit. The API is served all the
same because librdkafka takes its presence for a sign of LZ4 support and would silently send
uncompressed batches without it. Batches of keys from v4 on (KIP-699); an unknown kind of key is
INVALID_REQUEST.
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
    """Say for each key why it has no coordinator."""
    if context.api_version < FIRST_BATCHED_VERSION:
        error, message = _outcome(context, request.key_type, request.key)
        context.respond(
            FindCoordinatorResponse(error_code=error, error_message=message, node_id=NO_NODE)
        )
        return
    coordinators = []
    for key in request.coordinator_keys:
        error, message = _outcome(context, request.key_type, key)
        coordinators.append(
            Coordinator(key=key, node_id=NO_NODE, port=-1, error_code=error, error_message=message)
        )
    context.respond(FindCoordinatorResponse(coordinators=coordinators))


def _outcome(context: RequestContext, key_type: int, key: str) -> tuple[ErrorCode, str]:
    if key_type not in RESOURCE_TYPES or (
        key_type == KeyType.SHARE and context.api_version < FIRST_SHARE_VERSION
    ):
        return ErrorCode.INVALID_REQUEST, f"key type {key_type} is unknown: 0 group, 1 transaction"
    resource_type, refusal = RESOURCE_TYPES[KeyType(key_type)]
    if not context.authorized(Operation.DESCRIBE, resource_type, key):
        return refusal, refusal.message
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node has no coordinators yet"
