"""EndTxn v0-v5: commit or abort a transaction, as `transaction.core.rules` decides.

Behaviour: answered as soon as the outcome is committed in the coordinator's log; the partitions'
markers follow, and until they are all written the next transaction gets CONCURRENT_TRANSACTIONS. v5
ends by transaction version 2 (KIP-890): every transaction has its own epoch, the answer names
the producer id and epoch to go on with, a repetition is known by its epoch. v2 knows
PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below). A client that knows id and epoch may end the
transaction: also on behalf of a process that is gone (KIP-939). Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import CallbackReply, Producer
from moldau.broker.coordinator.transaction.core.rules import producer_fenced_error
from moldau.broker.coordinator.transaction.core.state import ProducerAnswer
from moldau.broker.coordinator.transaction.core.transaction import EPOCH_BUMP_VERSION
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p26_end_txn import EndTxnRequest, EndTxnResponse
from moldau.server.request import RequestContext

FIRST_VERSION_WITH_EPOCH_BUMP = 5


def handle(services: BrokerServices, context: RequestContext, request: EndTxnRequest) -> None:
    version = context.api_version
    if not context.authorized(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        context.respond(EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        return

    def answered(answer: ProducerAnswer) -> None:
        context.respond(
            EndTxnResponse(
                error_code=producer_fenced_error(answer.error, version, known_since=2),
                producer_id=answer.producer.producer_id,
                producer_epoch=answer.producer.producer_epoch,
            )
        )

    reply_to = CallbackReply(answered)
    services.coordinators.transactions.ask(
        request.transactional_id,
        reply_to,
        lambda state, now_ms: state.end_transaction(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            reply_to,
            now_ms,
            is_commit=request.committed,
            client_version=EPOCH_BUMP_VERSION if version >= FIRST_VERSION_WITH_EPOCH_BUMP else 0,
        ),
        ProducerAnswer,
    )
    context.hold_if_waiting()
