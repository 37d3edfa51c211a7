"""Finding the partitions that the smaller data requests name.

Owns the order of checks they share: authorisation, existence, leadership, log. Must not do their
work. Invariant: a partition that is returned is led by this broker under the epoch the client
named, and its log was usable a moment ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.server.authorizer import Operation
    from moldau.server.request_context import RequestContext
    from moldau.storage.log import Log


class LedPartition(NamedTuple):
    """A partition this broker leads, with its log."""

    partition: Partition
    log: Log


def find_led(
    manager: ReplicaManager,
    context: RequestContext,
    operation: Operation | None,
    topic: str,
    partition_index: int,
    *,
    current_leader_epoch: int = -1,
    leader_only: bool = True,
) -> LedPartition | ErrorCode:
    """The partition and its log, or the error the client gets.

    Args:
        operation: what the sender must be allowed to do to the topic; None when it may anyhow.
        current_leader_epoch: what the client believes, -1 when it does not say (KIP-320).
        leader_only: False lets a follower answer (debugging consumers).
    """
    if operation is not None and not context.authorized_topic(operation, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    partition = manager.get(topic, partition_index)
    if partition is None:
        return manager.missing_error(topic, partition_index)
    core = partition.core
    error = (
        core.check_leader(current_leader_epoch)
        if leader_only
        else core.check_leader_epoch(current_leader_epoch)
    )
    if error is not ErrorCode.NONE:
        return error
    log = partition.log
    if log is None or log.offline:
        return partition.unusable_error
    return LedPartition(partition, log)
