"""One partition's replica on this broker: the state machine in `core` and its driver on a log."""

from moldau.broker.partition.core import PartitionCore, PartitionState, ReplicaRole
from moldau.broker.partition.partition import FetchRead, Partition, ProduceWait

__all__ = [
    "FetchRead",
    "Partition",
    "PartitionCore",
    "PartitionState",
    "ProduceWait",
    "ReplicaRole",
]
