"""Produce v3-v13: append record batches to partitions this broker leads (`replica.partition`).

Behaviour: one batch of magic 2 per partition (KIP-98); acks 0, 1 and all; topics by name up to v12,
by id from v13 (KIP-516). acks=all waits until the high watermark passes the batch, at most
`timeout_ms`. acks=0 is never answered; an error closes its connection, so that the client looks for
the leader again. Batches are not opened: header, CRC and sequence are checked, nothing per record;
a topic with its own codec has them recompressed off the loop, in order.
Transactions (KIP-98, KIP-890): before a batch begins one in a partition, the transaction's
coordinator is asked whether the partition is in it; from v12 on it is added by that. A transaction
that is not there is INVALID_TXN_STATE up to v10, TRANSACTION_ABORTABLE from v11; one that ends
before the answer is here is INVALID_TXN_STATE, and a partition that may have had another leader by
then is NOT_LEADER_OR_FOLLOWER; a fenced producer is INVALID_PRODUCER_EPOCH; a coordinator that
cannot say is NOT_ENOUGH_REPLICAS, which every producer tries again; one that is busy with the
transaction before, for longer than `add.partitions.to.txn.retry.backoff.max.ms`, is
CONCURRENT_TRANSACTIONS from v12 on.
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.verification import Support, TransactionalProduce
from moldau.broker.lifecycle.cluster_view import is_internal_topic
from moldau.broker.replica.delayed_produce import ProduceOperation
from moldau.broker.replica.leader_hints import WRONG_LEADER_ERRORS
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p00_produce as p00
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec, unpack_header
from moldau.protocol.records.header import CODEC_MASK, CURRENT_MAGIC
from moldau.server.request import RequestContext
from moldau.storage.append import RecordBatches

FIRST_BY_TOPIC_ID: Final = 13
FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_LEADER: Final = 10

ADMIN_CLIENT_ID: Final = "__admin_client"
"""A client with this id may write to internal topics, as in Apache Kafka. Coordinators read such
records only when they load the log again."""

VALID_ACKS: Final = (-1, 0, 1)
NO_OFFSET: Final = -1

Problem = tuple[ErrorCode, str | None]
Sent = RecordBatches | None
"""What a partition gets; None: too short for a batch."""

NO_PROBLEM: Final[Problem] = (ErrorCode.NONE, None)


def handle(
    services: BrokerServices, context: RequestContext, request: p00.ProduceRequest
) -> Iterator[None]:
    """Append every partition's batch, then answer when all acknowledgements have come."""
    manager = services.replica_manager
    operation = ProduceOperation(manager, context, request.acks)
    problem = NO_PROBLEM  # of the request as a whole; every partition reports it
    if request.acks not in VALID_ACKS:
        problem = ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}, not -1, 0 or 1"
    transaction = None
    sent, producers = yield from _read_headers(request)
    if producers and problem is NO_PROBLEM:
        problem = _transaction_problem(context, request, producers)
        if problem is NO_PROBLEM:
            assert request.transactional_id is not None
            transaction = TransactionalProduce(
                services.coordinators.verifier,
                operation,
                request.transactional_id,
                producers.pop(),
                Support.of(context.api_version, abortable_since=11, adds_since=12),
            )
    rest = iter(sent)
    for topic in request.topic_data:
        response = p00.TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=[]
        )
        operation.topics.append(response)
        yield from _append_topic(
            manager, context, operation, topic, rest, response, problem, transaction
        )
    if transaction is not None:
        transaction.verify()
    operation.start_waiting(request.timeout_ms)
    manager.complete_soon()


def _read_headers(
    request: p00.ProduceRequest,
) -> Generator[None, None, tuple[list[Sent], set[Producer]]]:
    """Read each batch's header, once for its whole way through this broker; check nothing yet.

    Returns:
        What each partition gets, and whose the transactional batches are.
    """
    sent: list[Sent] = []
    producers: set[Producer] = set()
    for topic in request.topic_data:
        for data in topic.partition_data:
            if sent:
                yield
            records = data.records
            batches = None
            if isinstance(records, bytearray | memoryview) and len(records) >= BATCH_HEADER_SIZE:
                header = unpack_header(records)
                batches = RecordBatches(records, [(0, header)])
                if header.is_transactional and header.magic == CURRENT_MAGIC:
                    producers.add(Producer(header.producer_id, header.producer_epoch))
            sent.append(batches)
    return sent, producers


def _transaction_problem(
    context: RequestContext, request: p00.ProduceRequest, producers: set[Producer]
) -> Problem:
    transactional_id = request.transactional_id
    if transactional_id is None or not context.authorized(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    if len(producers) > 1:
        return (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "transactional batches of more than one producer",
        )
    return NO_PROBLEM


def _append_topic(
    manager: ReplicaManager,
    context: RequestContext,
    operation: ProduceOperation,
    topic: p00.TopicProduceData,
    sent: Iterator[Sent],
    response: p00.TopicProduceResponse,
    problem: Problem,
    transaction: TransactionalProduce | None,
) -> Iterator[None]:
    topic_name: str | None = topic.name
    by_id = context.api_version >= FIRST_BY_TOPIC_ID
    partitions = None
    if by_id:
        partitions = manager.topic_by_id(topic.topic_id)
        topic_name = manager.topic_name(topic.topic_id)
    error, message = problem
    if error is ErrorCode.NONE:
        if topic_name is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not context.authorized_topic(Operation.WRITE, topic_name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif is_internal_topic(topic_name) and context.client_id != ADMIN_CLIENT_ID:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
            message = f"only coordinators write to the internal topic {topic_name}"
    name = topic_name or ""
    is_first = len(operation.topics) == 1
    for data in topic.partition_data:
        if not is_first:
            yield
        is_first = False
        index = data.index
        batches = next(sent)
        slot = p00.PartitionProduceResponse(index=index, base_offset=NO_OFFSET)
        response.partition_responses.append(slot)
        if error is not ErrorCode.NONE:
            operation.fail(slot, error, message)
            continue
        if batches is None:
            size_bytes = None if data.records is None else len(data.records)
            operation.fail(
                slot,
                ErrorCode.INVALID_RECORD,
                "no records" if size_bytes is None else f"{size_bytes} bytes are no record batch",
            )
            continue
        found, why = _batch_problem(batches, context.api_version)
        if found is not ErrorCode.NONE:
            operation.fail(slot, found, why)
            continue
        partition = manager.get(name, index) if partitions is None else partitions.get(index)
        if partition is None:
            found = manager.missing_error(name, index)
            operation.fail(slot, found, None)
        else:
            if transaction is not None and batches.headers[0][1].is_transactional:
                transaction.append(partition, batches, slot)
            else:
                operation.append(partition, batches, slot)
            found = ErrorCode.of(slot.error_code)
        if found in WRONG_LEADER_ERRORS and context.api_version >= FIRST_WITH_LEADER:
            hint = operation.hints.leader(name, index)
            slot.current_leader = p00.LeaderIdAndEpoch(
                leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
            )


def _batch_problem(batches: RecordBatches, api_version: int) -> Problem:
    """Why these bytes are not one whole batch of magic 2 that the request's version may carry.

    The log checks the rest.
    """
    header = batches.headers[0][1]
    size_bytes, batch_bytes = len(batches.data), header.size_bytes
    if batch_bytes < BATCH_HEADER_SIZE:
        return ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_bytes} is less than a header's"
    magic = header.magic & 0xFF
    if magic != CURRENT_MAGIC:
        # The old formats are not served any more; what never was a format is damage.
        error = ErrorCode.INVALID_RECORD if magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        return error, f"record batches must have magic 2, not {magic}"
    if batch_bytes < size_bytes:
        return ErrorCode.INVALID_RECORD, "more than one record batch for a partition"
    if batch_bytes > size_bytes:
        return ErrorCode.INVALID_RECORD, f"batch length {batch_bytes} in {size_bytes} bytes"
    if header.attributes & CODEC_MASK == Codec.ZSTD and api_version < FIRST_WITH_ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7"
    return NO_PROBLEM
