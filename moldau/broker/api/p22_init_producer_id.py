"""InitProducerId v0-v6: a producer id for an idempotent or a transactional producer.

Behaviour: without a transactional id every call gets a fresh id (`coordinator.producer_ids`) with
epoch 0, whatever id and epoch the client names (a fenced idempotent producer starts over, KIP-360);
one without the other is INVALID_REQUEST; COORDINATOR_LOAD_IN_PROGRESS when the controller gives no
ids, or too many wait. With one the transaction coordinator gives the id and an epoch that fences
any producer that had it before; an open transaction is aborted first (CONCURRENT_TRANSACTIONS). v3
names the producer that comes back (KIP-360), v4 knows PRODUCER_FENCED (INVALID_PRODUCER_EPOCH
below), v6 asks for two-phase commit (KIP-939): it needs `transaction.two.phase.commit.enable` and
permission to TWO_PHASE_COMMIT, and TRANSACTIONAL_ID_AUTHORIZATION_FAILED is the answer without; a
prepared transaction is kept with `keep_prepared_txn` from transaction.version 2 on
(UNSUPPORTED_VERSION below). Where Apache Kafka looks only at the producer id of one that comes back
while a transaction is open, its epoch counts too: a fenced producer cannot abort its successor's
transaction. Known gaps: none; v6 is more than any released Apache Kafka serves.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.transaction.core.rules import producer_fenced_error
from moldau.broker.coordinator.transaction.core.state import ProducerAnswer
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p22_init_producer_id as p22
from moldau.protocol.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p22.InitProducerIdRequest
) -> None:
    refusal = _refusal(context, request)
    has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if refusal is ErrorCode.NONE and has_epoch != (request.producer_id != NO_PRODUCER_ID):
        refusal = ErrorCode.INVALID_REQUEST
    if refusal is not ErrorCode.NONE:
        context.respond(_error(refusal))
        return
    if request.transactional_id is None:
        services.producer_ids.when_ready(context, lambda: _give(services, context))
        context.hold_if_waiting()
        return

    def answered(answer: ProducerAnswer) -> None:
        context.respond(
            p22.InitProducerIdResponse(
                error_code=producer_fenced_error(answer.error, context.api_version, known_since=4),
                producer_id=answer.producer.producer_id,
                producer_epoch=answer.producer.producer_epoch,
                ongoing_txn_producer_id=answer.ongoing.producer_id,
                ongoing_txn_producer_epoch=answer.ongoing.producer_epoch,
            )
        )

    services.coordinators.transactions.init_producer_id(request, context, answered)
    context.hold_if_waiting()


def _refusal(context: RequestContext, request: p22.InitProducerIdRequest) -> ErrorCode:
    """What keeps the request from the coordinator; NONE for nothing."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        operations = [Operation.WRITE]
        if request.enable2_pc:
            operations.append(Operation.TWO_PHASE_COMMIT)
        for operation in operations:
            if not context.authorized(operation, ResourceType.TRANSACTIONAL_ID, transactional_id):
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
    elif not context.authorized_by_resource_type(
        Operation.WRITE, ResourceType.TOPIC
    ) and not context.authorized_cluster(Operation.IDEMPOTENT_WRITE):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _give(services: BrokerServices, context: RequestContext) -> None:
    producer_id = services.producer_ids.take()
    if producer_id == NO_PRODUCER_ID:
        context.respond(_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    else:
        context.respond(p22.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


def _error(error: ErrorCode) -> p22.InitProducerIdResponse:
    return p22.InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER_EPOCH)
