"""ListOffsets v1-v11: offsets by time, or by the negative numbers that stand for places in the log.

Behaviour: -1 latest (by isolation level), -2 earliest, -3 the largest timestamp (v7), -4 earliest
local (v8), -5 latest tiered (v9) and -6 earliest pending upload (v11); other negative numbers, or
one before its version, are UNSUPPORTED_VERSION. An offset that a new leader cannot vouch for yet is
OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE before v5, KIP-207). Latest is the log end for replicas
and for debugging (-2), which may ask a follower too.
Known gaps: no tiered storage, so -4 equals -2, and -5 and -6 find nothing, as in Kafka without it.
A search by time reads and decompresses off the loop, one partition of a request at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from moldau.broker.api.services import BrokerServices
from moldau.broker.replica.replica_manager import LedPartition, find_led
from moldau.metadata.steps import repeated
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as p02
from moldau.runtime.filesystem import Filesystem
from moldau.runtime.slices import LoopSlices, completed
from moldau.server.request import RequestContext
from moldau.storage.faults import LogOffline
from moldau.storage.timestamp_search import TimestampSearch

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSION_OF: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
FIRST_WITH_LEADER_EPOCH: Final = 4
FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
CONSUMER: Final = -1
DEBUGGING_CONSUMER: Final = -2


class Found(NamedTuple):
    """An answer for one partition; all -1 when there is no such record."""

    error: ErrorCode
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


async def answer(
    services: BrokerServices, context: RequestContext, request: p02.ListOffsetsRequest
) -> p02.ListOffsetsResponse:
    response = p02.ListOffsetsResponse()
    slices = LoopSlices(services.clock)
    twice = await completed(
        services.clock,
        repeated(
            (topic.name, asked.partition_index)
            for topic in request.topics
            for asked in topic.partitions
        ),
    )
    for topic in request.topics:
        results: list[p02.ListOffsetsPartitionResponse] = []
        for asked in topic.partitions:
            if (topic.name, asked.partition_index) in twice:
                found = Found(ErrorCode.INVALID_REQUEST)
            else:
                found = await _look_up(services, context, request, topic.name, asked)
            results.append(_result(context.api_version, asked.partition_index, found))
            if slices.is_over:
                await slices.next()
        response.topics.append(p02.ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return response


def _result(
    api_version: int, partition_index: int, found: Found
) -> p02.ListOffsetsPartitionResponse:
    error = found.error
    if error is ErrorCode.OFFSET_NOT_AVAILABLE and api_version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return p02.ListOffsetsPartitionResponse(
        partition_index=partition_index,
        error_code=error,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch if api_version >= FIRST_WITH_LEADER_EPOCH else -1,
    )


async def _look_up(
    services: BrokerServices,
    context: RequestContext,
    request: p02.ListOffsetsRequest,
    topic: str,
    asked: p02.ListOffsetsPartition,
) -> Found:
    timestamp = asked.timestamp
    first_version = 0 if timestamp >= 0 else FIRST_VERSION_OF.get(timestamp)
    if first_version is None or context.api_version < first_version:
        return Found(ErrorCode.UNSUPPORTED_VERSION)
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return Found(ErrorCode.INVALID_REQUEST)
    led = find_led(
        services.replica_manager,
        context,
        Operation.DESCRIBE,
        topic,
        asked.partition_index,
        current_leader_epoch=asked.current_leader_epoch,
        leader_only=request.replica_id != DEBUGGING_CONSUMER,
    )
    if isinstance(led, ErrorCode):
        return Found(led)
    try:
        return await _search(services.replica_manager.filesystem, led, request, timestamp)
    except LogOffline:
        return Found(ErrorCode.KAFKA_STORAGE_ERROR)


async def _search(
    filesystem: Filesystem, led: LedPartition, request: p02.ListOffsetsRequest, timestamp: int
) -> Found:
    partition, log = led
    core = partition.core
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        leader_epoch = log.leader_epoch_cache.epoch_for_offset(log.log_start_offset)
        return Found(ErrorCode.NONE, -1, log.log_start_offset, leader_epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return Found(ErrorCode.NONE)
    if request.replica_id != CONSUMER:
        last_fetchable_offset = log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        last_fetchable_offset = log.last_stable_offset
    else:
        last_fetchable_offset = core.high_watermark
    # Until the high watermark has reached where its epoch began, a leader may know less than
    # clients got from the one before it (KIP-207). The last stable offset says nothing of
    # that: an open transaction may hold it back for as long as its producer likes.
    is_behind = (
        request.replica_id == CONSUMER and core.leader_epoch_start_offset > core.high_watermark
    )
    if timestamp == LATEST:
        if is_behind:
            return Found(ErrorCode.OFFSET_NOT_AVAILABLE)
        return Found(ErrorCode.NONE, -1, last_fetchable_offset, core.leader_epoch)
    if timestamp == MAX_TIMESTAMP:
        search = TimestampSearch.for_max_timestamp(log)
    else:
        search = TimestampSearch(log, timestamp, max_offset=last_fetchable_offset)
    while search.locate():
        await filesystem.offload(search.run)
    found = search.found
    if found is None or found.offset >= last_fetchable_offset:
        return Found(ErrorCode.OFFSET_NOT_AVAILABLE if is_behind else ErrorCode.NONE)
    return Found(ErrorCode.NONE, found.timestamp_ms, found.offset, found.leader_epoch)
