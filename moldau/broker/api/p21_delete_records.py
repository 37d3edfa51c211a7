"""DeleteRecords v0-v2: move a partition's log start offset up (KIP-107).

Behaviour: offset -1 means the high watermark; an offset above it is OFFSET_OUT_OF_RANGE; one below
the log start offset changes nothing. The low watermark in the answer is where the log begins now.
POLICY_VIOLATION where `cleanup.policy` has no "delete", INVALID_TOPIC_EXCEPTION for the topics of
the coordinators.
Known gaps: followers are not waited for (replication brings that).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.authorizer import Operation
from moldau.broker.partition_lookup import find_led
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from moldau.broker.replica_manager import ReplicaManager
    from moldau.broker.request_context import RequestContext
    from moldau.broker.services import BrokerServices

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
NO_LOW_WATERMARK = -1


def handle(
    services: BrokerServices, context: RequestContext, request: DeleteRecordsRequest
) -> None:
    """Delete in every partition, then say where each begins."""
    manager = services.replica_manager
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name, partitions=[])
        response.topics.append(result)
        for asked in topic.partitions:
            error, low_watermark = _delete(
                manager, context, topic.name, asked.partition_index, asked.offset
            )
            result.partitions.append(
                DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index,
                    error_code=error,
                    low_watermark=low_watermark,
                )
            )
    context.respond(response)
    manager.complete_ready()


def _delete(
    manager: ReplicaManager,
    context: RequestContext,
    topic: str,
    partition_index: int,
    before_offset: int,
) -> tuple[ErrorCode, int]:
    led = find_led(manager, context, Operation.DELETE, topic, partition_index)
    if isinstance(led, ErrorCode):
        return led, NO_LOW_WATERMARK
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, NO_LOW_WATERMARK
    if not led.log.config.deletes:
        return ErrorCode.POLICY_VIOLATION, NO_LOW_WATERMARK
    log_start_offset = led.log.log_start_offset
    error, low_watermark = led.log.delete_records(before_offset)
    if error is not ErrorCode.NONE:
        return error, NO_LOW_WATERMARK
    if low_watermark != log_start_offset:
        manager.log_start_offset_moved(led.partition)
    return error, low_watermark
