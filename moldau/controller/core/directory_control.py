"""AssignReplicasToDirs: in which log directory each replica lies (KIP-858).

Owns: the checks and the PartitionChangeRecords. Invariant: only the owner of a replica, under its
current broker epoch, moves it; a replica in a directory that its broker did not register, or lost,
neither leads nor is in sync; one whose log is lost, or that moves out of a directory that is not
registered, is no eligible leader either (KIP-966).
"""

from __future__ import annotations

from uuid import UUID

from moldau.controller.core.broker_changes import PartitionChanger
from moldau.controller.core.leader_election import PartitionTarget
from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.producer_id_control import check_broker_epoch
from moldau.controller.core.result import ControllerResult, Refusal, VersionedRecord
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import supports_directory_assignment
from moldau.metadata.image.values import LOST_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryDataResponse,
    PartitionDataResponse,
    TopicDataResponse,
)


def assign_replicas_to_directories(
    state: ControllerState, settings: ControllerSettings, request: AssignReplicasToDirsRequest
) -> ControllerResult[AssignReplicasToDirsResponse]:
    """Note the directories a broker chose for its replicas; each partition on its own."""
    error = check_broker_epoch(state, request.broker_id, request.broker_epoch)
    if error is ErrorCode.NONE and not supports_directory_assignment(state.metadata_level):
        error = ErrorCode.UNSUPPORTED_VERSION
    response = AssignReplicasToDirsResponse(error_code=error)
    result = ControllerResult(response)
    if error is not ErrorCode.NONE:
        return result
    changer = PartitionChanger(state, settings)
    for directory in request.directories:
        is_online = state.is_online_directory(directory.id, request.broker_id)
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
                        state,
                        changer,
                        (request.broker_id, directory.id, is_online),
                        (topic.topic_id, index),
                    )
                except Refusal as refusal:
                    answer.error_code = refusal.error
                else:
                    if record is not None:
                        result.records.append(record)
    return result


def _assign(
    state: ControllerState,
    changer: PartitionChanger,
    wanted: tuple[int, UUID, bool],
    key: PartitionKey,
) -> VersionedRecord | None:
    """A replica in a directory that its broker lost, or never named, is out of the ISR, too."""
    broker_id, directory_id, is_online = wanted
    topic_id, partition_index = key
    topic = state.image.topics.topics_by_id.get(topic_id)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    partition = topic.partitions.get(partition_index)
    if partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")
    if broker_id not in partition.replicas:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker has no replica of it")
    current = partition.directory(broker_id)
    # The log was in a directory that the broker has no more, and is in another one now: it can only
    # have been made empty there. From LOST_DIRECTORY the broker itself calls the log back that it
    # gave up, or one that it began when the replica had left ISR and ELR.
    is_gone = current not in (directory_id, LOST_DIRECTORY) and not state.has_online_directory(
        partition, broker_id
    )
    isr = partition.isr
    if not is_online or is_gone:
        isr = tuple(replica for replica in isr if replica != broker_id)
    # Of a lost log nothing is left that was committed. One in a directory that is merely offline
    # may be back.
    target = PartitionTarget(
        isr=isr,
        lost=(broker_id,) if is_gone or directory_id == LOST_DIRECTORY else (),
        gone=(broker_id,) if is_gone else (),
        directories={broker_id: directory_id},
    )
    return changer.change(topic, partition_index, partition, target)
