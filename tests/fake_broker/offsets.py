"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: questions about a log's offsets.

Owns the answers only. Invariant: only the leader answers, under its own epoch.
"""

from __future__ import annotations

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.fake_broker.cluster import FakePartition
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.fetch import refused_epoch

LATEST = -1
EARLIEST = -2
LARGEST_TIMESTAMP = -3
EARLIEST_LOCAL = -4
_READ_COMMITTED = 1
_UP_TO_THE_END = -1


def _refusal(
    context: Context, topic: str, index: int, current_leader_epoch: int
) -> tuple[FakePartition | None, ErrorCode]:
    partition = context.cluster.partition(topic, index)
    error = context.refusal("partition", topic, index) or context.refusal("top")
    if error:
        return partition, error
    if partition is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.error:
        return partition, partition.error
    if partition.leader_id != context.node.node_id:
        return partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
    return partition, refused_epoch(partition, current_leader_epoch)


async def list_offsets(context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Offsets by time, or by one of the special times."""
    response = ListOffsetsResponse()
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answer)
        for asked in topic.partitions:
            partition, error = _refusal(
                context, topic.name, asked.partition_index, asked.current_leader_epoch
            )
            part = ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=error
            )
            if not error and partition is not None:
                _look_up(request, asked, part, partition)
            answer.partitions.append(part)
    return response


def _look_up(
    request: ListOffsetsRequest,
    asked: ListOffsetsPartition,
    part: ListOffsetsPartitionResponse,
    partition: FakePartition,
) -> None:
    log = partition.log
    if asked.timestamp == LATEST:
        committed_only = request.isolation_level == _READ_COMMITTED
        part.offset = log.last_stable_offset if committed_only else log.high_watermark
        part.leader_epoch = log.leader_epoch
        return
    if asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        part.offset = log.log_start_offset
        part.leader_epoch = log.epoch_at(log.log_start_offset)
        return
    if asked.timestamp == LARGEST_TIMESTAMP:
        found = log.latest_timestamp()
    elif asked.timestamp < 0:
        return
    else:
        found = log.find_timestamp(asked.timestamp)
    if found is not None:
        part.offset = found.offset
        part.timestamp = found.timestamp_ms
        part.leader_epoch = log.epoch_at(found.offset)


async def offset_for_leader_epoch(
    context: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Where an epoch ends in the leader's log."""
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        for asked in topic.partitions:
            partition, error = _refusal(
                context, topic.topic, asked.partition, asked.current_leader_epoch
            )
            part = EpochEndOffset(partition=asked.partition, error_code=error)
            if not error and partition is not None:
                part.leader_epoch, part.end_offset = partition.log.end_of_epoch(asked.leader_epoch)
            answer.partitions.append(part)
    return response


async def delete_records(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move log start offsets."""
    response = DeleteRecordsResponse()
    for topic in request.topics:
        answer = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        for asked in topic.partitions:
            partition, error = _refusal(context, topic.name, asked.partition_index, -1)
            part = DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=error
            )
            answer.partitions.append(part)
            if error or partition is None:
                continue
            log = partition.log
            target = log.high_watermark if asked.offset == _UP_TO_THE_END else asked.offset
            if not 0 <= target <= log.high_watermark:
                part.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                continue
            log.delete_before(target)
            part.low_watermark = log.log_start_offset
    return response


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: delete_records,
}
