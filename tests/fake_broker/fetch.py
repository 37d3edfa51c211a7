"""Fetch with its sessions (KIP-227), leader epochs (KIP-320), nearest replicas (KIP-392).

Owns the wait for enough bytes. Must not change a log. Invariant: a session's
partitions are those of its requests added up, and an answer within one leaves out what has nothing
new.
"""

from __future__ import annotations

import asyncio
from typing import Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p01_fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from moldau.protocol.types import ZERO_UUID
from tests.fake_broker.cluster import FakePartition
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.fetch_sessions import FetchSession, TopicKey, WantedPartition
from tests.fake_broker.node import HOST

_TOPIC_IDS_SINCE = 13
_READ_COMMITTED = 1
_NO_SESSION_EPOCH = -1
_FIRST_SESSION_EPOCH = 0
_ERRORS_AT_TOP_SINCE = 7


async def fetch(context: Context, request: FetchRequest) -> FetchResponse:
    """Answer when `min_bytes` have come, something went wrong or `max_wait_ms` are over."""
    top = context.refusal("top")
    if top:
        return _failed(context, request, top)
    session, wanted, error = _session_of(context, request)
    if error:
        return _failed(context, request, error)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    while True:
        growth = context.cluster.growth
        response, size_bytes, is_urgent = _read(context, request, wanted)
        remaining = deadline - loop.time()
        if is_urgent or size_bytes >= request.min_bytes or remaining <= 0:
            break
        try:
            async with asyncio.timeout(remaining):
                await growth.wait()
        except TimeoutError:
            continue
    if session is not None:
        response.session_id = session.session_id
        _note_told(response, wanted, context.version)
    return response


def _failed(context: Context, request: FetchRequest, error: ErrorCode) -> FetchResponse:
    if context.version >= _ERRORS_AT_TOP_SINCE:
        return FetchResponse(error_code=error)
    response = FetchResponse()
    for topic in request.topics:
        answer = FetchableTopicResponse(topic=topic.topic)
        answer.partitions = [
            PartitionData(
                partition_index=each.partition,
                error_code=error,
                high_watermark=-1,
                aborted_transactions=None,
            )
            for each in topic.partitions
        ]
        response.responses.append(answer)
    return response


def _session_of(
    context: Context, request: FetchRequest
) -> tuple[FetchSession | None, dict[tuple[TopicKey, int], WantedPartition], ErrorCode]:
    """The session of a request, and all partitions to read."""
    sessions = context.node.fetch_sessions
    asked = {
        (_key(context, topic), each.partition): each
        for topic in request.topics
        for each in topic.partitions
    }
    if request.session_epoch in (_NO_SESSION_EPOCH, _FIRST_SESSION_EPOCH):
        sessions.close(request.session_id)
        wanted = {key: WantedPartition(each) for key, each in asked.items()}
        if request.session_epoch == _NO_SESSION_EPOCH or context.version < _ERRORS_AT_TOP_SINCE:
            return None, wanted, ErrorCode.NONE
        session = sessions.open()
        session.partitions = wanted
        return session, wanted, ErrorCode.NONE
    found = sessions.find(request.session_id)
    if found is None:
        return None, {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if found.epoch != request.session_epoch:
        return None, {}, ErrorCode.INVALID_FETCH_SESSION_EPOCH
    found.epoch += 1
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            found.partitions.pop((_key(context, topic), index), None)
    for key, each in asked.items():
        if key in found.partitions:
            found.partitions[key].asked = each
        else:
            found.partitions[key] = WantedPartition(each)
    return found, found.partitions, ErrorCode.NONE


def _key(context: Context, topic: Any) -> TopicKey:
    return topic.topic_id if context.version >= _TOPIC_IDS_SINCE else topic.topic


def _read(
    context: Context, request: FetchRequest, wanted: dict[tuple[TopicKey, int], WantedPartition]
) -> tuple[FetchResponse, int, bool]:
    """What can be answered now, how many bytes it has, and whether waiting makes no sense."""
    response = FetchResponse()
    topics: dict[TopicKey, FetchableTopicResponse] = {}
    size_bytes = 0
    is_urgent = not wanted
    for (key, index), each in wanted.items():
        left_bytes = request.max_bytes - size_bytes
        part = _read_partition(
            context, request, key, index, each.asked, left_bytes, size_bytes == 0
        )
        size_bytes += len(part.records or b"")
        is_urgent = is_urgent or bool(part.error_code) or part.preferred_read_replica >= 0
        is_urgent = is_urgent or part.diverging_epoch.end_offset >= 0
        if key not in topics:
            uses_ids = context.version >= _TOPIC_IDS_SINCE
            topics[key] = FetchableTopicResponse(
                topic="" if uses_ids else key, topic_id=key if uses_ids else ZERO_UUID
            )
            response.responses.append(topics[key])
        topics[key].partitions.append(part)
        leader_id = part.current_leader.leader_id
        if leader_id >= 0 and leader_id not in {n.node_id for n in response.node_endpoints}:
            port = context.cluster.nodes[leader_id].port
            response.node_endpoints.append(NodeEndpoint(node_id=leader_id, host=HOST, port=port))
    return response, size_bytes, is_urgent


def _read_partition(
    context: Context,
    request: FetchRequest,
    key: TopicKey,
    index: int,
    asked: FetchPartition,
    left_bytes: int,
    is_first: bool,
) -> PartitionData:
    part = PartitionData(
        partition_index=index, high_watermark=-1, aborted_transactions=None, records=b""
    )
    if context.version >= _TOPIC_IDS_SINCE:
        topic = context.cluster.topic_by_id(key)
        name = topic.name if topic is not None else None
    else:
        name = key
    if name is None:
        part.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return part
    partition = context.cluster.partition(name, index)
    part.error_code = context.refusal("partition", name, index) or _reason_to_refuse(
        context, partition, asked, is_consumer_of_follower=context.version >= 11
    )
    if part.error_code:
        _hint(context, part, partition)
        return part
    assert partition is not None
    if _is_elsewhere(context, request, part, name, index, partition):
        return part
    _fill(context, request, part, partition, asked, min(left_bytes, asked.partition_max_bytes),
          at_least_one=is_first)  # fmt: skip
    return part


def _reason_to_refuse(
    context: Context,
    partition: FakePartition | None,
    asked: FetchPartition,
    *,
    is_consumer_of_follower: bool,
) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.error:
        return partition.error
    node_id = context.node.node_id
    may_read = node_id == partition.leader_id or (
        is_consumer_of_follower and node_id in partition.replica_ids and _follows(context)
    )
    return refused_epoch(partition, asked.current_leader_epoch) or (
        ErrorCode.NONE if may_read else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _follows(context: Context) -> bool:
    """Whether followers serve consumers here: only where a test has named preferred replicas."""
    return bool(context.cluster.preferred_replicas)


def refused_epoch(partition: FakePartition, current_leader_epoch: int) -> ErrorCode:
    """What a request's leader epoch is refused with (KIP-320)."""
    if current_leader_epoch < 0 or current_leader_epoch == partition.log.leader_epoch:
        return ErrorCode.NONE
    if current_leader_epoch < partition.log.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def _hint(context: Context, part: PartitionData, partition: FakePartition | None) -> None:
    wrong_leader = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    if (
        partition is not None
        and part.error_code in wrong_leader
        and context.version >= 16
        and context.cluster.settings.leader_hints
    ):
        part.current_leader = LeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.log.leader_epoch
        )


def _is_elsewhere(
    context: Context,
    request: FetchRequest,
    part: PartitionData,
    name: str,
    index: int,
    partition: FakePartition,
) -> bool:
    """Send a client that names its rack to the nearest replica (KIP-392)."""
    preferred = context.cluster.preferred_replicas.get((name, index))  # type: ignore[call-overload]
    if (
        preferred is None
        or not request.rack_id
        or context.node.node_id != partition.leader_id
        or preferred == partition.leader_id
    ):
        return False
    part.preferred_read_replica = preferred
    part.high_watermark = partition.log.high_watermark
    part.last_stable_offset = partition.log.last_stable_offset
    part.log_start_offset = partition.log.log_start_offset
    return True


def _fill(
    context: Context,
    request: FetchRequest,
    part: PartitionData,
    partition: FakePartition,
    asked: FetchPartition,
    max_bytes: int,
    *,
    at_least_one: bool,
) -> None:
    log = partition.log
    part.high_watermark = log.high_watermark
    part.last_stable_offset = log.last_stable_offset
    part.log_start_offset = log.log_start_offset
    if asked.last_fetched_epoch >= 0:
        epoch, end_offset = log.end_of_epoch(asked.last_fetched_epoch)
        if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
            part.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
            return
    if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
        part.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return
    committed_only = request.isolation_level == _READ_COMMITTED
    end = log.last_stable_offset if committed_only else log.high_watermark
    part.records = log.read(asked.fetch_offset, end, max_bytes, at_least_one=at_least_one)
    if committed_only:
        part.aborted_transactions = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in log.aborted_between(asked.fetch_offset, end)
        ]


def _note_told(
    response: FetchResponse, wanted: dict[tuple[TopicKey, int], WantedPartition], version: int
) -> None:
    """Leave out what has nothing new for this session; a full answer comes before any partial
    one.
    """
    for topic in response.responses:
        key = topic.topic_id if version >= _TOPIC_IDS_SINCE else topic.topic
        kept = []
        for part in topic.partitions:
            told = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
            each = wanted[key, part.partition_index]
            points_elsewhere = (
                part.preferred_read_replica >= 0 or part.diverging_epoch.end_offset >= 0
            )
            if part.records or part.error_code or points_elsewhere or told != each.told:
                kept.append(part)
            each.told = told
        topic.partitions = kept
    response.responses = [topic for topic in response.responses if topic.partitions]


HANDLERS: dict[ApiKey, Handler] = {ApiKey.FETCH: fetch}
