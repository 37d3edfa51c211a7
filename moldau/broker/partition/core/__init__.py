"""The partition's state machine without I/O: roles, leader epochs, high watermark."""

from moldau.broker.partition.core.replica_state import (
    LEGAL_TRANSITIONS,
    PartitionCore,
    PartitionState,
    ReplicaRole,
)

__all__ = ["LEGAL_TRANSITIONS", "PartitionCore", "PartitionState", "ReplicaRole"]
