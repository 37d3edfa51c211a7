"""DeleteTopics and CreatePartitions: checks and records.

Owns: removing and growing existing topics. Must not: change state.
Invariants: a topic never shrinks, the coordinators' topics never grow either, and new partitions
have as many replicas as the old ones.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from moldau.controller.core.assignments import (
    check_manual_replicas,
    new_partition,
    usable_brokers,
)
from moldau.controller.core.placement import Random, place_replicas
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    ControllerResult,
    Refusal,
    VersionedRecord,
)
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import partition_record_version
from moldau.metadata.image import TopicImage
from moldau.metadata.image.topics import partition_record
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.coordinator_records import INTERNAL_TOPICS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.protocol.metadata_records import RemoveTopicRecord
from moldau.protocol.types import ZERO_UUID

MAX_PARTITIONS_PER_TOPIC: Final = 1_000_000


def delete_topics(
    state: ControllerState, settings: ControllerSettings, request: DeleteTopicsRequest
) -> Steps[ControllerResult[DeleteTopicsResponse]]:
    """Delete topics by name, or by id (KIP-516); each on its own."""
    response = DeleteTopicsResponse()
    result = ControllerResult(response)
    wanted = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    if len(wanted) > MAX_RECORDS_PER_REQUEST:
        refusal = Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"a request may delete at most {MAX_RECORDS_PER_REQUEST} topics",
        )
        for each in wanted:
            response.responses.append(_not_deleted(each, refusal))
            yield
        return result
    named_twice = yield from repeated(_topic_id_of(state, each) for each in wanted)
    for each in wanted:
        yield
        try:
            topic = _find_topic(state, settings, each)
            if topic.topic_id in named_twice:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
        except Refusal as refusal:
            response.responses.append(_not_deleted(each, refusal))
            continue
        result.records.append((RemoveTopicRecord(topic_id=topic.topic_id), 0))
        response.responses.append(
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.NONE
            )
        )
    return result


def _topic_id_of(state: ControllerState, wanted: DeleteTopicState) -> UUID | None:
    topic = None if wanted.name is None else state.topic(wanted.name)
    return wanted.topic_id if topic is None else topic.topic_id


def _find_topic(
    state: ControllerState, settings: ControllerSettings, wanted: DeleteTopicState
) -> TopicImage:
    if not settings.delete_topic_enabled:
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if wanted.name is not None and wanted.topic_id != ZERO_UUID:
        raise Refusal(ErrorCode.INVALID_REQUEST, "name a topic or give its id, not both")
    if wanted.name is None:
        if wanted.topic_id == ZERO_UUID:
            raise Refusal(ErrorCode.INVALID_REQUEST, "neither a topic's name nor its id is given")
        topic = state.image.topics.topics_by_id.get(wanted.topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return topic
    topic = state.topic(wanted.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
    return topic


def _not_deleted(wanted: DeleteTopicState, refusal: Refusal) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=wanted.name,
        topic_id=wanted.topic_id,
        error_code=refusal.error,
        error_message=refusal.message,
    )


def create_partitions(
    state: ControllerState, request: CreatePartitionsRequest, random: Random
) -> Steps[ControllerResult[CreatePartitionsResponse]]:
    """Grow topics (KIP-195); each on its own."""
    response = CreatePartitionsResponse()
    result = ControllerResult(response)
    named_twice = yield from repeated(topic.name for topic in request.topics)
    added_total = 0
    for wanted in request.topics:
        yield
        try:
            if wanted.name in named_twice:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            topic = _growing_topic(state, wanted)
            added_total += wanted.count - len(topic.partitions)
            if added_total > MAX_RECORDS_PER_REQUEST:
                raise Refusal(
                    ErrorCode.POLICY_VIOLATION,
                    f"a request may create at most {MAX_RECORDS_PER_REQUEST} partitions",
                )
            records = yield from _new_partitions(state, topic, wanted, random)
        except Refusal as refusal:
            answer = CreatePartitionsTopicResult(
                name=wanted.name, error_code=refusal.error, error_message=refusal.message
            )
            response.results.append(answer)
            continue
        if not request.validate_only:
            result.records.extend(records)
        response.results.append(
            CreatePartitionsTopicResult(name=wanted.name, error_code=ErrorCode.NONE)
        )
    return result


def _growing_topic(state: ControllerState, wanted: CreatePartitionsTopic) -> TopicImage:
    topic = state.topic(wanted.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
    old_count = len(topic.partitions)
    if wanted.count == old_count:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"the topic has {old_count} partitions already")
    if wanted.count < old_count:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {old_count} partitions, {wanted.count} would not be more",
        )
    if wanted.count > MAX_PARTITIONS_PER_TOPIC:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has at most {MAX_PARTITIONS_PER_TOPIC} partitions",
        )
    if topic.name in INTERNAL_TOPICS:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{topic.name} keeps its {old_count} partitions: with another number the coordinators"
            " would look for every group and transactional id in another partition",
        )
    return topic


def _new_partitions(
    state: ControllerState, topic: TopicImage, wanted: CreatePartitionsTopic, random: Random
) -> Steps[list[VersionedRecord]]:
    first_new = len(topic.partitions)
    added = wanted.count - first_new
    replication_factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        placements = yield from place_replicas(
            random,
            usable_brokers(state),
            partition_count=added,
            replication_factor=replication_factor,
        )
    else:
        if len(wanted.assignments) != added:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are new, but {len(wanted.assignments)} are assigned",
            )
        placements = [list(each.broker_ids) for each in wanted.assignments]
        for partition_index, replicas in enumerate(placements, start=first_new):
            check_manual_replicas(state, partition_index, replicas, replication_factor)
            yield
    version = partition_record_version(state.metadata_level)
    records: list[VersionedRecord] = []
    for partition_index, replicas in enumerate(placements, start=first_new):
        partition = new_partition(state, replicas)
        record = partition_record(topic.topic_id, partition_index, partition, version)
        records.append((record, version))
        yield
    return records
