"""OffsetFetch v1–v10: read how far groups have come (`group.core.offset_requests`).

Behaviour: DESCRIBE on the group and on each topic. One group up to v7, any number from v8 on
(KIP-709); without topics (null, from v2 on) all offsets of topics one may see. From v10 on topics
are named by id (UNKNOWN_TOPIC_ID); an offset that was stored for a deleted topic of the same name
is none. A partition without an offset has offset -1. With `require_stable` (v7) an offset that an
open transaction may change is UNSTABLE_OFFSET_COMMIT. From v9 on a consumer group's member says its
epoch (STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import CallbackReply, Collector
from moldau.broker.coordinator.group.core.offset_requests import no_offset, refused_fetch
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p09_offset_fetch as p09
from moldau.server.request import RequestContext

FIRST_TOP_LEVEL_ERROR_VERSION: Final = 2
FIRST_BATCHED_VERSION: Final = 8
FIRST_TOPIC_ID_VERSION: Final = 10


def handle(
    services: BrokerServices, context: RequestContext, request: p09.OffsetFetchRequest
) -> Iterator[None]:
    version = context.api_version
    groups = request.groups if version >= FIRST_BATCHED_VERSION else [_one_group(request)]

    def done(found: list[p09.OffsetFetchResponseGroup]) -> None:
        if version >= FIRST_BATCHED_VERSION:
            context.respond(p09.OffsetFetchResponse(groups=found))
        else:
            services.background.go_on(_respond_single(context, groups[0], found[0]))

    collector = Collector(done)
    for group in groups:
        yield from _ask(services, context, group, collector, require_stable=request.require_stable)
    collector.all_asked()
    context.hold_if_waiting()


def _one_group(request: p09.OffsetFetchRequest) -> p09.OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            p09.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return p09.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _respond_single(
    context: RequestContext, asked: p09.OffsetFetchRequestGroup, group: p09.OffsetFetchResponseGroup
) -> Iterator[None]:
    """The answer in the form of the versions that ask for one group."""
    topics = group.topics
    if group.error_code and context.api_version < FIRST_TOP_LEVEL_ERROR_VERSION:
        error = ErrorCode.of(group.error_code)
        topics = []
        for refused in asked.topics or []:
            topics.append((yield from _refused_topic(refused, error)))
    response = p09.OffsetFetchResponse(error_code=group.error_code)
    for topic in topics:
        told = p09.OffsetFetchResponseTopic(name=topic.name)
        response.topics.append(told)
        for found in topic.partitions:
            told.partitions.append(
                p09.OffsetFetchResponsePartition(
                    partition_index=found.partition_index,
                    committed_offset=found.committed_offset,
                    committed_leader_epoch=found.committed_leader_epoch,
                    metadata=found.metadata,
                    error_code=found.error_code,
                )
            )
            yield
    context.respond(response)


def _ask(
    services: BrokerServices,
    context: RequestContext,
    group: p09.OffsetFetchRequestGroup,
    collector: Collector[p09.OffsetFetchResponseGroup],
    *,
    require_stable: bool,
) -> Iterator[None]:
    if not context.authorized(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        collector.part().respond(refused_fetch(group, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        yield
        return
    asked = group
    if group.topics is None:
        part = collector.part(partial(_visible, services, context))
    else:
        valid: list[p09.OffsetFetchRequestTopics] = []
        refused: list[p09.OffsetFetchResponseTopics] = []
        for topic in group.topics:
            error = _name(services, context, topic)
            if error is ErrorCode.NONE:
                valid.append(topic)
            else:
                refused.append((yield from _refused_topic(topic, error)))
            yield
        # What is not asked for stays in the request: to free it at once would take long.
        asked = p09.OffsetFetchRequestGroup(
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
            topics=valid,
        )
        part = collector.part(partial(_with_refused, refused))

    def answered(
        answer: p09.OffsetFetchResponseGroup | Steps[p09.OffsetFetchResponseGroup],
    ) -> None:
        if isinstance(answer, p09.OffsetFetchResponseGroup):
            part.respond(answer)
        else:  # of very many partitions
            services.background.go_on(_respond_in_steps(part, answer))

    reply_to = CallbackReply(answered)
    is_confirmed = services.is_confirmed()
    services.coordinators.groups.ask(
        group.group_id,
        reply_to,
        lambda state, _now_ms: state.offset_requests.fetch(
            asked, reply_to, require_stable=require_stable, is_confirmed=is_confirmed
        ),
        partial(refused_fetch, asked),
    )
    yield


def _respond_in_steps(
    part: CallbackReply, steps: Steps[p09.OffsetFetchResponseGroup]
) -> Iterator[None]:
    part.respond((yield from steps))


def _name(
    services: BrokerServices, context: RequestContext, topic: p09.OffsetFetchRequestTopics
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


def _refused_topic(
    topic: p09.OffsetFetchRequestTopics, error: ErrorCode
) -> Steps[p09.OffsetFetchResponseTopics]:
    refused = p09.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
    for partition in topic.partition_indexes:
        refused.partitions.append(no_offset(partition, error))
        yield
    return refused


def _with_refused(
    refused: list[p09.OffsetFetchResponseTopics], group: p09.OffsetFetchResponseGroup
) -> p09.OffsetFetchResponseGroup:
    """Add the topics that were refused here, unless the whole group is refused."""
    if not group.error_code:
        group.topics = [*group.topics, *refused]
    return group


def _visible(
    services: BrokerServices, context: RequestContext, group: p09.OffsetFetchResponseGroup
) -> p09.OffsetFetchResponseGroup:
    """Leave out topics that the client may not see, and give the others their ids."""
    topics = []
    by_name = services.metadata.image.topics.topics_by_name
    for topic in group.topics:
        if not context.authorized_topic(Operation.DESCRIBE, topic.name):
            continue
        if context.api_version >= FIRST_TOPIC_ID_VERSION:
            found = by_name.get(topic.name)
            if found is None:
                continue  # it cannot be named
            topic.topic_id = found.topic_id
        topics.append(topic)
    group.topics = topics
    return group
