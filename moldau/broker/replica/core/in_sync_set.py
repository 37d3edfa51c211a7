"""The in-sync replicas of a partition: what the controller has committed, and what is proposed.

Owns the one proposal that may be under way, and which replicas count as in sync in the meantime;
`partition_core` decides when one joins or leaves.
Must not know offsets or time. Invariants: at most one proposal at a time; every replica that may be
elected cleanly counts (`maximal`), so that no record counts as replicated that one of them lacks;
an answer to anything else than the proposal under way changes nothing.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it), KIP-966 (eligible leader
replicas).

Why a replica that left the ISR counts until the metadata confirms it:
1. `min.insync.replicas` is raised from 1 to 2; the leader's metadata lags.
2. The leader proposes to shrink the ISR from {1, 2} to {1}. For the controller that is less than
   the minimum, so it keeps 2 as an eligible leader replica.
3. The answer overtakes the metadata. If the leader committed alone now, under the old minimum, and
   died, 2 would be elected cleanly without those records.
The metadata log has the new minimum before the shrink: metadata that shows the shrink shows both.

Why a replica whose addition was refused counts until the partition epoch changes:
1. The leader proposes to let 2 in. The request gets no answer, and lies in an older connection.
2. 2 is fenced; the proposal, sent again over another connection, is refused. 2 is unfenced.
3. The first copy reaches the controller, which commits it: it is made for the partition epoch in
   force. If the leader had committed alone since the refusal, and died, 2 would be elected cleanly
   without those records.
Each proposal that the controller commits makes the older copies void. After a refused addition the
leader therefore proposes the ISR as it is, or a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from moldau.protocol.errors import ErrorCode

RECOVERED: Final = 0
RECOVERING: Final = 1

NOTHING_COMMITTED: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
"""The controller judged the very state the proposal was made for, and left it: no copy has been
committed so far. A copy that was sent before may still be committed."""

WAIT_FOR_METADATA: Final = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The state has changed, perhaps by an earlier copy of the same proposal whose answer was lost:
only metadata can tell. Until it does, the additions keep counting and nothing else is proposed."""


class PartitionState(NamedTuple):
    """What the controller decided about a partition, as this broker learned it.

    `leader_recovery_state` is RECOVERING after an unclean election, until the leader reports that
    it has recovered (KIP-704).
    """

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, eq=False)
class IsrChange:
    """A proposal of the leader to the controller (AlterPartition, KIP-497).

    Two with the same content are still two. `broker_epochs` holds one for every member of `isr`, -1
    where it is unknown (KIP-903); `reason` is for the log.
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    leader_recovery_state: int
    reason: str


class IsrAnswer(Enum):
    """What the answer to a proposal comes to."""

    STALE = "stale"  # the proposal is not under way any more
    COMMITTED = "committed"
    REFUSED = "refused"
    RETRY = "retry"


@dataclass(slots=True, eq=False)
class InSyncSet:
    """Committed members in the controller's order, and the proposal under way.

    Attributes:
        committed: the members by the controller's last word.
        is_awaiting_metadata: only metadata can tell what became of the proposal.
        left: replicas that left by an answer which the metadata has not confirmed.
        maximal: committed members, proposed and refused additions, and those that left; a replica
            whose removal is proposed still counts.
        pending: the proposal that is under way, or was refused in a state unknown here.
        refused: additions that were refused in this partition epoch.
    """

    members: tuple[int, ...] = ()
    committed: frozenset[int] = frozenset()
    maximal: frozenset[int] = frozenset()
    pending: IsrChange | None = None
    refused: frozenset[int] = frozenset()
    is_awaiting_metadata: bool = False
    left: frozenset[int] = frozenset()

    def apply_metadata(self, members: Iterable[int]) -> None:
        """Take over metadata that is not older than any answer; a proposal stays under way."""
        self.left = frozenset()
        self._commit(members)

    def _commit(self, members: Iterable[int]) -> None:
        self.members = tuple(members)
        self.committed = frozenset(self.members)
        self._update_maximal()

    def propose(self, change: IsrChange) -> None:
        assert self.pending is None, "one proposal at a time"
        self.pending = change
        self._update_maximal()

    def withdraw(self) -> None:
        """Drop the proposal: by newer metadata the controller refuses it or has committed it."""
        self.pending = None
        self.refused = frozenset()
        self.is_awaiting_metadata = False
        self._update_maximal()

    def answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrAnswer:
        """Take over the controller's answer; any other error means that there was none.

        A committed state counts if it is not older than the proposal. It has the partition epoch of
        the proposal when Apache Kafka's controller is asked for the ISR as it is: that controller
        writes nothing then, and a late copy stays possible, as it is for Kafka's own leaders.
        """
        if change is not self.pending or self.is_awaiting_metadata:
            return IsrAnswer.STALE
        if error is ErrorCode.NONE and state is not None:
            if (
                state.leader_epoch != change.leader_epoch
                or state.partition_epoch < change.partition_epoch
            ):
                return self._await_metadata()
            self.pending = None
            self.refused = frozenset()
            self.left = self.left.union(self.committed).difference(state.isr)
            self._commit(state.isr)
            return IsrAnswer.COMMITTED
        if error in NOTHING_COMMITTED:
            self.pending = None
            self.refused = self.refused.union(change.isr).difference(self.committed)
            self._update_maximal()
            return IsrAnswer.REFUSED
        if error in WAIT_FOR_METADATA:
            return self._await_metadata()
        return IsrAnswer.RETRY

    def _await_metadata(self) -> IsrAnswer:
        self.is_awaiting_metadata = True
        return IsrAnswer.REFUSED

    def _update_maximal(self) -> None:
        pending = self.pending
        proposed = () if pending is None else pending.isr
        self.maximal = self.committed.union(self.left, self.refused, proposed)
