"""DeleteRecords v0-v2: move a partition's log start offset up (KIP-107).

Behaviour: offset -1 means the high watermark; an offset above it is OFFSET_OUT_OF_RANGE; one below
the log start offset changes nothing. The answer waits until the live followers' logs begin there
too, at most `timeout_ms` (REQUEST_TIMED_OUT: the records are deleted on the leader all the same);
its low watermark is the smallest log start offset of the live replicas.
POLICY_VIOLATION where `cleanup.policy` has no "delete", INVALID_TOPIC_EXCEPTION for the topics of
the coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.cluster_view import is_internal_topic
from moldau.broker.replica.delayed_delete_records import NO_LOW_WATERMARK, DelayedDeleteRecords
from moldau.broker.replica.replica_manager import ReplicaManager, find_led
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p21_delete_records as p21
from moldau.server.request import RequestContext

HIGH_WATERMARK = -1


def handle(
    services: BrokerServices, context: RequestContext, request: p21.DeleteRecordsRequest
) -> Iterator[None]:
    manager = services.replica_manager
    response = p21.DeleteRecordsResponse()
    operation = DelayedDeleteRecords(manager, context, response)
    for topic in request.topics:
        result = p21.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for asked in topic.partitions:
            slot = p21.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=NO_LOW_WATERMARK
            )
            result.partitions.append(slot)
            slot.error_code = _delete(manager, context, operation, topic.name, asked.offset, slot)
            yield
    operation.start(request.timeout_ms)
    manager.complete_ready()


def _delete(
    manager: ReplicaManager,
    context: RequestContext,
    operation: DelayedDeleteRecords,
    topic: str,
    before_offset: int,
    slot: p21.DeleteRecordsPartitionResult,
) -> ErrorCode:
    led = find_led(manager, context, Operation.DELETE, topic, slot.partition_index)
    if isinstance(led, ErrorCode):
        return led
    partition, log = led
    if is_internal_topic(topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not log.config.deletes:
        return ErrorCode.POLICY_VIOLATION
    if before_offset == HIGH_WATERMARK:
        before_offset = log.high_watermark
    log_start_offset = log.log_start_offset
    error, low_watermark = log.delete_records(before_offset)
    if error is not ErrorCode.NONE:
        return error
    if low_watermark != log_start_offset:
        manager.log_start_offset_moved(partition)
    operation.wait_for(partition, before_offset, slot)
    return ErrorCode.of(slot.error_code)
