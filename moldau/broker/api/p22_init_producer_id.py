"""InitProducerId v0-v5: a producer id for an idempotent producer.

Behaviour: without a transactional id every call gets a fresh id with epoch 0, whatever id and epoch
the client names (a fenced idempotent producer starts over, KIP-360); one without the other is
INVALID_REQUEST. Known gaps: transactions. A
transactional id is answered COORDINATOR_NOT_AVAILABLE, which is what Kafka answers where no
coordinator runs: it is true, clients report it, and those that retry succeed once there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.authorizer import CLUSTER_RESOURCE_NAME, Operation, ResourceType
from moldau.broker.producer_ids import ProducerIdsUnavailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.protocol.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from moldau.broker.request_context import RequestContext
    from moldau.broker.services import BrokerServices


async def answer(
    services: BrokerServices, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Give out the next producer id."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not transactional_id:
            return _error(ErrorCode.INVALID_REQUEST)
        if not context.authorized(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return _error(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return _error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return _error(ErrorCode.INVALID_REQUEST)
    if not context.authorized(
        Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME
    ) and not context.authorized_by_resource_type(Operation.WRITE, ResourceType.TOPIC):
        return _error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        producer_id = await services.producer_ids.next_producer_id()
    except ProducerIdsUnavailable:
        return _error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _error(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
