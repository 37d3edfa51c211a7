"""What brokers report about their replicas: AlterPartition and AssignReplicasToDirs.

AlterPartition: a leader reports which replicas are in sync, or that it has recovered (KIP-497,
KIP-704, KIP-841, KIP-903). AssignReplicasToDirs: a broker says in which log directory each of its
replicas lies (KIP-858).

Owns: the checks and the PartitionChangeRecords. Must not: elect a leader by itself; but a report
may complete a reassignment, which may move the leader.
Invariants: only the current leader, under its current broker, leader and partition epoch, changes
an ISR, and only live brokers under their current broker epoch get into one, with replicas whose
directories they have. Each AlterPartition that is taken over raises the partition epoch, also one
that changes nothing else: a leader whose proposal was refused makes sure by it that no copy of that
proposal, late over an older connection, is taken over after all.
Only the owner of a replica, under its current broker epoch, moves it; a replica in a directory that
its broker did not register, or lost, neither leads nor is in sync; one whose log is lost, or that
moves out of a directory that is not registered, is no eligible leader either (KIP-966). A lost log
begins a leader epoch: what its leader knows of it, and asks for because of that, is void.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from uuid import UUID

from moldau.controller.core.partition_changes import PartitionChanger, PartitionTarget
from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.result import Asked, ControllerResult, Refusal, VersionedRecord
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import DIRECTORY_ASSIGNMENT_LEVEL, partition_record_version
from moldau.metadata.image import PartitionRegistration, TopicImage
from moldau.metadata.image.topics import merge_partition_change
from moldau.metadata.image.values import LOST_DIRECTORY, RECOVERED, RECOVERING
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p56_alter_partition as p56
from moldau.protocol.messages import p73_assign_replicas_to_dirs as p73
from moldau.protocol.metadata_records import PartitionChangeRecord

UNCHECKED_BROKER_EPOCH = -1
"""A member named without its broker epoch: by version 2, or by a leader that does not know it."""


def alter_partition(
    state: ControllerState, request: p56.AlterPartitionRequest, _asked: Asked
) -> ControllerResult[p56.AlterPartitionResponse]:
    """Take over ISRs and recovery states; each partition on its own.

    A leader reports all its partitions at once, which after the loss of a follower may be a great
    many: they are taken over in steps.
    """
    if not request.topics:  # from whatever sender, as Apache Kafka
        return ControllerResult(p56.AlterPartitionResponse())
    leader = state.broker(request.broker_id)
    if leader is None or leader.broker_epoch != request.broker_epoch:
        return ControllerResult(p56.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    response = p56.AlterPartitionResponse()
    pending: list[tuple[p56.TopicDataResponse, p56.PartitionData]] = []
    for wanted_topic in request.topics:
        answers = p56.TopicDataResponse(topic_id=wanted_topic.topic_id)
        response.topics.append(answers)
        pending += [(answers, wanted) for wanted in wanted_topic.partitions]
    return _step(state, request.broker_id, response, iter(pending), set())


def _step(
    state: ControllerState,
    broker_id: int,
    response: p56.AlterPartitionResponse,
    pending: Iterator[tuple[p56.TopicDataResponse, p56.PartitionData]],
    seen: set[PartitionKey],
) -> ControllerResult[p56.AlterPartitionResponse]:
    result = ControllerResult(response)
    changer = PartitionChanger(state)
    looked_at = 0
    for answers, wanted in islice(pending, state.settings.max_changes_per_step):
        looked_at += 1
        topic = state.image.topics.topics_by_id.get(answers.topic_id)
        key = (answers.topic_id, wanted.partition_index)
        error = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None:
            error = _check(state, topic, broker_id, wanted)
            if error is ErrorCode.NONE and key in seen:
                error = ErrorCode.INVALID_REQUEST  # its partition epoch is taken already
        if topic is None or error is not ErrorCode.NONE:
            answers.partitions.append(_refused(wanted, error))
            continue
        seen.add(key)
        answer, record = _alter(changer, state.metadata_level, topic, wanted)
        answers.partitions.append(answer)
        result.records.append(record)
    if looked_at == state.settings.max_changes_per_step:
        result.resume = lambda _asked: _step(state, broker_id, response, pending, seen)
    return result


def _check(
    state: ControllerState, topic: TopicImage, broker_id: int, wanted: p56.PartitionData
) -> ErrorCode:
    partition = topic.partitions.get(wanted.partition_index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # A leader that knows more than this controller has heard from a newer one.
    if (
        wanted.leader_epoch > partition.leader_epoch
        or wanted.partition_epoch > partition.partition_epoch
    ):
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = _members(wanted)
    isr = [member.broker_id for member in members]
    if len(set(isr)) != len(isr) or not set(isr).issubset(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if partition.leader not in isr or not _is_legal_recovery(partition, wanted, isr):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(state, member) for member in members):
        return ErrorCode.INELIGIBLE_REPLICA
    joining = set(isr).difference(partition.isr)
    if not all(state.has_online_directory(partition, broker_id) for broker_id in joining):
        # A leader may not have heard yet that the log of a follower is gone (KIP-858).
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _members(wanted: p56.PartitionData) -> list[p56.BrokerState]:
    """The new ISR, whichever version brought it."""
    if wanted.new_isr_with_epochs:
        return wanted.new_isr_with_epochs
    return [
        p56.BrokerState(broker_id=broker_id, broker_epoch=UNCHECKED_BROKER_EPOCH)
        for broker_id in wanted.new_isr
    ]


def _is_legal_recovery(
    partition: PartitionRegistration, wanted: p56.PartitionData, isr: Sequence[int]
) -> bool:
    """A recovering leader is alone in the ISR, and no leader goes back to recovering by itself."""
    if wanted.leader_recovery_state == RECOVERED:
        return True
    return (
        wanted.leader_recovery_state == RECOVERING
        and len(isr) == 1
        and partition.leader_recovery_state == RECOVERING
    )


def _is_eligible(state: ControllerState, member: p56.BrokerState) -> bool:
    broker = state.broker(member.broker_id)
    return (
        broker is not None
        and state.is_active(member.broker_id)
        and member.broker_epoch in (UNCHECKED_BROKER_EPOCH, broker.broker_epoch)
    )


def _alter(
    changer: PartitionChanger, metadata_level: int, topic: TopicImage, wanted: p56.PartitionData
) -> tuple[p56.PartitionDataResponse, VersionedRecord]:
    partition = topic.partitions[wanted.partition_index]
    target = PartitionTarget(
        isr=[member.broker_id for member in _members(wanted)],
        leader_recovery_state=wanted.leader_recovery_state,
    )
    record = changer.change(topic, wanted.partition_index, partition, target)
    if record is None:
        same = PartitionChangeRecord(
            partition_id=wanted.partition_index, topic_id=topic.topic_id, isr=list(partition.isr)
        )
        record = same, partition_record_version(metadata_level)
    change = record[0]
    assert isinstance(change, PartitionChangeRecord)
    partition = merge_partition_change(partition, change)
    if partition.leader_epoch != wanted.leader_epoch:
        # The new ISR completed a reassignment, and with it the leader epoch grew. The sender has
        # to learn the new state from the log before it asks for anything else.
        return _refused(wanted, ErrorCode.NEW_LEADER_ELECTED), record
    answer = p56.PartitionDataResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.NONE,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
    return answer, record


def _refused(wanted: p56.PartitionData, error: ErrorCode) -> p56.PartitionDataResponse:
    return p56.PartitionDataResponse(partition_index=wanted.partition_index, error_code=error)


def assign_replicas_to_directories(
    state: ControllerState, request: p73.AssignReplicasToDirsRequest, _asked: Asked
) -> ControllerResult[p73.AssignReplicasToDirsResponse]:
    """Note the directories a broker chose for its replicas; each partition on its own."""
    error = state.check_broker_epoch(request.broker_id, request.broker_epoch)
    if error is ErrorCode.NONE and state.metadata_level < DIRECTORY_ASSIGNMENT_LEVEL:
        error = ErrorCode.UNSUPPORTED_VERSION
    response = p73.AssignReplicasToDirsResponse(error_code=error)
    result = ControllerResult(response)
    if error is not ErrorCode.NONE:
        return result
    changer = PartitionChanger(state)
    for directory in request.directories:
        is_online = state.is_online_directory(directory.id, request.broker_id)
        directory_answer = p73.DirectoryDataResponse(id=directory.id)
        response.directories.append(directory_answer)
        for topic in directory.topics:
            topic_answer = p73.TopicDataResponse(topic_id=topic.topic_id)
            directory_answer.topics.append(topic_answer)
            for partition in topic.partitions:
                index = partition.partition_index
                answer = p73.PartitionDataResponse(partition_index=index)
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
