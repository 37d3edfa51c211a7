"""OffsetForLeaderEpoch v2-v4: where a leader epoch ends in this leader's log (KIP-101, KIP-320).

Behaviour: the answer is the largest epoch that is not newer than the asked one and its end offset,
exclusive; -1 for both when nothing can be said. Consumers use it to find out that their position
was truncated. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.replica.replica_manager import find_led
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p23_offset_for_leader_epoch as p23
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p23.OffsetForLeaderEpochRequest
) -> Iterator[None]:
    operation: Operation | None = Operation.DESCRIBE
    if context.authorized_cluster(Operation.CLUSTER_ACTION, logs_denied=False):
        operation = None
    response = p23.OffsetForLeaderEpochResponse()
    for topic in request.topics:
        result = p23.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(result)
        for asked in topic.partitions:
            told = p23.EpochEndOffset(partition=asked.partition)
            result.partitions.append(told)
            led = find_led(
                services.replica_manager,
                context,
                operation,
                topic.topic,
                asked.partition,
                current_leader_epoch=asked.current_leader_epoch,
            )
            if isinstance(led, ErrorCode):
                told.error_code = led
            else:
                told.leader_epoch, told.end_offset = led.log.end_offset_for_epoch(
                    asked.leader_epoch
                )
            yield
    context.respond(response)
