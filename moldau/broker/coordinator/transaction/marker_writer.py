"""Writing transaction markers to the partitions that this broker leads.

Owns one WriteTxnMarkers request from its first append until every partition is decided. Must not
choose where markers go, or send any (`marker_sender` does). Invariants: `done` is called exactly
once; a partition is answered NONE only when its marker is committed; a marker for a partition of
`__consumer_offsets` goes through the group coordinator's state machine, the only way into that log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import Producer, TransactionEnd
from moldau.broker.replica.partition import ProduceWait
from moldau.broker.replica.purgatory import DelayedOperation
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p27_write_txn_markers as p27

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.state import GroupState
    from moldau.broker.coordinator.runtime import CoordinatorRuntime
    from moldau.broker.replica.replica_manager import ReplicaManager

_NOT_HERE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of a group coordinator; the sender of markers looks for a partition's leader instead."""

OnWritten = Callable[[p27.WriteTxnMarkersResponse], None]


def write_markers(
    manager: ReplicaManager,
    groups: CoordinatorRuntime[GroupState],
    timeout_ms: int,
    request: p27.WriteTxnMarkersRequest,
    done: OnWritten,
    refusal: ErrorCode = ErrorCode.NONE,
) -> Iterator[None]:
    """Append every marker, and answer when all are committed, refused, or late; a step for each
    partition of each. Belongs to the data loop.

    Args:
        groups: of the group coordinator, which has partitions of transactional offsets.
        timeout_ms: how long a marker may take to be committed.
        done: called once, at once or later, with an answer for each marker and partition: NONE,
            UNKNOWN_TOPIC_OR_PARTITION (not on this broker), NOT_LEADER_OR_FOLLOWER,
            NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT (not committed in time, maybe later),
            INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, INVALID_REQUEST.
        refusal: the answer for all of them; then none is written.
    """
    writing = _Writing(manager, groups, done)
    for marker in request.markers:
        yield from writing.write(marker, refusal)
    writing.start_waiting(timeout_ms)
    manager.complete_soon()


class _Writing(DelayedOperation):
    """States: writing (until `start_waiting`) → waiting → answered."""

    def __init__(
        self, manager: ReplicaManager, groups: CoordinatorRuntime[GroupState], done: OnWritten
    ) -> None:
        super().__init__()
        self._manager = manager
        self._groups = groups
        self._done = done
        self._results: dict[int, p27.WritableTxnMarkerResult] = {}
        self._commit_waits: dict[ProduceWait, None] = {}
        self._undecided: dict[int, p27.WritableTxnMarkerPartitionResult] = {}
        """The slots without an error code, by identity."""
        self._is_started = False

    def write(self, marker: p27.WritableTxnMarker, refusal: ErrorCode) -> Iterator[None]:
        result = self._results.setdefault(
            marker.producer_id, p27.WritableTxnMarkerResult(producer_id=marker.producer_id)
        )
        for topic in marker.topics:
            slots: list[p27.WritableTxnMarkerPartitionResult] = []
            result.topics.append(
                p27.WritableTxnMarkerTopicResult(name=topic.name, partitions=slots)
            )
            for index in topic.partition_indexes:
                slot = p27.WritableTxnMarkerPartitionResult(partition_index=index)
                slots.append(slot)
                self._undecided[id(slot)] = slot
                if refusal is ErrorCode.NONE:
                    self._write_one(marker, topic.name, slot)
                else:
                    self._decide(slot, refusal)
                yield

    def _write_one(
        self, marker: p27.WritableTxnMarker, topic: str, slot: p27.WritableTxnMarkerPartitionResult
    ) -> None:
        partition = self._manager.get(topic, slot.partition_index)
        if partition is None:
            self._decide(slot, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            self._decide(slot, ErrorCode.INVALID_REQUEST)
            return
        if topic == CONSUMER_OFFSETS.topic:
            self._groups.complete_transaction(
                slot.partition_index,
                TransactionEnd(
                    Producer(marker.producer_id, marker.producer_epoch),
                    marker.transaction_result,
                    marker.coordinator_epoch,
                    marker.transaction_version,
                ),
                lambda error: self._decide(
                    slot, ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_HERE else error
                ),
            )
            return
        appended = partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            transaction_version=marker.transaction_version,
        )
        if appended.error is not ErrorCode.NONE:
            self._decide(slot, appended.error)
            return
        wait = ProduceWait(self, partition, appended.last_offset + 1, slot)
        error = partition.wait_for_commit(wait)
        if error is None:
            self._commit_waits[wait] = None
        else:
            self._decide(slot, error)

    def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
        """A partition's high watermark passed the marker, or never will here."""
        del self._commit_waits[wait]
        self._decide(wait.slot, error)

    def _decide(self, slot: p27.WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
        if self._undecided.pop(id(slot), None) is None:
            return  # too late: the request has been answered
        slot.error_code = error
        if self._is_started and not self._undecided:
            self._answer()

    def start_waiting(self, timeout_ms: int) -> None:
        """All markers were appended or refused."""
        self._is_started = True
        if not self._undecided:
            self._answer()
            return
        if not self._manager.produce_purgatory.add(self, timeout_ms):
            self.on_timeout()

    def on_timeout(self) -> None:
        """The sender will send the markers that are not committed again."""
        waits, self._commit_waits = self._commit_waits, {}
        for wait in waits:
            wait.partition.produce_waits.pop(wait, None)
        undecided, self._undecided = self._undecided, {}
        for slot in undecided.values():
            slot.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._answer()

    def on_dropped(self) -> None:
        """Nothing to do: markers are written without the connection too."""

    def _answer(self) -> None:
        self._manager.produce_purgatory.remove(self)
        self._done(p27.WriteTxnMarkersResponse(markers=list(self._results.values())))
