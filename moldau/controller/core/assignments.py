"""Replica assignments: which brokers may get replicas, what a new partition looks like.

Owns: the checks on manual assignments and the first state of a partition. Must not: write records.
Invariant: a new partition's ISR are its live replicas, and the first of them leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from moldau.controller.core.placement import UsableBroker
from moldau.controller.core.result import Refusal
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import supports_directory_assignment
from moldau.metadata.image import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    PartitionRegistration,
)
from moldau.protocol.errors import ErrorCode

MAX_NAMED_BROKERS: Final = 50


def usable_brokers(state: ControllerState) -> list[UsableBroker]:
    """The brokers that placement may choose from: not one that is about to stop, nor one whose
    directories are all cordoned.
    """
    return [
        UsableBroker(broker_id, broker.rack, broker.fenced)
        for broker_id, broker in sorted(state.image.cluster.brokers.items())
        if (broker.fenced or state.is_active(broker_id)) and not _fully_cordoned(broker)
    ]


def _fully_cordoned(broker: BrokerRegistration) -> bool:
    cordoned = broker.cordoned_directories
    if not broker.directories or not cordoned:
        return False
    return set(broker.directories).issubset(cordoned)


def default_directory(state: ControllerState, broker_id: int) -> UUID:
    """The directory of a broker's new replica: its only one, or one it still has to choose
    (KIP-858).
    """
    broker = state.broker(broker_id)
    if broker is None or not broker.directories:
        return MIGRATING_DIRECTORY
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY


def new_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionRegistration:
    """The first state of a partition on `replicas`, at least one of which is live."""
    isr = tuple(broker_id for broker_id in replicas if state.is_active(broker_id))
    assert isr, "placement and manual checks leave a live replica"
    directories = (MIGRATING_DIRECTORY,) * len(replicas)
    if supports_directory_assignment(state.metadata_level):
        directories = tuple(default_directory(state, broker_id) for broker_id in replicas)
    return PartitionRegistration(
        replicas=tuple(replicas), directories=directories, isr=isr, leader=isr[0]
    )


def check_manual_replicas(
    state: ControllerState,
    partition_index: int,
    replicas: Sequence[int],
    replication_factor: int,
    *,
    needs_live: bool = True,
) -> None:
    """Check one partition of a manual assignment; a new one needs a replica that is live.

    Raises:
        Refusal: INVALID_REPLICA_ASSIGNMENT.
    """
    problem = None
    if not replicas:
        problem = "has no replicas"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {_some(replicas)}"
    elif len(replicas) != replication_factor:
        problem = f"has {len(replicas)} replicas where {replication_factor} are expected"
    else:
        brokers = state.image.cluster.brokers
        unknown = [broker_id for broker_id in replicas if broker_id not in brokers]
        if unknown:
            problem = f"names brokers that are not registered: {_some(unknown)}"
        elif needs_live and not any(state.is_active(broker_id) for broker_id in replicas):
            problem = "has only brokers that are fenced or shutting down"
    if problem is not None:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition_index} {problem}"
        )


def _some(broker_ids: Sequence[int]) -> str:
    """Broker ids for a message, which need not name hundreds of thousands."""
    if len(broker_ids) <= MAX_NAMED_BROKERS:
        return str(list(broker_ids))
    return f"{list(broker_ids[:MAX_NAMED_BROKERS])} and {len(broker_ids) - MAX_NAMED_BROKERS} more"
