"""The partition's state machine without I/O: roles, leader epochs, ISR, high watermark."""

from moldau.broker.replica.core.in_sync_set import InSyncSet, IsrAnswer
from moldau.broker.replica.core.replica_progress import ReplicaProgress
from moldau.broker.replica.core.replica_state import (
    LEGAL_TRANSITIONS,
    PartitionCore,
    ReplicaRole,
)
from moldau.broker.replica.core.values import (
    RECOVERED,
    RECOVERING,
    ClusterView,
    FollowerFetch,
    IsrChange,
    PartitionState,
    ReplicaFigures,
)

__all__ = [
    "LEGAL_TRANSITIONS",
    "RECOVERED",
    "RECOVERING",
    "ClusterView",
    "FollowerFetch",
    "InSyncSet",
    "IsrAnswer",
    "IsrChange",
    "PartitionCore",
    "PartitionState",
    "ReplicaFigures",
    "ReplicaProgress",
    "ReplicaRole",
]
