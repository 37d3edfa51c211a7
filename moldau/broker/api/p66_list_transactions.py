"""ListTransactions v0-v2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filtered by state (unknown ones are named in the answer), by producer id, from v1 on by
how long the transaction has lasted (KIP-994), from v2 on by a regular expression for the whole id
(KIP-1152; INVALID_REGULAR_EXPRESSION for one that is none). Ids that the client may not describe
are left out before any is matched. COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded:
the list would not be whole. A pattern that takes over 0.3 ms to compile has its connection
throttled for 1,000 times as long, at most 5 s; one that has taken 5 s of processor time to match is
INVALID_REGULAR_EXPRESSION. Known gaps: a pattern of more than 1,024
bytes, or that takes RE2 more than 64 KiB, names more than 4 Unicode classes, or has repetitions
(`{1,249}`) of more than 1,000 altogether, is refused like one that is none.
"""

from __future__ import annotations

import asyncio

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.broker.coordinator.expression_matcher import TooCostly
from moldau.broker.coordinator.transaction.core.transaction import STATUS_BY_WORDS, Transaction
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p66_list_transactions as p66
from moldau.runtime.slices import LoopSlices
from moldau.server.request import RequestContext
from moldau.server.request_router import party_of


async def answer(
    services: BrokerServices, context: RequestContext, request: p66.ListTransactionsRequest
) -> p66.ListTransactionsResponse:
    expression = request.transactional_id_pattern
    if expression:
        context.throttle_at_once(services.coordinators.matcher.rest_after(expression))
    try:
        pattern = compile_expression(expression) if expression else None
    except InvalidExpression:
        return p66.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    context.request.release_body()
    unknown = [name for name in request.state_filters if name not in STATUS_BY_WORDS]
    statuses = {STATUS_BY_WORDS[name] for name in request.state_filters if name in STATUS_BY_WORDS}
    producer_ids = frozenset(request.producer_id_filters)
    now_ms = services.clock.now_ms()
    shortest_ms = request.duration_filter

    def wanted(transaction: Transaction) -> bool:
        if producer_ids and transaction.producer.producer_id not in producer_ids:
            return False
        if request.state_filters and transaction.status not in statuses:
            return False
        return shortest_ms < 0 or now_ms - transaction.start_ms > shortest_ms

    listed: asyncio.Future[tuple[ErrorCode, list[Transaction]]]
    listed = asyncio.get_running_loop().create_future()
    services.coordinators.transactions.list_transactions(
        wanted, lambda *found: listed.set_result(found)
    )
    error, transactions = await listed
    slices = LoopSlices(services.clock)
    allowed = {}
    for transaction in transactions:
        transactional_id = transaction.transactional_id
        if context.authorized(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            allowed[transactional_id] = p66.TransactionState(
                transactional_id=transactional_id,
                producer_id=transaction.producer.producer_id,
                transaction_state=transaction.status.words,
            )
        if slices.is_over:
            await slices.next()
    if pattern is not None:
        try:
            matched = await services.coordinators.matcher.match(
                [pattern],
                list(allowed),
                principal=party_of(context.principal, context.client_host),
                is_wanted=lambda: not context.request.is_connection_lost,
            )
        except TooCostly:
            return p66.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        allowed = {name: allowed[name] for name in (matched[0] if matched else ())}
    return p66.ListTransactionsResponse(
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=list(allowed.values()),
    )
