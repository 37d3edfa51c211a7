"""What one replica of a partition may do: its role, its leader epoch, its high watermark.

Owns the leader's decisions: which requests are valid under the leader epoch, whether enough
replicas are in sync, how far the log is committed, which change of the ISR to propose
(`replica.lag.time.max.ms`). Knows no log: log end offsets come in as numbers. Invariants: the high
watermark of a leader never goes back within one leader epoch, never passes its own log end offset
nor that of any replica that is or may be in sync, and does not move while fewer than
`min.insync.replicas` are; a state older than the one applied changes nothing. Sources: KIP-101 and
KIP-320 (leader epochs), KIP-497 (AlterPartition), KIP-966 (high watermark under
min.insync.replicas).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from moldau.broker.replica.core.in_sync_set import (
    RECOVERED,
    RECOVERING,
    InSyncSet,
    IsrAnswer,
    IsrChange,
    PartitionState,
)
from moldau.protocol.errors import ErrorCode

NO_LEADER: Final = -1
UNKNOWN_LEADER_EPOCH: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1
NEVER_MS: Final = float("-inf")

REFUSAL_PAUSE_MS: Final = 1_000
"""How long a replica that the controller refused is not proposed again, unless brokers change. The
leader may be unable to see the reason, and each attempt ends with a metadata record."""


class ReplicaRole(Enum):
    """This broker's role for the partition."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


LEGAL_TRANSITIONS: Final[dict[ReplicaRole, frozenset[ReplicaRole]]] = {
    ReplicaRole.NONE: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER}),
    ReplicaRole.LEADER: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.NONE}),
    ReplicaRole.FOLLOWER: frozenset({ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.NONE}),
}
"""From a role to the roles that may follow it; NONE is where a replica begins and ends."""


class FollowerFetch(NamedTuple):
    """One partition of a follower's Fetch, which says how far the follower's log reaches.

    `broker_epoch` is the follower's, -1 when it does not say; `now_ms` when the request arrived, by
    the monotonic clock.
    """

    replica_id: int
    fetch_offset: int
    log_start_offset: int
    broker_epoch: int
    now_ms: float


class ReplicaFigures(NamedTuple):
    """How one replica stands, as its leader sees it.

    Offsets and `lag` (records) are -1 while unknown; `caught_up_age_ms` is how long ago the replica
    was last known to have everything: 0 now, -1 never in this leader epoch.
    """

    replica_id: int
    log_start_offset: int
    log_end_offset: int
    lag: int
    is_in_sync: bool
    caught_up_age_ms: float


class ClusterView(Protocol):
    """What a leader has to know beyond its partition.

    Attributes:
        max_lag_ms: a follower that has not caught up for longer leaves the ISR.
        last_fetch_ms: when the last Fetch of each follower arrived, for any partitions.
    """

    max_lag_ms: int
    last_fetch_ms: dict[int, float]

    def now_ms(self) -> float:
        """The monotonic clock."""

    def broker_epoch(self) -> int:
        """The epoch of this broker, -1 before it registered."""

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the controller would take the broker into an ISR, by the newest metadata
        (KIP-841, KIP-903): registered under this epoch (-1: any), neither fenced nor in controlled
        shutdown.
        """


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """What a leader knows of one follower in one leader epoch: how far its log reaches, and when it
    last had everything.

    A follower was caught up at the moment of a fetch if that fetch asked for what the leader did
    not have yet, or if its next fetch shows that it got everything the leader had at that moment.
    Fetch sessions name only what has changed (KIP-227): a follower that is level does not name a
    partition until the log grows, so the time of its last fetch, for any partitions, counts for all
    it was level in.

    Invariants: `caught_up_ms` never goes back; a follower that is level with the leader's log is
    caught up, whatever the clock says.

    `caught_up_ms` begins as the time from which its time to catch up counts, NEVER_MS out of sync;
    `refused_ms` is when the controller refused to let it into the ISR, NEVER_MS if it did not.
    `has_lost_records`: it fetched twice in a row from before the high watermark; a member of the
    ISR had all before that, so its log was cut back or began again, whatever the reason.
    """

    replica_id: int
    caught_up_ms: float = NEVER_MS
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    refused_ms: float = NEVER_MS
    has_lost_records: bool = False
    _fetch_ms: float = NEVER_MS
    _fetch_leader_end: float = float("inf")

    def fetched(self, fetch: FollowerFetch, leader_end: int) -> None:
        """Take over what a fetch says of the follower's log; `leader_end` is the leader's log end
        offset when it arrived.
        """
        if fetch.fetch_offset >= leader_end:
            self._caught_up_at(fetch.now_ms)
        elif fetch.fetch_offset >= self._fetch_leader_end:
            self._caught_up_at(self._fetch_ms)
        self.log_end_offset = fetch.fetch_offset
        self.log_start_offset = fetch.log_start_offset
        self.broker_epoch = max(fetch.broker_epoch, self.broker_epoch)
        self._fetch_ms = fetch.now_ms
        self._fetch_leader_end = leader_end

    def leader_grew(self, last_fetch_ms: float | None) -> None:
        """Note that the leader appends where the follower's last fetch found its end; the
        follower's last Fetch of any partitions arrived at `last_fetch_ms`.
        """
        if last_fetch_ms is not None:
            self._fetch_ms = max(self._fetch_ms, last_fetch_ms)
        self._caught_up_at(self._fetch_ms)

    def is_caught_up(self, leader_end: int, now_ms: float, max_lag_ms: float) -> bool:
        """Whether the follower had everything at some moment of the last `max_lag_ms`."""
        return self.log_end_offset >= leader_end or now_ms - self.caught_up_ms <= max_lag_ms

    def figures(self, leader_end: int, now_ms: float, *, is_in_sync: bool) -> ReplicaFigures:
        is_known = self.log_end_offset != UNKNOWN_OFFSET
        age_ms = -1.0 if self.caught_up_ms == NEVER_MS else max(0.0, now_ms - self.caught_up_ms)
        return ReplicaFigures(
            self.replica_id,
            self.log_start_offset,
            self.log_end_offset,
            max(0, leader_end - self.log_end_offset) if is_known else UNKNOWN_OFFSET,
            is_in_sync,
            0.0 if is_known and self.log_end_offset >= leader_end else age_ms,
        )

    def describe(self, leader_end: int, now_ms: float) -> str:
        figures = self.figures(leader_end, now_ms, is_in_sync=False)
        behind = f"{figures.lag} records behind" if figures.lag >= 0 else "not heard of yet"
        if self.has_lost_records:
            return f"{self.replica_id} ({behind}, it has lost committed records)"
        since = f"for {figures.caught_up_age_ms:.0f} ms" if figures.caught_up_age_ms >= 0 else "yet"
        return f"{self.replica_id} ({behind}, not caught up {since})"

    def _caught_up_at(self, moment_ms: float) -> None:
        self.caught_up_ms = max(self.caught_up_ms, moment_ms)


@dataclass(slots=True, eq=False)
class PartitionCore:
    """One replica's state; `apply_state` moves it along LEGAL_TRANSITIONS.

    A leader also keeps what it knows of every other replica in `followers`.
    """

    local_broker_id: int
    cluster: ClusterView
    role: ReplicaRole = ReplicaRole.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = UNKNOWN_LEADER_EPOCH
    partition_epoch: int = -1
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    in_sync: InSyncSet = field(default_factory=InSyncSet)
    high_watermark: int = 0
    leader_epoch_start_offset: int = 0
    """A leader's log end when it began to lead."""
    followers: dict[int, ReplicaProgress] = field(default_factory=dict)
    _level: dict[int, ReplicaProgress] = field(default_factory=dict)
    """Those followers that have everything the leader has."""
    _log_end_offset: int = 0

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync replicas that the controller has committed."""
        return self.in_sync.committed

    @property
    def is_leader(self) -> bool:
        return self.role is ReplicaRole.LEADER

    @property
    def is_under_replicated(self) -> bool:
        return self.is_leader and len(self.isr) < len(self.replicas)

    @property
    def state(self) -> PartitionState:
        """The newest decision of the controller that is known here."""
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
        """Take over what the controller decided; a new leader begins from `high_watermark`, the
        last one known locally. Returns whether this broker begins to lead under this leader epoch.
        An older state than the one in force is ignored: False.
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
            or epochs > (self.leader_epoch, self.partition_epoch)
        ):
            if not begins_leading:
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
            self.leader_epoch_start_offset = log_end_offset
            self.high_watermark = min(high_watermark, log_end_offset)
            self._log_end_offset = log_end_offset
        if role is ReplicaRole.LEADER:
            self._keep_followers()
        return begins_leading

    def _forget_positions(self, removed: Iterable[int]) -> None:
        """The controller took replicas out of the ISR, neither by this leader's proposal nor
        because their brokers are out of service: a log was lost (KIP-858). Such a follower counts
        as having nothing until it reports its position.
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
                self.followers[replica_id] = ReplicaProgress(
                    replica_id, broker_epoch=progress.broker_epoch
                )

    def needs_position(self, replica_id: int) -> bool:
        """Whether a follower has to report its position again, although its session says that
        nothing has changed.
        """
        progress = self.followers.get(replica_id)
        return progress is not None and progress.log_end_offset == UNKNOWN_OFFSET

    def _keep_followers(self) -> None:
        """One progress for each other replica; a new ISR member has the whole time to catch up."""
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
        self._level = {each: self._level[each] for each in self._level if each in others}

    def resign(self) -> None:
        """Give up the role: the replica has left this broker, or its log was opened late."""
        self.role = ReplicaRole.NONE
        self.in_sync.withdraw()
        self.followers = {}
        self._level = {}

    # -- checks of requests ----------------------------------------------------------------------

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare a client's leader epoch (-1: not given) with the one in force (KIP-320)."""
        if current_leader_epoch in (UNKNOWN_LEADER_EPOCH, self.leader_epoch):
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def check_leader(self, current_leader_epoch: int) -> ErrorCode:
        if current_leader_epoch not in (UNKNOWN_LEADER_EPOCH, self.leader_epoch):
            return self.check_leader_epoch(current_leader_epoch)
        if self.role is ReplicaRole.LEADER:
            return ErrorCode.NONE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_follower(
        self, replica_id: int, broker_epoch: int, current_leader_epoch: int
    ) -> ErrorCode:
        """Whether a broker may fetch as a follower: from this leader, assigned, and in its present
        incarnation (`broker_epoch`, -1: not given; KIP-903).
        """
        error = self.check_leader(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        progress = self.followers.get(replica_id)
        if progress is None:
            # Metadata may not have named that replica here yet: a follower that names an epoch is
            # asked to try again, one that does not looks for another leader.
            if current_leader_epoch >= 0:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if UNKNOWN_BROKER_EPOCH < broker_epoch < progress.broker_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether fewer are in sync than required; no more can be required than are assigned."""
        in_sync_count = len(self.in_sync.members)
        return in_sync_count < min_insync_replicas and in_sync_count < max(1, len(self.replicas))

    # -- how far the log is committed ------------------------------------------------------------

    def local_log_grew(self, log_end_offset: int, min_insync_replicas: int) -> bool:
        """Note an append by this leader; returns whether the high watermark moved."""
        if self._level:
            last_fetch_ms = self.cluster.last_fetch_ms
            for replica_id, progress in self._level.items():
                progress.leader_grew(last_fetch_ms.get(replica_id))
            self._level = {}
        self._log_end_offset = log_end_offset
        return self.advance_high_watermark(min_insync_replicas)

    def follower_fetched(self, fetch: FollowerFetch, min_insync_replicas: int) -> bool:
        """Note how far a follower's log reaches, after `check_follower` has accepted the fetch;
        returns whether the high watermark moved.
        """
        progress = self.followers[fetch.replica_id]
        # One fetch may be a late one, over a connection that the follower has given up.
        progress.has_lost_records = (
            progress.log_end_offset != UNKNOWN_OFFSET
            and max(progress.log_end_offset, fetch.fetch_offset) < self.high_watermark
        )
        progress.fetched(fetch, self._log_end_offset)
        if fetch.fetch_offset >= self._log_end_offset:
            self._level[fetch.replica_id] = progress
        else:
            self._level.pop(fetch.replica_id, None)
        return self.advance_high_watermark(min_insync_replicas)

    def advance_high_watermark(self, min_insync_replicas: int) -> bool:
        """Commit what every replica that is or may be in sync has; nothing while too few are in
        sync. Returns whether the high watermark moved.
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
        """The smallest log end among the maximal ISR and the followers about to join it."""
        maximal = self.in_sync.maximal
        smallest = local_end
        for replica_id, progress in self.followers.items():
            end = progress.log_end_offset
            if end < smallest and (replica_id in maximal or self._is_about_to_join(progress)):
                smallest = end
        return smallest

    def _is_about_to_join(self, progress: ReplicaProgress) -> bool:
        """The leader waits for a follower that is caught up and may join: the follower would never
        enter the ISR if the high watermark always ran away from it.
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
            None while it is not; NONE when it is; NOT_LEADER_OR_FOLLOWER when this broker will
            never know; NOT_ENOUGH_REPLICAS_AFTER_APPEND when it is, but in too few replicas.
        """
        if self.role is not ReplicaRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < required_offset:
            return None
        if self.is_under_min_isr(min_insync_replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # -- the in-sync set -------------------------------------------------------------------------

    def propose_after_fetch(self, replica_id: int) -> IsrChange | None:
        """After a follower's fetch: the proposal to let it join, if it may, or to take it out, if
        it has lost committed records; the proposal counts as under way from now on.
        """
        progress = self.followers[replica_id]
        if replica_id in self.in_sync.committed and progress.has_lost_records:
            return self.propose()
        if replica_id in self.in_sync.maximal or not self._may_join(progress):
            return None
        return self._propose_joining([progress])

    def propose(self, *, again: bool = False) -> IsrChange | None:
        """The proposal that is due, if any: recovery after an unclean election, followers that fell
        out of sync or lost records, a refused addition, or followers that are level and could not
        join before. It counts as under way from now on. `again` includes followers that the
        controller refused a moment ago.
        """
        if again:
            for progress in self.followers.values():
                progress.refused_ms = NEVER_MS
        in_sync = self.in_sync
        if self.role is not ReplicaRole.LEADER or in_sync.pending is not None:
            return None
        if self.leader_recovery_state == RECOVERING:
            return self._propose(in_sync.members, "the leader has recovered from its election")
        now_ms = self.cluster.now_ms()
        max_lag_ms = self.cluster.max_lag_ms
        lagging = {
            replica_id: progress
            for replica_id, progress in self.followers.items()
            if replica_id in in_sync.committed
            and (
                progress.has_lost_records
                or not progress.is_caught_up(self._log_end_offset, now_ms, max_lag_ms)
            )
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
            # The follower may have gone since it last named this partition.
            and now_ms - last_fetch_ms.get(replica_id, NEVER_MS) <= max_lag_ms
            and self._may_join(progress)
        ]
        return self._propose_joining(joining) if joining else None

    def _may_join(self, progress: ReplicaProgress) -> bool:
        """Whether the follower has all that is committed, the beginning of this leader epoch too,
        and the controller would accept it.
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
        epochs = {each: progress.broker_epoch for each, progress in self.followers.items()}
        epochs[self.local_broker_id] = self.cluster.broker_epoch()
        change = IsrChange(
            self.leader_epoch,
            self.partition_epoch,
            members,
            {member: epochs.get(member, UNKNOWN_BROKER_EPOCH) for member in members},
            # A leader that proposes anything has recovered (KIP-704).
            RECOVERED,
            reason,
        )
        self.in_sync.propose(change)
        return change

    def isr_change_answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrAnswer:
        """Take over the controller's answer to a proposal; any other error means there was none."""
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
        """Take over what the leader says is committed; the high watermark never goes back. Returns
        whether it moved.
        """
        assert self.role is not ReplicaRole.LEADER
        committed = min(leader_high_watermark, log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def local_log_was_cut(self, high_watermark: int) -> None:
        """Note that a follower's log was cut back or begun empty; `high_watermark` is the log's."""
        assert self.role is not ReplicaRole.LEADER, "a leader's log is never cut back"
        self.high_watermark = high_watermark

    # -- figures ---------------------------------------------------------------------------------

    def low_watermark(self, log_start_offset: int) -> int:
        """The smallest log start offset of the live replicas, -1 while one of them is unknown;
        `log_start_offset` is that of the local log.
        """
        live = (
            progress.log_start_offset
            for replica_id, progress in self.followers.items()
            if self.cluster.is_isr_eligible(replica_id, UNKNOWN_BROKER_EPOCH)
        )
        return min([log_start_offset, *live])

    def replica_figures(self, log_start_offset: int) -> list[ReplicaFigures]:
        """How every replica stands, the leader first; empty where this broker does not lead."""
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
