"""OffsetFetch v1–v10: read how far groups have come.

Behaviour: DESCRIBE on the group and on each topic. One group up to v7, any number from v8 on
(KIP-709); without topics (null, from v2 on) all offsets of topics one may see. From v10 on topics
are named by id (UNKNOWN_TOPIC_ID); an offset that was stored for a deleted topic of the same name
is none. A partition without an offset has offset -1. With `require_stable` (v7) an offset that an
open transaction may change is UNSTABLE_OFFSET_COMMIT. From v9 on a consumer group's member says its
epoch (STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from moldau.broker.authorizer import Operation, ResourceType
from moldau.broker.coordinator import Answerable
from moldau.broker.group.collecting import Collector
from moldau.broker.group.core.offset_requests import no_offset, refused_fetch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from moldau.broker.request_context import RequestContext
    from moldau.broker.services import BrokerServices

FIRST_TOP_LEVEL_ERROR_VERSION: Final = 2
FIRST_BATCHED_VERSION: Final = 8
FIRST_TOPIC_ID_VERSION: Final = 10


def handle(
    services: BrokerServices, context: RequestContext, request: OffsetFetchRequest
) -> Iterator[None]:
    """Ask each group's partition, answer when all have answered."""
    version = context.api_version
    groups = request.groups if version >= FIRST_BATCHED_VERSION else [_one_group(request)]

    def done(found: list[OffsetFetchResponseGroup]) -> None:
        if version >= FIRST_BATCHED_VERSION:
            context.respond(OffsetFetchResponse(groups=found))
        else:
            context.respond(_single(version, groups[0], found[0]))

    collector = Collector(done)
    for group in groups:
        _ask(services, context, group, collector.part(), require_stable=request.require_stable)
        yield
    collector.all_asked()
    context.hold_if_waiting()


def _one_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _single(
    version: int, asked: OffsetFetchRequestGroup, group: OffsetFetchResponseGroup
) -> OffsetFetchResponse:
    """The form of the versions that ask for one group."""
    topics = group.topics
    if group.error_code and version < FIRST_TOP_LEVEL_ERROR_VERSION:
        error = ErrorCode.of(group.error_code)
        topics = [_refused_topic(topic, error) for topic in asked.topics or []]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=found.partition_index,
                        committed_offset=found.committed_offset,
                        committed_leader_epoch=found.committed_leader_epoch,
                        metadata=found.metadata,
                        error_code=found.error_code,
                    )
                    for found in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def _ask(
    services: BrokerServices,
    context: RequestContext,
    group: OffsetFetchRequestGroup,
    part: Answerable,
    *,
    require_stable: bool,
) -> None:
    if not context.authorized(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        part.respond(refused_fetch(group, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    coordinator = services.group_coordinator
    if group.topics is None:
        coordinator.fetch_offsets(
            group, _Visible(services, context, part), require_stable=require_stable
        )
        return
    valid: list[OffsetFetchRequestTopics] = []
    refused: list[OffsetFetchResponseTopics] = []
    for topic in group.topics:
        error = _name(services, context, topic)
        if error is ErrorCode.NONE:
            valid.append(topic)
        else:
            refused.append(_refused_topic(topic, error))
    group.topics = valid
    coordinator.fetch_offsets(group, _Merged(part, refused), require_stable=require_stable)


def _name(
    services: BrokerServices, context: RequestContext, topic: OffsetFetchRequestTopics
) -> ErrorCode:
    """Give the topic its name if it only has an id; say why it may not be asked for."""
    if context.api_version >= FIRST_TOPIC_ID_VERSION:
        found = services.metadata.image.topics.topics_by_id.get(topic.topic_id)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = found.name
    if not context.authorized_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _refused_topic(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[no_offset(partition, error) for partition in topic.partition_indexes],
    )


class _Merged:
    """Adds the topics that were refused here, unless the whole group is refused."""

    def __init__(self, part: Answerable, refused: list[OffsetFetchResponseTopics]) -> None:
        self._part = part
        self._refused = refused

    def respond(self, message: OffsetFetchResponseGroup) -> None:
        if not message.error_code:
            message.topics = [*message.topics, *self._refused]
        self._part.respond(message)


class _Visible:
    """Leaves out topics that the client may not see, and gives the others their ids."""

    def __init__(self, services: BrokerServices, context: RequestContext, part: Answerable) -> None:
        self._services = services
        self._context = context
        self._part = part

    def respond(self, message: OffsetFetchResponseGroup) -> None:
        topics = []
        by_name = self._services.metadata.image.topics.topics_by_name
        for topic in message.topics:
            if not self._context.authorized_topic(Operation.DESCRIBE, topic.name):
                continue
            if self._context.api_version >= FIRST_TOPIC_ID_VERSION:
                found = by_name.get(topic.name)
                if found is None:
                    continue  # it cannot be named
                topic.topic_id = found.topic_id
            topics.append(topic)
        message.topics = topics
        self._part.respond(message)
