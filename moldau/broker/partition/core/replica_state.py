"""What one replica of a partition may do: its role, its leader epoch, its high watermark.

Owns the decisions a leader takes: who may read and write under which leader epoch, whether enough
replicas are in sync, how far the log is committed. Does no I/O, knows no log: log end offsets come
in as numbers. Invariants: the high watermark of a leader never goes back within one leader epoch
and never passes its own log end offset; a state older than the one applied changes nothing.
Sources: KIP-101 and KIP-320 (leader epochs), KIP-966 (high watermark under min.insync.replicas).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.protocol.errors import ErrorCode

NO_LEADER: Final = -1
UNKNOWN_LEADER_EPOCH: Final = -1
ACKS_ALL: Final = -1


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


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller decided about a partition, as this broker heard of it."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class PartitionCore:
    """One replica's state; `apply_state` moves it along LEGAL_TRANSITIONS.

    A leader also keeps the log end offset of every replica: `high_watermark` is the smallest one
    among those in sync.
    """

    __slots__ = (
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "local_broker_id",
        "log_end_offsets",
        "partition_epoch",
        "replicas",
        "role",
    )

    def __init__(self, local_broker_id: int) -> None:
        self.local_broker_id = local_broker_id
        self.role = ReplicaRole.NONE
        self.leader_id = NO_LEADER
        self.leader_epoch = UNKNOWN_LEADER_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: frozenset[int] = frozenset()
        self.high_watermark = 0
        self.leader_epoch_start_offset = 0
        self.log_end_offsets: dict[int, int] = {}

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.role is ReplicaRole.LEADER

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and an assigned replica is not in sync."""
        return self.is_leader and len(self.isr) < len(self.replicas)

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
        if (state.leader_epoch, state.partition_epoch) < (self.leader_epoch, self.partition_epoch):
            return False
        role = (
            ReplicaRole.LEADER if state.leader_id == self.local_broker_id else ReplicaRole.FOLLOWER
        )
        assert role in LEGAL_TRANSITIONS[self.role]
        begins_leading = role is ReplicaRole.LEADER and (
            self.role is not ReplicaRole.LEADER or state.leader_epoch != self.leader_epoch
        )
        self.role = role
        self.leader_id = state.leader_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = frozenset(state.isr)
        if begins_leading:
            self.leader_epoch_start_offset = log_end_offset
            self.log_end_offsets = dict.fromkeys(state.replicas, -1)
            self.high_watermark = min(high_watermark, log_end_offset)
        elif role is ReplicaRole.LEADER:
            known = self.log_end_offsets
            self.log_end_offsets = {replica: known.get(replica, -1) for replica in state.replicas}
        else:
            self.log_end_offsets = {}
            self.high_watermark = min(high_watermark, log_end_offset)
        if role is ReplicaRole.LEADER:
            self.log_end_offsets[self.local_broker_id] = log_end_offset
        return begins_leading

    def resign(self) -> None:
        """The replica is gone from this broker, or its log cannot be used any more."""
        self.role = ReplicaRole.NONE
        self.log_end_offsets = {}

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

    def check_isr(self, min_insync_replicas: int, required_acks: int) -> ErrorCode:
        """Whether a write with `required_acks` finds enough replicas in sync."""
        if required_acks == ACKS_ALL and self.is_under_min_isr(min_insync_replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Fewer in sync than asked for; asking for more than are assigned counts as all of them."""
        return len(self.isr) < min(min_insync_replicas, max(1, len(self.replicas)))

    def update_log_end_offset(
        self, replica_id: int, log_end_offset: int, min_insync_replicas: int
    ) -> bool:
        """A replica's log has grown (the local one by an append, others as their fetches say).

        Returns:
            Whether the high watermark moved.
        """
        if replica_id not in self.log_end_offsets:
            return False
        self.log_end_offsets[replica_id] = log_end_offset
        return self.advance_high_watermark(min_insync_replicas)

    def advance_high_watermark(self, min_insync_replicas: int) -> bool:
        """Commit what every replica in sync has; nothing while too few are in sync.

        Returns:
            Whether the high watermark moved.
        """
        if self.role is not ReplicaRole.LEADER or self.is_under_min_isr(min_insync_replicas):
            return False
        log_end_offsets = self.log_end_offsets
        local_end = log_end_offsets[self.local_broker_id]
        committed = local_end
        if len(self.isr) > 1:
            committed = min(_ends(log_end_offsets, self.isr), default=local_end)
            committed = min(committed, local_end)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

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

    def truncate_local_log(self, log_end_offset: int) -> None:
        """The local log was cut back (a follower does that); the high watermark goes with it."""
        assert self.role is not ReplicaRole.LEADER, "a leader's log is never cut back"
        self.high_watermark = min(self.high_watermark, log_end_offset)


def last_stable_offset(high_watermark: int, first_unstable_offset: int | None) -> int:
    """Where a read_committed reader must stop: before the first open transaction (KIP-98).

    Args:
        first_unstable_offset: of the earliest transaction that is open or not yet committed to
            all; None without one.
    """
    if first_unstable_offset is None or first_unstable_offset > high_watermark:
        return high_watermark
    return first_unstable_offset


def _ends(log_end_offsets: dict[int, int], isr: Iterable[int]) -> Iterable[int]:
    return (log_end_offsets[replica] for replica in isr if replica in log_end_offsets)
