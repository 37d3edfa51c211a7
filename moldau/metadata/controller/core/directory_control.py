"""AssignReplicasToDirs: in which log directory each replica lies (KIP-858).

Owns: the checks and the PartitionChangeRecords. Invariant: only the owner of a replica, under its
current broker epoch, moves it, and only to a directory that it registered.
"""

from __future__ import annotations

from uuid import UUID

from moldau.metadata.controller.core.producer_id_control import check_broker_epoch
from moldau.metadata.controller.core.result import ControllerResult, Refusal, VersionedRecord
from moldau.metadata.controller.core.state import ControllerState
from moldau.metadata.features import partition_record_version
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryDataResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from moldau.protocol.metadata_records import PartitionChangeRecord


def assign_replicas_to_directories(
    state: ControllerState, request: AssignReplicasToDirsRequest
) -> ControllerResult[AssignReplicasToDirsResponse]:
    """Note the directories a broker chose for its replicas; each partition on its own."""
    error = check_broker_epoch(state, request.broker_id, request.broker_epoch)
    response = AssignReplicasToDirsResponse(error_code=error)
    result = ControllerResult(response)
    if error is not ErrorCode.NONE:
        return result
    version = partition_record_version(state.metadata_level)
    for directory in request.directories:
        directory_answer = DirectoryDataResponse(id=directory.id)
        response.directories.append(directory_answer)
        for topic in directory.topics:
            topic_answer = TopicDataResponse(topic_id=topic.topic_id)
            directory_answer.topics.append(topic_answer)
            for partition in topic.partitions:
                index = partition.partition_index
                answer = PartitionDataResponse(partition_index=index)
                topic_answer.partitions.append(answer)
                try:
                    record = _assign(
                        state, request.broker_id, directory.id, topic.topic_id, index, version
                    )
                except Refusal as refusal:
                    answer.error_code = refusal.error
                else:
                    if record is not None:
                        result.records.append(record)
    return result


def _assign(
    state: ControllerState,
    broker_id: int,
    directory_id: UUID,
    topic_id: UUID,
    partition_index: int,
    version: int,
) -> VersionedRecord | None:
    topic = state.image.topics.topics_by_id.get(topic_id)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    partition = topic.partitions.get(partition_index)
    if partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")
    if broker_id not in partition.replicas:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker has no replica of it")
    broker = state.broker(broker_id)
    assert broker is not None
    if directory_id not in broker.directories:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the broker did not register the directory")
    if version == 0 or partition.directory(broker_id) == directory_id:
        return None
    directories = [
        directory_id if replica == broker_id else directory
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
    ]
    record = PartitionChangeRecord(
        partition_id=partition_index, topic_id=topic_id, directories=directories
    )
    return record, version
