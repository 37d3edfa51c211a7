"""One partition's replica on this broker: the state machine in `core` and its driver on a log."""

from moldau.broker.replica.context import ReplicationContext, SingleReplicaContext
from moldau.broker.replica.core import (
    FollowerFetch,
    IsrChange,
    PartitionCore,
    PartitionState,
    ReplicaFigures,
    ReplicaRole,
)
from moldau.broker.replica.partition import Partition, ProduceWait
from moldau.broker.replica.reading import FetchRead

__all__ = [
    "FetchRead",
    "FollowerFetch",
    "IsrChange",
    "Partition",
    "PartitionCore",
    "PartitionState",
    "ProduceWait",
    "ReplicaFigures",
    "ReplicaRole",
    "ReplicationContext",
    "SingleReplicaContext",
]
