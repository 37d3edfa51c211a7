"""Produce, InitProducerId's other half: what producers write.

Owns the way of a batch from the request into the partition's log. Must not check sequences: the log
does. Invariant: what is answered without an error lies in the log once.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p00_produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from moldau.protocol.records import read_batch_header
from tests.fake_broker.cluster import FakePartition
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.node import HOST
from tests.fake_broker.partition_log import Refused

_TOPIC_IDS_SINCE = 13
_IMPLICIT_TRANSACTIONS_SINCE = 12
_LEADERS_SINCE = 10
_LEGAL_ACKS = (-1, 0, 1)


async def produce(context: Context, request: ProduceRequest) -> ProduceResponse | None:
    """Append every partition's batch; None (no answer at all) with acks=0."""
    response = ProduceResponse()
    for topic_data in request.topic_data:
        topic_response = TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id)
        response.responses.append(topic_response)
        name = _topic_name(context, topic_data)
        for data in topic_data.partition_data:
            answer = _append(context, request, name, data)
            topic_response.partition_responses.append(answer)
    _name_leaders(context, response)
    context.cluster.grew()
    if request.acks == 0:
        if any(part.error_code for each in response.responses for part in each.partition_responses):
            # The only way to say so.
            raise ConnectionAbortedError("a refused batch without an answer")
        return None
    return response


def _topic_name(context: Context, topic_data: Any) -> str | None:
    if context.version < _TOPIC_IDS_SINCE:
        return str(topic_data.name)
    found = context.cluster.topic_by_id(topic_data.topic_id)
    return None if found is None else found.name


def _append(
    context: Context, request: ProduceRequest, name: str | None, data: Any
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index=data.index, base_offset=-1)
    if name is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return answer
    answer.error_code = context.refusal("partition", name, data.index) or context.refusal("top")
    partition = context.cluster.partition(name, data.index)
    if not answer.error_code:
        answer.error_code = _reason_to_refuse(context, request, partition, name, data)
    if partition is not None and answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        _hint(context, answer, partition)
    if answer.error_code or partition is None:
        return answer
    try:
        appended = partition.log.append(
            data.records or b"",
            idempotent_only=request.transactional_id is None,
            begins_at_zero=request.transactional_id is not None
            and context.version >= _IMPLICIT_TRANSACTIONS_SINCE,
        )
    except Refused as refused:
        answer.error_code = refused.code
        if context.version >= 8:
            answer.error_message = refused.message
        return answer
    answer.base_offset = appended.base_offset
    answer.log_start_offset = partition.log.log_start_offset
    answer.error_code = context.afterthought("partition", name, data.index)
    if answer.error_code:
        answer.base_offset = -1
    return answer


def _reason_to_refuse(
    context: Context,
    request: ProduceRequest,
    partition: FakePartition | None,
    name: str,
    data: Any,
) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.error:
        return partition.error
    if request.acks not in _LEGAL_ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS
    if partition.leader_id != context.node.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if request.transactional_id is None:
        return ErrorCode.NONE
    records = data.records or b""
    if len(records) < 61:
        return ErrorCode.CORRUPT_MESSAGE
    return context.cluster.transactions.check_write(
        request.transactional_id,
        read_batch_header(records),
        name,
        data.index,
        joins=context.version >= _IMPLICIT_TRANSACTIONS_SINCE,
    )


def _hint(context: Context, answer: PartitionProduceResponse, partition: FakePartition) -> None:
    """Say who leads (KIP-951)."""
    if context.version >= _LEADERS_SINCE and context.cluster.settings.leader_hints:
        answer.current_leader = LeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.log.leader_epoch
        )


def _name_leaders(context: Context, response: ProduceResponse) -> None:
    named = {
        part.current_leader.leader_id
        for each in response.responses
        for part in each.partition_responses
    } - {-1}
    response.node_endpoints = [
        NodeEndpoint(node_id=node_id, host=HOST, port=context.cluster.nodes[node_id].port)
        for node_id in sorted(named)
    ]


HANDLERS: dict[ApiKey, Handler] = {ApiKey.PRODUCE: produce}
