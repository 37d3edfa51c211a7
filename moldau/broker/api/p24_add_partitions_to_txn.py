"""AddPartitionsToTxn v0-v5: partitions that a transaction is going to write to.

Behaviour: up to v3 a client's request for one transaction; a partition that the client may not
write to, or that there is not, refuses all of them (OPERATION_NOT_ATTEMPTED for the others), and
coordinators' own topics are refused. From v4 on a broker's (permission to CLUSTER_ACTION), for
many transactions at once, each to be added or only to be verified (KIP-890): TRANSACTION_ABORTABLE
for a partition that is not in the transaction. v2 knows PRODUCER_FENCED (INVALID_PRODUCER_EPOCH
below). Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Collector, Producer
from moldau.broker.coordinator.transaction.core.rules import producer_fenced_error
from moldau.broker.lifecycle.cluster_view import is_internal_topic
from moldau.metadata.steps import Steps, at_once
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p24_add_partitions_to_txn as p24
from moldau.protocol.types import TopicPartition
from moldau.server.request import RequestContext

FIRST_BROKER_VERSION = 4

Errors = Mapping[TopicPartition, ErrorCode]


def handle(
    services: BrokerServices, context: RequestContext, request: p24.AddPartitionsToTxnRequest
) -> Iterator[None]:
    if context.api_version < FIRST_BROKER_VERSION:
        yield from _handle_client(services, context, request)
        return
    if not context.authorized_cluster(Operation.CLUSTER_ACTION):
        context.respond(
            p24.AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        )
        return
    context.request.release_body()

    def done(results: list[p24.AddPartitionsToTxnResult]) -> None:
        context.respond(p24.AddPartitionsToTxnResponse(results_by_transaction=results))

    collector = Collector(done)
    for transaction in request.transactions:
        part = collector.part(partial(_result, transaction.transactional_id))
        partitions = yield from _partitions(transaction.topics)
        refused = yield from _refused(services, context, partitions, is_client=False)
        if refused:
            part.respond((yield from _results(refused)))
            continue
        services.coordinators.transactions.add_partitions(
            transaction.transactional_id,
            Producer(transaction.producer_id, transaction.producer_epoch),
            partitions,
            verify_only=transaction.verify_only,
            done=lambda errors, part=part: part.respond(  # type: ignore[misc]
                at_once(_results(errors))
            ),
        )
        yield
    collector.all_asked()


def _handle_client(
    services: BrokerServices, context: RequestContext, request: p24.AddPartitionsToTxnRequest
) -> Iterator[None]:
    transactional_id = request.v3_and_below_transactional_id
    partitions = yield from _partitions(request.v3_and_below_topics)

    def respond(results: list[p24.AddPartitionsToTxnTopicResult]) -> None:
        context.respond(p24.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    def answered(errors: Errors) -> None:
        told = {
            partition: producer_fenced_error(error, context.api_version, known_since=2)
            for partition, error in errors.items()
        }
        respond(at_once(_results(told)))

    if not context.authorized(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        refused = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        respond((yield from _results(refused)))
        return
    refused = yield from _refused(services, context, partitions, is_client=True)
    if refused:
        respond((yield from _results(refused)))
        return
    services.coordinators.transactions.add_partitions(
        transactional_id,
        Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        partitions,
        client_version=0,
        done=answered,
    )
    context.hold_if_waiting()


def _partitions(topics: list[p24.AddPartitionsToTxnTopic]) -> Steps[list[TopicPartition]]:
    """Each once, in the order of the request."""
    found: dict[TopicPartition, None] = {}
    for topic in topics:
        for index in dict.fromkeys(topic.partitions):
            found[TopicPartition(topic.name, index)] = None
            yield
    return list(found)


def _refused(
    services: BrokerServices,
    context: RequestContext,
    partitions: list[TopicPartition],
    *,
    is_client: bool,
) -> Steps[dict[TopicPartition, ErrorCode]]:
    """One error for each if any of them cannot be added, nothing otherwise."""
    topics = services.metadata.image.topics.topics_by_name
    errors: dict[TopicPartition, ErrorCode] = {}
    is_permitted: dict[str, bool] = {}
    for partition in partitions:
        name = partition.topic
        if is_client and name not in is_permitted:
            is_permitted[name] = not is_internal_topic(name) and context.authorized(
                Operation.WRITE, ResourceType.TOPIC, name
            )
        topic = topics.get(name)
        if is_client and not is_permitted[name]:
            errors[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or partition.partition not in topic.partitions:
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        yield
    if errors:
        for partition in partitions:
            errors.setdefault(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
            yield
    return errors


def _result(
    transactional_id: str, results: list[p24.AddPartitionsToTxnTopicResult]
) -> p24.AddPartitionsToTxnResult:
    return p24.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=results)


def _results(errors: Errors) -> Steps[list[p24.AddPartitionsToTxnTopicResult]]:
    by_topic: dict[str, p24.AddPartitionsToTxnTopicResult] = {}
    for partition, error in errors.items():
        topic = by_topic.get(partition.topic)
        if topic is None:
            topic = p24.AddPartitionsToTxnTopicResult(name=partition.topic)
            by_topic[partition.topic] = topic
        topic.results_by_partition.append(
            p24.AddPartitionsToTxnPartitionResult(
                partition_index=partition.partition, partition_error_code=error
            )
        )
        yield
    return list(by_topic.values())
