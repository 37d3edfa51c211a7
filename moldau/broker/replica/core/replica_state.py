"""What one replica of a partition may do: its role, its leader epoch, its high watermark.

Owns the decisions a leader takes: who may read and write under which leader epoch, whether enough
replicas are in sync, how far the log is committed, which change of the ISR to propose. Does no I/O,
knows no log: log end offsets come in as numbers. Invariants: the high watermark of a leader never
goes back within one leader epoch, never passes its own log end offset nor that of any replica that
is or may be in sync, and does not move while fewer than `min.insync.replicas` are; a state older
than the one applied changes nothing.
Sources: KIP-101 and KIP-320 (leader epochs), KIP-497 (AlterPartition), KIP-966 (high watermark
under min.insync.replicas).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from moldau.broker.replica.core.in_sync_set import InSyncSet, IsrAnswer, proposal
from moldau.broker.replica.core.replica_progress import NEVER_MS, ReplicaProgress
from moldau.broker.replica.core.values import (
    RECOVERED,
    RECOVERING,
    UNKNOWN_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    ClusterView,
    FollowerFetch,
    IsrChange,
    PartitionState,
    ReplicaFigures,
)
from moldau.protocol.errors import ErrorCode

NO_LEADER: Final = -1
UNKNOWN_LEADER_EPOCH: Final = -1
ACKS_ALL: Final = -1

REFUSAL_PAUSE_MS: Final = 1_000
"""How long a replica that the controller refused is not proposed again, unless brokers change. Its
reason may be one that the leader cannot see, and each attempt ends with a metadata record."""


class ReplicaRole(Enum):
    """What this broker is to the partition."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


LEGAL_TRANSITIONS: Final[dict[ReplicaRole, frozenset[ReplicaRole]]] = {
    ReplicaRole.NONE: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER}),
    ReplicaRole.LEADER: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.NONE}),
    ReplicaRole.FOLLOWER: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.NONE}),
}
"""From a role to the roles that may follow it; NONE is where a replica begins and ends."""


class PartitionCore:
    """One replica's state; `apply_state` moves it along LEGAL_TRANSITIONS.

    Args:
        cluster: the clock and the other brokers.

    A leader also keeps what it knows of every other replica in `followers`.
    """

    __slots__ = (
        "_level",
        "_log_end_offset",
        "adding_replicas",
        "cluster",
        "followers",
        "high_watermark",
        "in_sync",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leader_recovery_state",
        "local_broker_id",
        "partition_epoch",
        "removing_replicas",
        "replicas",
        "role",
    )

    def __init__(self, local_broker_id: int, cluster: ClusterView) -> None:
        self.local_broker_id = local_broker_id
        self.cluster = cluster
        self.role = ReplicaRole.NONE
        self.leader_id = NO_LEADER
        self.leader_epoch = UNKNOWN_LEADER_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.leader_recovery_state = RECOVERED
        self.in_sync = InSyncSet()
        self.high_watermark = 0
        self.leader_epoch_start_offset = 0
        self.followers: dict[int, ReplicaProgress] = {}
        self._level: dict[int, ReplicaProgress] = {}
        self._log_end_offset = 0

    @property
    def isr(self) -> frozenset[int]:
        """The replicas in sync, as the controller has committed them."""
        return self.in_sync.committed

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.role is ReplicaRole.LEADER

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and an assigned replica is not in sync."""
        return self.is_leader and len(self.isr) < len(self.replicas)

    @property
    def state(self) -> PartitionState:
        """The controller's word, as far as it was heard."""
        return PartitionState(
            self.leader_id,
            self.leader_epoch,
            self.partition_epoch,
            self.replicas,
            self.in_sync.members,
            self.adding_replicas,
            self.removing_replicas,
            self.leader_recovery_state,
        )

    # -- what the controller decided -------------------------------------------------------------

    def apply_state(
        self, state: PartitionState, *, log_end_offset: int, high_watermark: int
    ) -> bool:
        """Take over what the controller decided.

        Args:
            log_end_offset: of the local log.
            high_watermark: the last one known locally, where a new leader begins from.

        Returns:
            Whether this broker now leads under a leader epoch it did not lead before. False too
            for a state that is older than the one in force, which is ignored.
        """
        epochs = (state.leader_epoch, state.partition_epoch)
        if epochs < (self.leader_epoch, self.partition_epoch):
            return False
        role = (
            ReplicaRole.LEADER if state.leader_id == self.local_broker_id else ReplicaRole.FOLLOWER
        )
        assert role in LEGAL_TRANSITIONS[self.role]
        begins_leading = role is ReplicaRole.LEADER and (
            self.role is not ReplicaRole.LEADER or state.leader_epoch != self.leader_epoch
        )
        if (
            begins_leading
            or role is not ReplicaRole.LEADER
            or (epochs > (self.leader_epoch, self.partition_epoch))
        ):
            if not begins_leading and role is ReplicaRole.LEADER:
                self._forget_positions(self.in_sync.committed.difference(state.isr))
            self.in_sync.withdraw()
        self.role = role
        self.leader_id = state.leader_id
        self.leader_epoch, self.partition_epoch = epochs
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas
        self.leader_recovery_state = state.leader_recovery_state
        self.in_sync.apply_metadata(state.isr)
        if role is not ReplicaRole.LEADER or begins_leading:
            self.followers = {}
            self._level = {}
            self.leader_epoch_start_offset = log_end_offset if begins_leading else 0
            self.high_watermark = min(high_watermark, log_end_offset)
            self._log_end_offset = log_end_offset
        if role is ReplicaRole.LEADER:
            self._keep_followers()
        return begins_leading

    def _forget_positions(self, removed: Iterable[int]) -> None:
        """The controller took replicas out of the ISR, not at our proposal and not because their
        brokers are out of service: a log was lost (KIP-858). Until such a follower says where it is
        now, it has nothing.
        """
        pending = self.in_sync.pending
        for replica_id in removed:
            progress = self.followers.get(replica_id)
            if (
                progress is not None
                and (pending is None or replica_id in pending.isr)
                and self.cluster.is_isr_eligible(replica_id, progress.broker_epoch)
            ):
                self._level.pop(replica_id, None)
                self.followers[replica_id] = forgotten = ReplicaProgress(replica_id)
                forgotten.broker_epoch = progress.broker_epoch

    def needs_position(self, replica_id: int) -> bool:
        """Whether a follower has to name its position again, even if its session says that nothing
        has changed.
        """
        progress = self.followers.get(replica_id)
        return progress is not None and progress.log_end_offset == UNKNOWN_OFFSET

    def _keep_followers(self) -> None:
        """One progress for each other replica; who is new in the ISR has the whole time to lag."""
        known = self.followers
        others = dict.fromkeys((*self.replicas, *self.in_sync.members))
        others.pop(self.local_broker_id, None)
        if others.keys() == known.keys():
            return
        now_ms = self.cluster.now_ms()
        self.followers = {
            replica_id: known.get(replica_id)
            or ReplicaProgress(replica_id, now_ms if replica_id in self.isr else NEVER_MS)
            for replica_id in others
        }
        self._level = {
            replica_id: progress
            for replica_id, progress in self._level.items()
            if replica_id in others
        }

    def resign(self) -> None:
        """The replica is gone from this broker, or its log cannot be used any more."""
        self.role = ReplicaRole.NONE
        self.in_sync.withdraw()
        self.followers = {}
        self._level = {}

    # -- who may do what -------------------------------------------------------------------------

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare what a client believes with what is (KIP-320).

        Args:
            current_leader_epoch: the client's; -1 when it does not say.
        """
        if current_leader_epoch in (UNKNOWN_LEADER_EPOCH, self.leader_epoch):
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def check_leader(self, current_leader_epoch: int) -> ErrorCode:
        """`check_leader_epoch`, and then whether this broker leads at all."""
        if current_leader_epoch not in (UNKNOWN_LEADER_EPOCH, self.leader_epoch):
            return self.check_leader_epoch(current_leader_epoch)
        if self.role is ReplicaRole.LEADER:
            return ErrorCode.NONE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_follower(
        self, replica_id: int, broker_epoch: int, current_leader_epoch: int
    ) -> ErrorCode:
        """Whether a broker may fetch as a follower: of this leader, assigned, in its present life.

        Args:
            broker_epoch: the follower's, -1 when it does not say (KIP-903).
        """
        error = self.check_leader(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        progress = self.followers.get(replica_id)
        if progress is None:
            # Perhaps we have not heard of that replica yet: a follower that names an epoch is told
            # to come back, one that does not looks for another leader.
            if current_leader_epoch >= 0:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if progress.is_stale(broker_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def check_isr(self, min_insync_replicas: int, required_acks: int) -> ErrorCode:
        """Whether a write with `required_acks` finds enough replicas in sync."""
        if required_acks == ACKS_ALL and self.is_under_min_isr(min_insync_replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Fewer in sync than asked for; asking for more than are assigned counts as all of them."""
        in_sync_count = len(self.in_sync.members)
        return in_sync_count < min_insync_replicas and in_sync_count < max(1, len(self.replicas))

    # -- how far the log is committed ------------------------------------------------------------

    def local_log_grew(self, log_end_offset: int, min_insync_replicas: int) -> bool:
        """The leader has appended.

        Returns:
            Whether the high watermark moved.
        """
        if self._level:
            last_fetch_ms = self.cluster.last_fetch_ms
            for replica_id, progress in self._level.items():
                progress.leader_grew(self._log_end_offset, last_fetch_ms.get(replica_id))
            self._level = {}
        self._log_end_offset = log_end_offset
        return self.advance_high_watermark(min_insync_replicas)

    def follower_fetched(self, fetch: FollowerFetch, min_insync_replicas: int) -> bool:
        """A follower says how far its log reaches; `check_follower` found nothing against it.

        Returns:
            Whether the high watermark moved.
        """
        progress = self.followers[fetch.replica_id]
        progress.fetched(fetch, self._log_end_offset)
        if fetch.fetch_offset >= self._log_end_offset:
            self._level[fetch.replica_id] = progress
        else:
            self._level.pop(fetch.replica_id, None)
        return self.advance_high_watermark(min_insync_replicas)

    def advance_high_watermark(self, min_insync_replicas: int) -> bool:
        """Commit what every replica that is or may be in sync has; nothing while too few are.

        Returns:
            Whether the high watermark moved.
        """
        if self.role is not ReplicaRole.LEADER or self.is_under_min_isr(min_insync_replicas):
            return False
        committed = self._log_end_offset
        if self.followers and committed > self.high_watermark:
            committed = self._replicated_end(committed)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _replicated_end(self, local_end: int) -> int:
        """The smallest log end among the maximal ISR and those about to join it."""
        maximal = self.in_sync.maximal
        smallest = local_end
        for replica_id, progress in self.followers.items():
            end = progress.log_end_offset
            if end < smallest and (replica_id in maximal or self._is_about_to_join(progress)):
                smallest = end
        return smallest

    def _is_about_to_join(self, progress: ReplicaProgress) -> bool:
        """Whoever is caught up and may join is waited for: it would never get into the ISR if the
        high watermark always ran away from it.
        """
        cluster = self.cluster
        return (
            progress.caught_up_ms != NEVER_MS
            and progress.is_caught_up(self._log_end_offset, cluster.now_ms(), cluster.max_lag_ms)
            and cluster.is_isr_eligible(progress.replica_id, progress.broker_epoch)
        )

    def is_committed(self, required_offset: int, min_insync_replicas: int) -> ErrorCode | None:
        """Whether everything before `required_offset` is committed.

        Returns:
            None while it is not; NONE when it is; NOT_LEADER_OR_FOLLOWER when it will never be
            known here; NOT_ENOUGH_REPLICAS_AFTER_APPEND when it is, but in too few replicas.
        """
        if self.role is not ReplicaRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < required_offset:
            return None
        if self.is_under_min_isr(min_insync_replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # -- the in-sync set -------------------------------------------------------------------------

    def propose_expansion(self, replica_id: int) -> IsrChange | None:
        """After a follower's fetch: let it join if it may.

        Returns:
            What to submit; it counts as under way from now on.
        """
        progress = self.followers[replica_id]
        if replica_id in self.in_sync.maximal or not self._may_join(progress):
            return None
        return self._propose_joining([progress])

    def propose(self, *, again: bool = False) -> IsrChange | None:
        """Look at all replicas: the recovery after an unclean election, who fell out of sync, whose
        addition was refused, who is level and was not let in when it said so.

        Args:
            again: look at those too that the controller refused a moment ago.

        Returns:
            What to submit; it counts as under way from now on.
        """
        if again:
            for progress in self.followers.values():
                progress.refused_ms = NEVER_MS
        in_sync = self.in_sync
        if self.role is not ReplicaRole.LEADER or in_sync.pending is not None:
            return None
        if self.leader_recovery_state == RECOVERING:
            return self._propose(in_sync.members, "the leader has recovered from its election")
        if not self.followers:
            return None
        now_ms = self.cluster.now_ms()
        max_lag_ms = self.cluster.max_lag_ms
        lagging = {
            replica_id: progress
            for replica_id, progress in self.followers.items()
            if replica_id in in_sync.committed
            and not progress.is_caught_up(self._log_end_offset, now_ms, max_lag_ms)
        }
        if lagging:
            described = ", ".join(
                progress.describe(self._log_end_offset, now_ms) for progress in lagging.values()
            )
            return self._propose(
                tuple(member for member in in_sync.members if member not in lagging),
                f"out of sync: {described}",
            )
        if in_sync.refused:
            return self._propose(
                in_sync.members,
                f"late copies of a refused proposal shall not let in {sorted(in_sync.refused)}",
            )
        last_fetch_ms = self.cluster.last_fetch_ms
        joining = [
            progress
            for replica_id, progress in self._level.items()
            if replica_id not in in_sync.maximal
            # It may have gone since it last spoke of this partition.
            and now_ms - last_fetch_ms.get(replica_id, NEVER_MS) <= max_lag_ms
            and self._may_join(progress)
        ]
        return self._propose_joining(joining) if joining else None

    def _may_join(self, progress: ReplicaProgress) -> bool:
        """It has all that is committed, the beginning of this leader epoch too, and the controller
        would take it.
        """
        end = progress.log_end_offset
        return (
            self.in_sync.pending is None
            and end >= self.high_watermark
            and end >= self.leader_epoch_start_offset
            and self.cluster.now_ms() - progress.refused_ms > REFUSAL_PAUSE_MS
            and self.cluster.is_isr_eligible(progress.replica_id, progress.broker_epoch)
        )

    def _propose_joining(self, joining: list[ReplicaProgress]) -> IsrChange:
        described = ", ".join(
            f"{progress.replica_id} (log end offset {progress.log_end_offset})"
            for progress in joining
        )
        members = (*self.in_sync.members, *(progress.replica_id for progress in joining))
        return self._propose(members, f"caught up: {described}")

    def _propose(self, members: tuple[int, ...], reason: str) -> IsrChange:
        assert self.local_broker_id in members, "a leader is in sync with itself"
        change = proposal(self.state, members, self._broker_epochs(members), reason)
        self.in_sync.propose(change)
        return change

    def _broker_epochs(self, members: Iterable[int]) -> dict[int, int]:
        epochs = {
            member: progress.broker_epoch
            for member in members
            if (progress := self.followers.get(member)) is not None
        }
        epochs[self.local_broker_id] = self.cluster.broker_epoch()
        return {member: epochs.get(member, UNKNOWN_BROKER_EPOCH) for member in members}

    def isr_change_answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrAnswer:
        """The controller has answered a proposal, or could not be asked (any other error)."""
        answer = self.in_sync.answered(change, error, state)
        if answer is IsrAnswer.COMMITTED:
            assert state is not None
            self.partition_epoch = state.partition_epoch
            self.leader_recovery_state = state.leader_recovery_state
        elif answer is IsrAnswer.REFUSED:
            for replica_id in self.in_sync.refused.intersection(change.isr):
                self.followers[replica_id].refused_ms = self.cluster.now_ms()
        return answer

    # -- the local log of a follower -------------------------------------------------------------

    def follow_high_watermark(self, leader_high_watermark: int, log_end_offset: int) -> bool:
        """The leader says what is committed; what was committed once stays so.

        Returns:
            Whether the high watermark moved.
        """
        assert self.role is not ReplicaRole.LEADER
        committed = min(leader_high_watermark, log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def local_log_was_cut(self, high_watermark: int) -> None:
        """The local log was cut back, or begun anew (a follower does that).

        Args:
            high_watermark: what is left of the old one, by the log.
        """
        assert self.role is not ReplicaRole.LEADER, "a leader's log is never cut back"
        self.high_watermark = high_watermark

    # -- figures ---------------------------------------------------------------------------------

    def low_watermark(self, log_start_offset: int) -> int:
        """The smallest log start offset of the live replicas; -1 while one of them is unknown.

        Args:
            log_start_offset: of the local log.
        """
        smallest = log_start_offset
        for replica_id, progress in self.followers.items():
            if progress.log_start_offset < smallest and self.cluster.is_isr_eligible(
                replica_id, UNKNOWN_BROKER_EPOCH
            ):
                smallest = progress.log_start_offset
        return smallest

    def replica_figures(self, log_start_offset: int) -> list[ReplicaFigures]:
        """How every replica stands, the leader first; nothing when this broker does not lead."""
        if self.role is not ReplicaRole.LEADER:
            return []
        end = self._log_end_offset
        now_ms = self.cluster.now_ms()
        leader = ReplicaFigures(self.local_broker_id, log_start_offset, end, 0, True, 0.0)
        return [
            leader,
            *(
                progress.figures(end, now_ms, is_in_sync=replica_id in self.isr)
                for replica_id, progress in self.followers.items()
            ),
        ]


def last_stable_offset(high_watermark: int, first_unstable_offset: int | None) -> int:
    """Where a read_committed reader must stop: before the first open transaction (KIP-98).

    Args:
        first_unstable_offset: of the earliest transaction that is open or not yet committed to
            all; None without one.
    """
    if first_unstable_offset is None or first_unstable_offset > high_watermark:
        return high_watermark
    return first_unstable_offset
