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
from moldau.broker.coordinator.transaction.core.transaction import Transaction
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
            part.respond(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not transactional_id:
            part.respond(ErrorCode.INVALID_REQUEST)
        else:
            services.coordinators.transactions.describe(transactional_id, part)
        yield
    collector.all_asked()


def _described(
    context: RequestContext, transactional_id: str, found: Transaction | ErrorCode
) -> p65.TransactionState:
    if isinstance(found, ErrorCode):
        return p65.TransactionState(transactional_id=transactional_id, error_code=found)
    return p65.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.status.words,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.producer_epoch,
        topics=[
            p65.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(sorted(found.partitions)).items()
            if context.authorized_topic(Operation.DESCRIBE, topic)
        ],
    )
