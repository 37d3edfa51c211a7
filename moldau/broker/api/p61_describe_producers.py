"""DescribeProducers v0: what a partition remembers of its producers (KIP-664).

Behaviour: idempotent and transactional producers alike, until they expire; followers answer too.
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.replica.replica_manager import LedPartition, find_led
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p61_describe_producers as p61
from moldau.protocol.types import is_legal_topic_name
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p61.DescribeProducersRequest
) -> Iterator[None]:
    response = p61.DescribeProducersResponse()
    for topic in request.topics:
        described = p61.TopicResponse(name=topic.name)
        response.topics.append(described)
        for partition_index in topic.partition_indexes:
            described.partitions.append(_describe(services, context, topic.name, partition_index))
            yield
    context.respond(response)


def _describe(
    services: BrokerServices, context: RequestContext, topic: str, partition_index: int
) -> p61.PartitionResponse:
    led: LedPartition | ErrorCode = ErrorCode.INVALID_TOPIC_EXCEPTION
    if is_legal_topic_name(topic):
        led = find_led(
            services.replica_manager,
            context,
            Operation.READ,
            topic,
            partition_index,
            leader_only=False,
        )
    if isinstance(led, ErrorCode):
        return p61.PartitionResponse(
            partition_index=partition_index, error_code=led, error_message=led.message
        )
    return p61.PartitionResponse(
        partition_index=partition_index,
        active_producers=[
            p61.ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp_ms,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in led.log.producer_state.producers.values()
        ],
    )
