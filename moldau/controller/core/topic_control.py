"""CreateTopics, DeleteTopics and CreatePartitions: checks, and the records of new and grown topics.

Owns: what is wrong with a wanted topic, its defaults (`num.partitions`) and, if nothing is wrong,
its TopicRecord, ConfigRecords and PartitionRecords; removing and growing existing topics. Must not:
change state. Invariants: topics of one request see each other, so that two that collide are not
both created; a topic never shrinks, the coordinators' topics never grow either, and new partitions
have as many replicas as the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple
from uuid import UUID

from moldau.config import ConfigError, ConfigSource, describe_topic_config, validate_topic_config
from moldau.config.definition import Values
from moldau.controller.core.placement import (
    check_manual_replicas,
    new_partition,
    place_replicas,
    usable_brokers,
)
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    Refusal,
    TakesPermits,
    VersionedRecord,
    permits_refusal,
    refusals_to,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import partition_record_version
from moldau.metadata.image import ConfigResourceType, TopicImage
from moldau.metadata.image.configs import config_record
from moldau.metadata.image.topics import partition_record
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.coordinator_records import INTERNAL_TOPICS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p19_create_topics as p19
from moldau.protocol.messages import p20_delete_topics as p20
from moldau.protocol.messages import p37_create_partitions as p37
from moldau.protocol.metadata_records import RemoveTopicRecord, TopicRecord
from moldau.protocol.structs import MAX_STRING_BYTES
from moldau.protocol.types import (
    METADATA_TOPIC_NAME,
    ZERO_UUID,
    collision_key,
    random_topic_id,
    topic_name_problem,
)

USE_DEFAULT: Final = -1
MAX_PARTITIONS_PER_TOPIC: Final = 1_000_000


class _Batch(NamedTuple):
    """What the topics of one request share."""

    state: ControllerState
    names_by_collision_key: dict[str, str]
    described: dict[tuple[tuple[str, str], ...], list[p19.CreatableTopicConfigs]]
    defaults: Callable[[], Values]
    takes_permits: TakesPermits


def create_topics(
    state: ControllerState, request: p19.CreateTopicsRequest, asked: Asked
) -> Steps[ControllerResult[p19.CreateTopicsResponse]]:
    """CreateTopics: a topic that is refused leaves the others alone (KIP-4, KIP-525). What is only
    validated takes permits, too, as in Kafka.
    """
    response = p19.CreateTopicsResponse()
    result = ControllerResult(response)
    if _partition_total(state, request) > MAX_RECORDS_PER_REQUEST:
        too_many = Refusal.too_many(
            f"a request may create at most {MAX_RECORDS_PER_REQUEST} partitions"
        )
        response.topics = yield from _all_refused(request, too_many)
        return result
    batch = _Batch(state, {}, {}, cache(state.broker_defaults), asked.takes_permits)
    named_twice = yield from repeated(topic.name for topic in request.topics)
    for topic in request.topics:
        yield
        try:
            if topic.name in named_twice:
                raise Refusal.invalid("the topic is named more than once")
            records, created = yield from _create_topic(batch, topic)
        except Refusal as refusal:
            response.topics.append(_refused(topic, refusal))
            continue
        response.topics.append(created)
        if not request.validate_only:
            result.records.extend(records)
    if len(result.records) > 2 * MAX_RECORDS_PER_REQUEST:
        too_many = Refusal.too_many(
            f"the request makes {len(result.records)} records, too many for one batch"
        )
        response.topics = yield from _all_refused(request, too_many)
        result.records = []
    return result


def _all_refused(
    request: p19.CreateTopicsRequest, refusal: Refusal
) -> Steps[list[p19.CreatableTopicResult]]:
    results = []
    for topic in request.topics:
        results.append(_refused(topic, refusal))
        yield
    return results


def _partition_total(state: ControllerState, request: p19.CreateTopicsRequest) -> int:
    total = 0
    for topic in request.topics:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == USE_DEFAULT:
            total += state.settings.node_config.get_int("num.partitions")
        else:
            total += max(topic.num_partitions, 0)
    return total


def _create_topic(
    batch: _Batch, topic: p19.CreatableTopic
) -> Steps[tuple[list[VersionedRecord], p19.CreatableTopicResult]]:
    _check_name(batch, topic.name)
    configs = _checked_configs(batch, topic)
    placements = yield from _place(batch, topic)
    if not batch.takes_permits(len(placements)):
        raise permits_refusal()
    state = batch.state
    topic_id = random_topic_id(state.random)  # type: ignore[arg-type]  # a structural Random does
    while topic_id in state.image.topics.topics_by_id:
        topic_id = random_topic_id(state.random)  # type: ignore[arg-type]
    batch.names_by_collision_key[collision_key(topic.name)] = topic.name
    records: list[VersionedRecord] = [(TopicRecord(name=topic.name, topic_id=topic_id), 0)]
    for key, value in configs.items():
        records.append(config_record(ConfigResourceType.TOPIC, topic.name, key, value))
    records += yield from _partition_records(state, topic_id, placements)
    created = p19.CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(placements),
        replication_factor=len(placements[0]),
        configs=_described_configs(batch, configs),
    )
    return records, created


def _partition_records(
    state: ControllerState, topic_id: UUID, placements: Sequence[list[int]], first_index: int = 0
) -> Steps[list[VersionedRecord]]:
    version = partition_record_version(state.metadata_level)
    records: list[VersionedRecord] = []
    for partition_index, replicas in enumerate(placements, start=first_index):
        partition = new_partition(state, replicas)
        record = partition_record(topic_id, partition_index, partition, version)
        records.append((record, version))
        yield
    return records


def _check_name(batch: _Batch, topic_name: str) -> None:
    problem = topic_name_problem(topic_name)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if topic_name == METADATA_TOPIC_NAME:
        # Its directory would be the metadata log's own: brokers would write over that.
        raise Refusal.invalid(f"{topic_name} is the controllers' own log")
    if batch.state.topic(topic_name) is not None:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic_name} exists already")
    other = batch.state.colliding_topic(topic_name)
    if other is None:
        other = batch.names_by_collision_key.get(collision_key(topic_name))
    if other is not None:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic_name} collides with topic {other}: "
            "metric names do not tell '.' and '_' apart",
        )


def _checked_configs(batch: _Batch, topic: p19.CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.name in configs:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{config.name} is given twice")
        if config.value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        if len(config.value.encode()) > MAX_STRING_BYTES:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"the value of {config.name} is too long")
        configs[config.name] = config.value
    if configs:
        try:
            validate_topic_config(configs, batch.defaults())
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    return configs


def _place(batch: _Batch, topic: p19.CreatableTopic) -> Steps[list[list[int]]]:
    if topic.assignments:
        placements = yield from _manual_placement(batch.state, topic)
        return placements
    partition_count = topic.num_partitions
    if partition_count == USE_DEFAULT:
        partition_count = batch.state.settings.node_config.get_int("num.partitions")
    if partition_count <= 0:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, "a topic needs at least one partition")
    replication_factor = topic.replication_factor
    if replication_factor == USE_DEFAULT:
        replication_factor = batch.state.settings.node_config.get_int("default.replication.factor")
    placements = yield from place_replicas(
        batch.state.random,
        usable_brokers(batch.state),
        partition_count=partition_count,
        replication_factor=replication_factor,
    )
    return placements


def _manual_placement(state: ControllerState, topic: p19.CreatableTopic) -> Steps[list[list[int]]]:
    if topic.num_partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
        raise Refusal.invalid(
            "with a manual assignment, partition count and replication factor must both be -1"
        )
    by_index = {each.partition_index: list(each.broker_ids) for each in topic.assignments}
    if sorted(by_index) != list(range(len(topic.assignments))):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions must be numbered from 0 without gaps or repetitions",
        )
    placements = [by_index[index] for index in range(len(by_index))]
    for partition_index, replicas in enumerate(placements):
        check_manual_replicas(state, partition_index, replicas, len(placements[0]))
        yield
    return placements


def _described_configs(batch: _Batch, overrides: dict[str, str]) -> list[p19.CreatableTopicConfigs]:
    key = tuple(overrides.items())
    if key in batch.described:
        return batch.described[key]  # most topics of a request are alike
    cluster_wide = batch.state.image.configs.get(ConfigResourceType.BROKER, "")
    node_config = batch.state.settings.node_config
    described = describe_topic_config(node_config, cluster_wide, {}, overrides)
    batch.described[key] = [
        p19.CreatableTopicConfigs(
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=int(each.source) if each.source else int(ConfigSource.UNKNOWN),
            is_sensitive=each.sensitive,
        )
        for each in described
    ]
    return batch.described[key]


def _refused(topic: p19.CreatableTopic, refusal: Refusal) -> p19.CreatableTopicResult:
    return p19.CreatableTopicResult(
        name=topic.name, error_code=refusal.error, error_message=refusal.message
    )


def delete_topics(
    state: ControllerState, request: p20.DeleteTopicsRequest, asked: Asked
) -> Steps[ControllerResult[p20.DeleteTopicsResponse]]:
    """DeleteTopics by name, or by id (KIP-516); each topic on its own."""
    response = p20.DeleteTopicsResponse()
    result = ControllerResult(response)
    wanted = [*request.topics, *(p20.DeleteTopicState(name=name) for name in request.topic_names)]
    is_too_much = len(wanted) > MAX_RECORDS_PER_REQUEST
    named_twice: set[UUID | None] = set()
    if not is_too_much:
        named_twice = yield from repeated(_topic_id_of(state, each) for each in wanted)
    for each in wanted:
        yield
        answer = p20.DeletableTopicResult(name=each.name, topic_id=each.topic_id)
        response.responses.append(answer)
        with refusals_to(answer):
            if is_too_much:
                most = f"a request may delete at most {MAX_RECORDS_PER_REQUEST} topics"
                raise Refusal.too_many(most)
            topic = _find_topic(state, each)
            if topic.topic_id in named_twice:
                raise Refusal.invalid("the topic is named more than once")
            answer.name, answer.topic_id = topic.name, topic.topic_id
            if not asked.takes_permits(len(topic.partitions)):
                raise permits_refusal()
            result.records.append((RemoveTopicRecord(topic_id=topic.topic_id), 0))
    return result


def _topic_id_of(state: ControllerState, wanted: p20.DeleteTopicState) -> UUID | None:
    topic = None if wanted.name is None else state.topic(wanted.name)
    return wanted.topic_id if topic is None else topic.topic_id


def _find_topic(state: ControllerState, wanted: p20.DeleteTopicState) -> TopicImage:
    if not state.settings.node_config.get_boolean("delete.topic.enable"):
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if wanted.name is not None and wanted.topic_id != ZERO_UUID:
        raise Refusal.invalid("name a topic or give its id, not both")
    if wanted.name is None:
        if wanted.topic_id == ZERO_UUID:
            raise Refusal.invalid("neither a topic's name nor its id is given")
        topic = state.image.topics.topics_by_id.get(wanted.topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return topic
    topic = state.topic(wanted.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
    return topic


def create_partitions(
    state: ControllerState, request: p37.CreatePartitionsRequest, asked: Asked
) -> Steps[ControllerResult[p37.CreatePartitionsResponse]]:
    """CreatePartitions: grow topics (KIP-195); each on its own."""
    response = p37.CreatePartitionsResponse()
    result = ControllerResult(response)
    named_twice = yield from repeated(topic.name for topic in request.topics)
    added_total = 0
    for wanted in request.topics:
        yield
        answer = p37.CreatePartitionsTopicResult(name=wanted.name)
        response.results.append(answer)
        with refusals_to(answer):
            if wanted.name in named_twice:
                raise Refusal.invalid("the topic is named more than once")
            topic = _growing_topic(state, wanted)
            added_total += wanted.count - len(topic.partitions)
            if added_total > MAX_RECORDS_PER_REQUEST:
                raise Refusal.too_many(
                    f"a request may create at most {MAX_RECORDS_PER_REQUEST} partitions"
                )
            records = yield from _new_partitions(state, topic, wanted, asked.takes_permits)
            if not request.validate_only:
                result.records.extend(records)
    return result


def _growing_topic(state: ControllerState, wanted: p37.CreatePartitionsTopic) -> TopicImage:
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
        raise Refusal.invalid(
            f"{topic.name} keeps its {old_count} partitions: with another number the coordinators"
            " would look for every group and transactional id in another partition"
        )
    return topic


def _new_partitions(
    state: ControllerState,
    topic: TopicImage,
    wanted: p37.CreatePartitionsTopic,
    takes_permits: TakesPermits,
) -> Steps[list[VersionedRecord]]:
    first_new = len(topic.partitions)
    added = wanted.count - first_new
    replication_factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        placements = yield from place_replicas(
            state.random,
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
    if not takes_permits(added):
        raise permits_refusal()
    records = yield from _partition_records(state, topic.topic_id, placements, first_new)
    return records
