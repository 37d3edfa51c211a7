"""AllocateProducerIds: handing out blocks of producer ids (KIP-730).

Owns: the next block. Invariant: no producer id is ever handed out twice, because a block's record
is committed before the broker hears of it.
"""

from __future__ import annotations

from typing import Final

from moldau.controller.core.result import ControllerResult
from moldau.controller.core.state import ControllerState
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.protocol.metadata_records import ProducerIdsRecord

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
_LAST_BLOCK_START: Final = 2**63 - 1 - PRODUCER_ID_BLOCK_SIZE


def allocate_producer_ids(
    state: ControllerState, request: AllocateProducerIdsRequest
) -> ControllerResult[AllocateProducerIdsResponse]:
    """Give the next block of 1,000 to a broker that is registered with this broker epoch."""
    error = check_broker_epoch(state, request.broker_id, request.broker_epoch)
    first = max(state.image.producer_ids.next_producer_id, 0)
    if error is ErrorCode.NONE and first > _LAST_BLOCK_START:
        error = ErrorCode.UNKNOWN_SERVER_ERROR  # all ids of 63 bits are used up
    if error is not ErrorCode.NONE:
        return ControllerResult(AllocateProducerIdsResponse(error_code=error))
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    response = AllocateProducerIdsResponse(
        producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE
    )
    return ControllerResult(response, [(record, 0)])


def check_broker_epoch(state: ControllerState, broker_id: int, broker_epoch: int) -> ErrorCode:
    """NONE when the broker is registered with exactly this epoch; an unknown one has none."""
    broker = state.broker(broker_id)
    is_current = broker is not None and broker.broker_epoch == broker_epoch
    return ErrorCode.NONE if is_current else ErrorCode.STALE_BROKER_EPOCH
