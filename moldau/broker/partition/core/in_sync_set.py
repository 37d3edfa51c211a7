"""The in-sync replicas of a partition: what the controller has committed, and what is proposed.

Owns the one proposal that may be under way, and what counts as in sync meanwhile. Must not know
offsets or time. Invariants: at most one proposal at a time; while one may have been committed
without our knowing, its additions count (`maximal`), so that nothing is taken for replicated that
one of them lacks; an answer to anything else than the proposal under way changes nothing.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from moldau.broker.partition.core.values import RECOVERED, IsrChange, PartitionState
from moldau.protocol.errors import ErrorCode

NOTHING_COMMITTED: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
"""The controller looked at the very state the proposal was made for, and left it. As copies of a
proposal reach it in order, an earlier one has not been committed either.
"""

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
        maximal: committed ones and proposed additions; a proposed removal still counts.
        pending: the proposal that is under way, or was refused without our knowing the state.
    """

    __slots__ = ("_is_awaiting_metadata", "committed", "maximal", "members", "pending")

    def __init__(self) -> None:
        self.members: tuple[int, ...] = ()
        self.committed: frozenset[int] = frozenset()
        self.maximal: frozenset[int] = frozenset()
        self.pending: IsrChange | None = None
        self._is_awaiting_metadata = False

    def commit(self, members: Iterable[int]) -> None:
        """The controller's word; whatever is proposed stays proposed."""
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
        self._is_awaiting_metadata = False
        self._update_maximal()

    def answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrAnswer:
        """The controller's answer, or that there was none (any other error).

        A committed one is taken over if it is not older than the proposal.
        """
        if change is not self.pending or self._is_awaiting_metadata:
            return IsrAnswer.STALE
        if error is ErrorCode.NONE and state is not None:
            if (
                state.leader_epoch != change.leader_epoch
                or state.partition_epoch < change.partition_epoch
            ):
                return self._await_metadata()
            self.pending = None
            self.commit(state.isr)
            return IsrAnswer.COMMITTED
        if error in NOTHING_COMMITTED:
            self.withdraw()
            return IsrAnswer.REFUSED
        if error in WAIT_FOR_METADATA:
            return self._await_metadata()
        return IsrAnswer.RETRY

    def _await_metadata(self) -> IsrAnswer:
        self._is_awaiting_metadata = True
        return IsrAnswer.REFUSED

    def _update_maximal(self) -> None:
        pending = self.pending
        self.maximal = self.committed if pending is None else self.committed.union(pending.isr)


def proposal(
    state: PartitionState, isr: tuple[int, ...], broker_epochs: dict[int, int], reason: str
) -> IsrChange:
    """A change of `state`; whoever leads and proposes anything has recovered (KIP-704)."""
    return IsrChange(
        state.leader_epoch, state.partition_epoch, isr, broker_epochs, RECOVERED, reason
    )
