"""OffsetDelete v0: remove stored offsets of a group (KIP-496).

Behaviour: DELETE on the group, READ on each topic. UNKNOWN_TOPIC_OR_PARTITION for what does not
exist, GROUP_SUBSCRIBED_TO_TOPIC for topics that a member consumes, NON_EMPTY_GROUP for groups with
members that are no consumers, GROUP_ID_NOT_FOUND. An offset that is not there is removed, too. A
topic of which no partition is named is not in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moldau.broker.api.p08_offset_commit import find_topic
from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p47_offset_delete as p47
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p47.OffsetDeleteRequest
) -> Iterator[None]:
    if not context.authorized(Operation.DELETE, ResourceType.GROUP, request.group_id):
        context.respond(p47.OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    if not request.group_id:
        context.respond(p47.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        return
    merged = _Merged(context)
    image = services.metadata.image.topics
    valid: dict[str, dict[int, p47.OffsetDeleteRequestPartition]] = {}
    for topic in request.topics:
        error, found = find_topic(context, image, topic.name)
        asked_for = valid.setdefault(topic.name, {})
        if error is not ErrorCode.NONE:
            merged.entry(topic.name)
        for asked in topic.partitions:
            index = asked.partition_index
            told = error
            if found is not None and index not in found.partitions:
                told = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            slot = p47.OffsetDeleteResponsePartition(partition_index=index, error_code=told)
            if told is ErrorCode.NONE:
                asked_for[index] = asked
                merged.accept(topic.name, slot)
            else:
                merged.entry(topic.name).append(slot)
            yield
    # Asked even if nothing is left: the answer says whether there is such a group.
    request.topics = [
        p47.OffsetDeleteRequestTopic(name=name, partitions=list(partitions.values()))
        for name, partitions in valid.items()
        if partitions
    ]
    services.coordinators.groups.ask(
        request.group_id,
        merged,
        lambda state, _now_ms: state.offset_requests.delete(request, merged),
        lambda error: p47.OffsetDeleteResponse(error_code=error),
    )
    context.hold_if_waiting()


@dataclass(slots=True, eq=False)
class _Merged:
    """Puts what was refused here into the coordinator's answer."""

    _context: RequestContext
    _topics: dict[str, p47.OffsetDeleteResponseTopic] = field(default_factory=dict)
    _accepted: dict[str, list[p47.OffsetDeleteResponsePartition]] = field(default_factory=dict)

    def accept(self, name: str, slot: p47.OffsetDeleteResponsePartition) -> None:
        """The coordinator is asked about this partition, and says what becomes of it."""
        self._accepted.setdefault(name, []).append(slot)

    def entry(self, name: str) -> list[p47.OffsetDeleteResponsePartition]:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = p47.OffsetDeleteResponseTopic(name=name)
        return topic.partitions

    def respond(self, message: p47.OffsetDeleteResponse) -> None:
        if message.error_code:
            self._context.respond(message)
            return
        for topic in message.topics:
            told = {each.partition_index: each.error_code for each in topic.partitions}
            slots = self._accepted.pop(topic.name, [])
            for slot in slots:
                slot.error_code = told[slot.partition_index]
            self.entry(topic.name).extend(slots)
        self._context.respond(p47.OffsetDeleteResponse(topics=list(self._topics.values())))
