"""DescribeTransactions v0: transactional ids as their coordinator knows them (KIP-664).

Behaviour: TRANSACTIONAL_ID_NOT_FOUND for an id that is not known, NOT_COORDINATOR for one that is
kept elsewhere, INVALID_REQUEST for the empty one; topics that the client may not describe are left
out. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Collector
from moldau.broker.coordinator.transaction.core.state import DescribeAnswer
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p65_describe_transactions as p65
from moldau.protocol.types import by_topic
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p65.DescribeTransactionsRequest
) -> Iterator[None]:
    context.request.release_body()

    def done(states: list[p65.TransactionState]) -> None:
        context.respond(p65.DescribeTransactionsResponse(transaction_states=states))

    collector = Collector(done)
    for transactional_id in request.transactional_ids:
        part = collector.part(partial(_described, context, transactional_id))
        if not context.authorized(
            Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            part.respond(DescribeAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif not transactional_id:
            part.respond(DescribeAnswer(ErrorCode.INVALID_REQUEST))
        else:
            services.coordinators.transactions.describe(transactional_id, part)
        yield
    collector.all_asked()


def _described(
    context: RequestContext, transactional_id: str, answer: DescribeAnswer
) -> p65.TransactionState:
    state = p65.TransactionState(transactional_id=transactional_id, error_code=answer.error)
    transaction = answer.transaction
    if transaction is None:
        return state
    state.transaction_state = transaction.status.words
    state.transaction_timeout_ms = transaction.timeout_ms
    state.transaction_start_time_ms = transaction.start_ms
    state.producer_id = transaction.producer_id
    state.producer_epoch = transaction.producer_epoch
    state.topics = [
        p65.TopicData(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(sorted(transaction.partitions)).items()
        if context.authorized_topic(Operation.DESCRIBE, topic)
    ]
    return state
