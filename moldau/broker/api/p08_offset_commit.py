"""OffsetCommit v2–v10: store how far a group has come (`group.core.offset_requests`).

Behaviour: READ on the group and on each topic. Topics are named, from v10 on by id
(UNKNOWN_TOPIC_ID); a topic or partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, the
others are stored all the same, all or none of them. Metadata over `offset.metadata.max.bytes` is
OFFSET_METADATA_TOO_LARGE for its partition, a commit too large for a batch
INVALID_COMMIT_OFFSET_SIZE. A retention time (v2–v4) is kept as the offset's own expiry. Answered
when the offsets are committed in `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.group.core.offset_requests import prepare_commit
from moldau.metadata.image import TopicImage, TopicsImage
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p08_offset_commit as p08
from moldau.server.request import RequestContext

FIRST_TOPIC_ID_VERSION: Final = 10


def handle(
    services: BrokerServices, context: RequestContext, request: p08.OffsetCommitRequest
) -> Iterator[None]:
    refusal = ErrorCode.NONE
    if not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    image = services.metadata.image.topics
    merged = _Merged(context)
    valid: list[p08.OffsetCommitRequestTopic] = []
    for topic in request.topics:
        error, found = refusal, None
        if not refusal:
            topic_id = topic.topic_id if context.api_version >= FIRST_TOPIC_ID_VERSION else None
            error, found = find_topic(context, image, topic.name, topic_id)
        refused = merged.entry(topic.name, topic.topic_id)
        partitions = []
        for asked in topic.partitions:
            index = asked.partition_index
            told = error
            if found is not None and index not in found.partitions:
                told = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if told is ErrorCode.NONE:
                partitions.append(asked)
            else:
                refused.append(
                    p08.OffsetCommitResponsePartition(partition_index=index, error_code=told)
                )
            yield
        if found is not None and partitions:
            valid.append(
                p08.OffsetCommitRequestTopic(
                    name=found.name, topic_id=found.topic_id, partitions=partitions
                )
            )
    if not valid:
        merged.respond(p08.OffsetCommitResponse())
        return
    request.topics = valid
    limits = services.coordinators.groups.commit_limits(request.group_id)
    prepared = yield from prepare_commit(
        request, limits, services.clock.now_ms(), context.principal
    )
    services.coordinators.groups.ask(
        request.group_id,
        merged,
        lambda state, _now_ms: state.offset_requests.commit(
            request, prepared, context.api_version, merged
        ),
        prepared.refused,
    )
    context.hold_if_waiting()


def find_topic(
    context: RequestContext, image: TopicsImage, name: str, topic_id: UUID | None = None
) -> tuple[ErrorCode, TopicImage | None]:
    """The topic of that id or else of that name, or why there are no offsets of it for a client."""
    if topic_id is not None:
        found = image.topics_by_id.get(topic_id)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, None
        name = found.name
    else:
        found = image.topics_by_name.get(name)
    if not context.authorized_topic(Operation.READ, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    return ErrorCode.NONE, found


class _Merged:
    """Puts what was refused here into the coordinator's answer; topics as in the request."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._has_ids = context.api_version >= FIRST_TOPIC_ID_VERSION
        self._topics: dict[str | UUID, p08.OffsetCommitResponseTopic] = {}

    def entry(self, name: str, topic_id: UUID) -> list[p08.OffsetCommitResponsePartition]:
        key = topic_id if self._has_ids else name
        topic = self._topics.get(key)
        if topic is None:
            topic = p08.OffsetCommitResponseTopic(name=name, topic_id=topic_id)
            self._topics[key] = topic
        return topic.partitions

    def respond(self, message: p08.OffsetCommitResponse) -> None:
        for topic in message.topics:
            self.entry(topic.name, topic.topic_id).extend(topic.partitions)
        self._context.respond(p08.OffsetCommitResponse(topics=list(self._topics.values())))
