"""AddOffsetsToTxn v0-v4: a transaction is going to commit offsets of a group.

Behaviour: adds the partition of `__consumer_offsets` that keeps the group to the transaction, also
before there is such a topic: clients ask for the group's coordinator only afterwards, which creates
it. v2 knows PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below). Clients of transaction version 2 do not
send it. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.core.rules import producer_fenced_error
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p25_add_offsets_to_txn as p25
from moldau.protocol.types import TopicPartition
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p25.AddOffsetsToTxnRequest
) -> None:
    error = ErrorCode.NONE
    if not context.authorized(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if error is not ErrorCode.NONE:
        context.respond(p25.AddOffsetsToTxnResponse(error_code=error))
        return
    index = services.coordinators.groups.partition_to_be(request.group_id)
    partition = TopicPartition(CONSUMER_OFFSETS.topic, index)

    def answered(errors: dict[TopicPartition, ErrorCode]) -> None:
        told = producer_fenced_error(errors[partition], context.api_version, known_since=2)
        context.respond(p25.AddOffsetsToTxnResponse(error_code=told))

    services.coordinators.transactions.add_partitions(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        [partition],
        client_version=0,
        done=answered,
    )
    context.hold_if_waiting()
