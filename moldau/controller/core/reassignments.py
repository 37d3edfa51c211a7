"""AlterPartitionReassignments and ListPartitionReassignments: moving replicas (KIP-455, KIP-860).

While replicas move, a partition has those that stay, those that come and those that go. The ISR
ends a reassignment (`partition_changes`); one that needs no waiting ends with the record that
begins it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moldau.controller.core.partition_changes import PartitionChanger, PartitionTarget
from moldau.controller.core.placement import check_manual_replicas
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    Refusal,
    VersionedRecord,
    refusals_to,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.image import PartitionRegistration, TopicImage
from moldau.metadata.image.values import RECOVERING
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p45_alter_partition_reassignments as p45
from moldau.protocol.messages import p46_list_partition_reassignments as p46


def alter_partition_reassignments(
    state: ControllerState, request: p45.AlterPartitionReassignmentsRequest, _asked: Asked
) -> Steps[ControllerResult[p45.AlterPartitionReassignmentsResponse]]:
    """Start, change or cancel (null) reassignments; each partition on its own."""
    response = p45.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    result = ControllerResult(response)
    if sum(len(topic.partitions) for topic in request.topics) > MAX_RECORDS_PER_REQUEST:
        most = f"a request may move the replicas of at most {MAX_RECORDS_PER_REQUEST} partitions"
        Refusal.too_many(most).tell(response)
        return result
    changer = PartitionChanger(state)
    seen: set[tuple[str, int]] = set()
    for wanted_topic in request.topics:
        answers = p45.ReassignableTopicResponse(name=wanted_topic.name)
        response.responses.append(answers)
        topic = state.topic(wanted_topic.name)
        yield
        for wanted in wanted_topic.partitions:
            yield
            key = (wanted_topic.name, wanted.partition_index)
            answer = p45.ReassignablePartitionResponse(
                partition_index=wanted.partition_index, error_message=None
            )
            answers.partitions.append(answer)
            with refusals_to(answer):
                if key in seen:
                    raise Refusal.invalid("the partition is named twice")
                seen.add(key)
                record = _reassign(
                    state, changer, topic, wanted, request.allow_replication_factor_change
                )
                if record is not None:
                    result.records.append(record)
    return result


def _reassign(
    state: ControllerState,
    changer: PartitionChanger,
    topic: TopicImage | None,
    wanted: p45.ReassignablePartition,
    allow_replication_factor_change: bool,
) -> VersionedRecord | None:
    partition = None if topic is None else topic.partitions.get(wanted.partition_index)
    if topic is None or partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
    if wanted.replicas is None:
        target = _reverted(state, topic.name, partition)
    else:
        check_manual_replicas(
            state, wanted.partition_index, wanted.replicas, len(wanted.replicas), needs_live=False
        )
        if not allow_replication_factor_change:
            _check_replication_factor(partition, wanted.replicas)
        target = _started(partition, wanted.replicas)
    return changer.change(topic, wanted.partition_index, partition, target)


def _check_replication_factor(partition: PartitionRegistration, replicas: Sequence[int]) -> None:
    """The size to keep is the one that a running reassignment is about to reach (KIP-860)."""
    current = len(partition.replicas) - len(partition.removing_replicas)
    if len(replicas) != current:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {current} to {len(replicas)}",
        )


def _started(partition: PartitionRegistration, replicas: Sequence[int]) -> PartitionTarget:
    """All that stay or come, in the order asked for, then those that go.

    What an earlier reassignment was adding and this one does not want is removed like the rest.
    """
    removing = sorted(set(partition.replicas).difference(replicas))
    # An earlier reassignment's additions are still additions until they have caught up.
    adding = sorted(
        replica
        for replica in replicas
        if replica not in partition.replicas or replica in partition.adding_replicas
    )
    return PartitionTarget(
        replicas=[*replicas, *removing], removing_replicas=removing, adding_replicas=adding
    )


def _reverted(
    state: ControllerState, topic_name: str, partition: PartitionRegistration
) -> PartitionTarget:
    """Back to the replicas before the reassignment: what was added goes, the rest stays."""
    if not partition.is_reassigning:
        raise Refusal(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
        )
    replicas = _without(partition.replicas, partition.adding_replicas)
    if not replicas:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "there are no replicas to go back to")
    isr = _without(partition.isr, partition.adding_replicas)
    if not isr and (partition.isr or partition.elr):
        eligible: list[int] = []
        if state.eligible_leader_replicas_enabled:
            eligible = _without(partition.elr, partition.adding_replicas)
        live = [
            replica
            for replica in replicas
            if state.is_active(replica) and state.has_online_directory(partition, replica)
        ]
        # A replica that is away is no reason to give up a leader that is alive.
        is_clean = bool(eligible) if not partition.isr else not set(eligible).isdisjoint(live)
        if not is_clean and not state.unclean_election_allowed(topic_name):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "only replicas that were added may lead: going back needs an unclean election, "
                "which unclean.leader.election.enable does not allow",
            )
        if not eligible and not live:
            return PartitionTarget(
                isr=replicas[:1],
                replicas=replicas,
                removing_replicas=(),
                adding_replicas=(),
                leader_recovery_state=RECOVERING,
            )
    # Without any in sync, the election takes an eligible replica, or an unclean leader.
    return PartitionTarget(isr=isr, replicas=replicas, removing_replicas=(), adding_replicas=())


def _without(replicas: Iterable[int], excluded: Sequence[int]) -> list[int]:
    return [replica for replica in replicas if replica not in excluded]


def list_partition_reassignments(
    state: ControllerState, request: p46.ListPartitionReassignmentsRequest, _asked: Asked
) -> Steps[ControllerResult[p46.ListPartitionReassignmentsResponse]]:
    """Which replicas are being moved, of the named partitions or of all (null)."""
    response = p46.ListPartitionReassignmentsResponse(error_message=None)
    answers: dict[str, p46.OngoingTopicReassignment] = {}
    for topic, partition_index in _asked_for(state, request):
        yield
        partition = topic.partitions.get(partition_index)
        if partition is None or not partition.is_reassigning:
            continue
        answer = answers.setdefault(topic.name, p46.OngoingTopicReassignment(name=topic.name))
        answer.partitions.append(
            p46.OngoingPartitionReassignment(
                partition_index=partition_index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
        )
    response.topics = list(answers.values())
    return ControllerResult(response)


def _asked_for(
    state: ControllerState, request: p46.ListPartitionReassignmentsRequest
) -> Iterator[tuple[TopicImage, int]]:
    if request.topics is None:
        for topic_id, partition_index in state.index.reassigning():
            yield state.image.topics.topics_by_id[topic_id], partition_index
        return
    for wanted in request.topics:
        topic = state.topic(wanted.name)
        if topic is not None:
            for partition_index in dict.fromkeys(wanted.partition_indexes):
                yield topic, partition_index
