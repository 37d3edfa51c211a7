"""The in-sync replicas of a partition: what the controller has committed, and what is proposed.

Owns the one proposal that may be under way, and what counts as in sync meanwhile. Must not know
offsets or time. Invariants: at most one proposal at a time; every replica that may be elected
cleanly counts (`maximal`), so that nothing is taken for replicated that one of them lacks; an
answer to anything else than the proposal under way changes nothing.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it), KIP-966 (eligible
leader replicas).

Why a replica that left the ISR counts until the metadata say so:
1. `min.insync.replicas` is raised from 1 to 2; the leader's metadata lag.
2. The leader proposes to shrink the ISR from {1, 2} to {1}. The controller, for which that is less
   than the minimum, keeps 2 as an eligible leader replica.
3. The answer overtakes the metadata. If the leader committed alone now, under the old minimum, and
   died, 2 would be elected cleanly without those records.
The metadata log has the new minimum before the shrink: with the one, the leader knows the other.

Why a replica whose addition was refused counts until the partition epoch is another:
1. The leader proposes to let 2 in. The request gets no answer, and lies in an older connection.
2. 2 is fenced; the proposal, sent again over another connection, is refused. 2 is unfenced.
3. The first copy reaches the controller, which takes it over: it is made for the partition epoch in
   force. If the leader had committed alone since the refusal, and died, 2 would be elected cleanly
   without those records.
Any proposal that the controller takes over makes the older copies void. After a refused addition
the leader therefore proposes the ISR as it is, or a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from moldau.broker.replica.core.values import RECOVERED, IsrChange, PartitionState
from moldau.protocol.errors import ErrorCode

NOTHING_COMMITTED: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
"""The controller looked at the very state the proposal was made for, and left it: no copy has been
committed so far. One that was sent before may be yet."""

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


class IsrAnswer(Enum):
    """What the answer to a proposal comes to."""

    STALE = "stale"  # nobody waits for it any more
    COMMITTED = "committed"
    REFUSED = "refused"
    RETRY = "retry"


class InSyncSet:
    """Committed members in the controller's order, and the proposal under way.

    Attributes:
        committed: as last heard from the controller.
        is_awaiting_metadata: only metadata can tell what became of the proposal.
        left: those that left by an answer which the metadata have not confirmed.
        maximal: committed ones, proposed and refused additions, and those that left; a proposed
            removal still counts.
        pending: the proposal that is under way, or was refused without our knowing the state.
        refused: additions that were refused in this partition epoch.
    """

    __slots__ = (
        "committed",
        "is_awaiting_metadata",
        "left",
        "maximal",
        "members",
        "pending",
        "refused",
    )

    def __init__(self) -> None:
        self.members: tuple[int, ...] = ()
        self.committed: frozenset[int] = frozenset()
        self.maximal: frozenset[int] = frozenset()
        self.pending: IsrChange | None = None
        self.refused: frozenset[int] = frozenset()
        self.is_awaiting_metadata = False
        self.left: frozenset[int] = frozenset()

    def apply_metadata(self, members: Iterable[int]) -> None:
        """Metadata that are not older than any answer; what is proposed stays proposed."""
        self.left = frozenset()
        self._commit(members)

    def _commit(self, members: Iterable[int]) -> None:
        self.members = tuple(members)
        self.committed = frozenset(self.members)
        self._update_maximal()

    def propose(self, change: IsrChange) -> None:
        """A proposal leaves for the controller."""
        assert self.pending is None, "one proposal at a time"
        self.pending = change
        self._update_maximal()

    def withdraw(self) -> None:
        """Newer metadata: the controller will refuse the proposal, or has committed it."""
        self.pending = None
        self.refused = frozenset()
        self.is_awaiting_metadata = False
        self._update_maximal()

    def answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrAnswer:
        """The controller's answer, or that there was none (any other error).

        A committed one is taken over if it is not older than the proposal. It names the partition
        epoch of the proposal when Apache Kafka's controller is asked for the ISR as it is: that
        one writes nothing then, and a late copy stays possible, as it is for Kafka's own leaders.
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


def proposal(
    state: PartitionState, isr: tuple[int, ...], broker_epochs: dict[int, int], reason: str
) -> IsrChange:
    """A change of `state`; whoever leads and proposes anything has recovered (KIP-704)."""
    return IsrChange(
        state.leader_epoch, state.partition_epoch, isr, broker_epochs, RECOVERED, reason
    )
