"""ListTransactions v0-v2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filtered by state (unknown ones are named in the answer), by producer id, from v1 on by
how long the transaction has lasted (KIP-994), from v2 on by a regular expression for the whole id
(KIP-1152; INVALID_REGULAR_EXPRESSION for one that is none). Ids that the client may not describe
are left out. COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded: the list would not be
whole. Expressions are matched in linear time. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.authorizer import Operation, ResourceType
from moldau.broker.transaction.core.answers import ListAnswer
from moldau.broker.transaction.core.statuses import STATUS_BY_WORDS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p66_list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from moldau.broker.request_context import RequestContext
    from moldau.broker.services import BrokerServices
    from moldau.broker.transaction.core.transaction import Transaction


def handle(
    services: BrokerServices, context: RequestContext, request: ListTransactionsRequest
) -> None:
    """List what passes every filter."""
    try:
        matches = _pattern(request.transactional_id_pattern)
    except ValueError:
        context.respond(ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION))
        return
    context.request.release_body()
    unknown = [name for name in request.state_filters if name not in STATUS_BY_WORDS]
    statuses = {STATUS_BY_WORDS[name] for name in request.state_filters if name in STATUS_BY_WORDS}
    producer_ids = frozenset(request.producer_id_filters)
    now_ms = services.clock.now_ms()
    shortest_ms = request.duration_filter

    def wanted(transaction: Transaction) -> bool:
        if producer_ids and transaction.producer_id not in producer_ids:
            return False
        if request.state_filters and transaction.status not in statuses:
            return False
        if shortest_ms >= 0 and now_ms - transaction.start_ms <= shortest_ms:
            return False
        return matches is None or matches(transaction.transactional_id)

    def answered(answer: ListAnswer) -> None:
        context.respond(
            ListTransactionsResponse(
                error_code=answer.error,
                unknown_state_filters=unknown,
                transaction_states=[
                    TransactionState(
                        transactional_id=transaction.transactional_id,
                        producer_id=transaction.producer_id,
                        transaction_state=transaction.status.words,
                    )
                    for transaction in answer.transactions
                    if context.authorized(
                        Operation.DESCRIBE,
                        ResourceType.TRANSACTIONAL_ID,
                        transaction.transactional_id,
                    )
                ],
            )
        )

    services.transaction_coordinator.list_transactions(wanted, answered)


def _pattern(expression: str | None) -> Callable[[str], bool] | None:
    """What an id has to match as a whole; None for everything.

    Raises:
        ValueError: it is no regular expression.
    """
    if not expression:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(expression, options)
    except re2.error as error:
        raise ValueError(str(error)) from error
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None
