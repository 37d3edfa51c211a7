"""Metadata v0–v13: brokers, topics and partitions as the client's listener sees them.

Behaviour: null topics (an empty list in v0) means all topics; a topic is named or, from v10 on,
given by id; a missing topic is created when both the client and `auto.create.topics.enable` allow
it, and the answer waits for it (bounded), so that most clients need no second round.
Known gaps: none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from moldau.broker.api.forwarding import forward
from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.internal_topics import creatable_topic
from moldau.broker.lifecycle.cluster_view import (
    NO_OPERATIONS_ASKED,
    alive_brokers,
    described_partitions,
    is_internal_topic,
    metadata_brokers,
)
from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.metadata.steps import each_once
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p03_metadata as p03
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.types import ZERO_UUID, is_legal_topic_name
from moldau.server.apis import FORWARDING
from moldau.server.request import RequestContext

AUTO_CREATE_WAIT_MS = 5_000
AUTO_CREATE_MAX_TOPICS = 1_000
PARTITIONS_PER_TURN = 1_000
"""How many partitions are described (about two milliseconds) before others get their turn."""


async def answer(
    services: BrokerServices, context: RequestContext, request: p03.MetadataRequest
) -> p03.MetadataResponse:
    wanted = request.topics
    if context.api_version == 0 and not wanted:
        wanted = None
    image = services.metadata.image
    creation_errors: dict[str, ErrorCode] = {}
    if wanted is not None and request.allow_auto_topic_creation:
        missing = [
            topic.name
            for topic in wanted
            if topic.topic_id == ZERO_UUID
            and topic.name
            and topic.name not in image.topics.topics_by_name
            and context.authorized_topic(Operation.DESCRIBE, topic.name, logs_denied=False)
        ]
        if missing and services.node_config["auto.create.topics.enable"]:
            creation_errors = await _create_missing(services, context, missing)
            image = services.metadata.image
    response = p03.MetadataResponse(
        brokers=metadata_brokers(image, context.listener_name),
        cluster_id=services.cluster_id,
        controller_id=services.metadata.controller_id_for_clients(),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.authorized_cluster_operations()
    view = _View(context, request, image, alive_brokers(image))
    described: Iterator[p03.MetadataResponseTopic]
    if wanted is None:
        described = (
            view.describe(name)
            for name in sorted(image.topics.topics_by_name)
            if context.authorized_topic(Operation.DESCRIBE, name, logs_denied=False)
        )
    else:
        named = each_once((topic.topic_id, topic.name) for topic in wanted)
        described = (view.describe_wanted(*each, creation_errors) for each in named)
    partition_count = 0
    for topic in described:
        response.topics.append(topic)
        partition_count += len(topic.partitions) + 1
        if partition_count > PARTITIONS_PER_TURN:
            partition_count = 0
            await asyncio.sleep(0)  # other requests have their turn; the image stays this one
    return response


async def _create_missing(
    services: BrokerServices, context: RequestContext, topic_names: list[str]
) -> dict[str, ErrorCode]:
    """Ask the controller for the topics and wait until this broker has heard of them."""
    names = list(islice(each_once(topic_names), AUTO_CREATE_MAX_TOPICS))
    errors: dict[str, ErrorCode] = {}
    creatable = []
    cluster_wide = context.authorized_cluster(Operation.CREATE, logs_denied=False)
    for name in names:
        if cluster_wide or context.authorized_topic(Operation.CREATE, name):
            creatable.append(
                creatable_topic(services.node_config, name)
                or CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            )
        else:
            errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not creatable:
        return errors
    await context.change_lane(FORWARDING)
    response = await forward(
        services,
        context,
        CreateTopicsRequest(topics=creatable, timeout_ms=AUTO_CREATE_WAIT_MS),
        timeout_ms=AUTO_CREATE_WAIT_MS,
    )
    if response is None:
        # No controller answers: the topics that exist are described all the same.
        return errors | {topic.name: ErrorCode.LEADER_NOT_AVAILABLE for topic in creatable}
    visible = services.metadata.image.topics.topics_by_name
    for result in response.topics:
        exists = result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        if result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            errors[result.name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not exists or result.name not in visible:
            errors[result.name] = ErrorCode.LEADER_NOT_AVAILABLE
    return errors


class _View(NamedTuple):
    context: RequestContext
    request: p03.MetadataRequest
    image: MetadataImage
    alive: Mapping[int, BrokerRegistration]

    def describe_wanted(
        self, topic_id: UUID, asked_name: str | None, creation_errors: dict[str, ErrorCode]
    ) -> p03.MetadataResponseTopic:
        """The entry of a topic that was asked for, be there one or not."""
        context, image = self.context, self.image
        if topic_id != ZERO_UUID:
            known = image.topics.topics_by_id.get(topic_id)
            if known is None or not context.authorized_topic(Operation.DESCRIBE, known.name):
                return p03.MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID
                    if known is None
                    else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    name=None if context.api_version >= 12 else "",
                    topic_id=topic_id,
                )
            return self.describe(known.name)
        name = asked_name or ""
        if not context.authorized_topic(Operation.DESCRIBE, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name in image.topics.topics_by_name:
            return self.describe(name)
        else:
            error = creation_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error != ErrorCode.TOPIC_AUTHORIZATION_FAILED and not is_legal_topic_name(name):
                error = ErrorCode.INVALID_TOPIC_EXCEPTION
        operations = NO_OPERATIONS_ASKED
        if error != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            operations = self._operations_on(name)
        return p03.MetadataResponseTopic(
            error_code=error,
            name=name,
            is_internal=is_internal_topic(name),
            topic_authorized_operations=operations,
        )

    def describe(self, topic_name: str) -> p03.MetadataResponseTopic:
        """The entry of a topic that exists."""
        topic = self.image.topics.topics_by_name[topic_name]
        return p03.MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal_topic(topic.name),
            partitions=described_partitions(
                p03.MetadataResponsePartition,
                topic,
                sorted(topic.partitions),
                self.alive,
                self.context.listener_name,
            ),
            topic_authorized_operations=self._operations_on(topic_name),
        )

    def _operations_on(self, topic_name: str) -> int:
        if not self.request.include_topic_authorized_operations:
            return NO_OPERATIONS_ASKED
        return self.context.authorized_topic_operations(topic_name)
