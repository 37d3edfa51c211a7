"""Lets this simulation watch what only it needs: stable offsets, requests, markers sent again.

Owns: what is wrapped around production methods, besides the replication's taps, and taking it off.
Must not: check anything. Invariant: production code behaves as without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator.ports import RuntimeSettings
from moldau.broker.coordinator.shard import Shard
from moldau.broker.coordinator.transaction.core import rules
from moldau.broker.coordinator.transaction.marker_sender import MarkerSender
from moldau.runtime.connection import Connection
from moldau.storage.cleaner import log_cleaner
from moldau.storage.log import Log
from tests.simulation.cluster.disk import NodeDisk
from tests.simulation.replication.mirror import read_bytes
from tests.simulation.replication.taps import taps
from tests.simulation.transactions.client_taps import client_taps
from tests.simulation.transactions.loading import check_loaded

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

EPOCH_BUMP_VERSION = 2


@contextmanager
def transaction_taps(world: TransactionWorld) -> Iterator[None]:
    """The taps are in force while the block runs."""
    with taps(), client_taps(world), _limits(world):
        update = Log.update_high_watermark
        write = Connection._write
        answered = MarkerSender._answered
        swap_in, activate = log_cleaner.swap_in, Shard.activate
        truncate_to = Log.truncate_to

        def update_high_watermark(log: Any, offset: int) -> None:
            update(log, offset)
            disk = log.filesystem
            if isinstance(disk, NodeDisk) and not disk.crashed:
                key = (log.topic_id, log.topic_partition.partition)
                if log.topic_partition.topic not in UNSEEN:
                    stable = log.last_stable_offset
                    end, who = log.log_end_offset, disk.owner.name
                    world.guard(world.data.on_stable_offset, key, who, stable, end)

        def _write(connection: Any, message: Any, version: int, keeps_records: bool = False) -> Any:
            del keeps_records  # always in one piece, which the tamperer can send again
            correlation_id = write(connection, message, version)
            world.tamperer.wrote(connection, message, version, connection._outbox[-1])
            return correlation_id

        def _answered(sender: Any, destination: Any, markers: Any, response: Any) -> None:
            if response is None:
                for transaction in (marker.command.transaction for marker in markers):
                    if transaction.client_version < EPOCH_BUMP_VERSION:
                        world.data.excuse(transaction.transactional_id)
            answered(sender, destination, markers, response)

        def _truncate_to(log: Any, offset: int) -> Any:
            was_cut = truncate_to(log, offset)
            disk = log.filesystem
            is_data = log.topic_partition.topic != METADATA
            if was_cut and is_data and isinstance(disk, NodeDisk) and not disk.crashed:
                producers = log.producer_state.producers.values()
                key = (log.topic_id, log.topic_partition.partition)
                broker_id = disk.owner.broker_id
                world.guard(world.data.on_producers_reloaded, broker_id, key, producers)
            return was_cut

        def _swap_in(log: Any, sources: Any, size_bytes: int) -> Any:
            before = read_bytes(log, 0)
            removed = swap_in(log, sources, size_bytes)
            key = (log.topic_id, log.topic_partition.partition)
            who, after = log.filesystem.owner.name, read_bytes(log, 0)
            world.guard(world.data.on_compacted, who, key, before, after)
            return removed

        def _activate(shard: Any, end_offset: int) -> None:
            world.guard(check_loaded, world, shard)
            activate(shard, end_offset)

        Log.update_high_watermark = update_high_watermark  # type: ignore[method-assign]
        Log.truncate_to = _truncate_to  # type: ignore[method-assign]
        log_cleaner.swap_in = _swap_in
        Shard.activate = _activate  # type: ignore[method-assign]
        Connection._write = _write  # type: ignore[method-assign]
        MarkerSender._answered = _answered  # type: ignore[method-assign]
        try:
            yield
        finally:
            Log.update_high_watermark = update  # type: ignore[method-assign]
            Log.truncate_to = truncate_to  # type: ignore[method-assign]
            log_cleaner.swap_in = swap_in
            Shard.activate = activate  # type: ignore[method-assign]
            Connection._write = write  # type: ignore[method-assign]
            MarkerSender._answered = answered  # type: ignore[method-assign]


@contextmanager
def _limits(world: TransactionWorld) -> Iterator[None]:
    """What the seed says of lines and epochs, and no configuration does."""
    for_groups, new_transaction = RuntimeSettings.for_groups, rules.new_transaction

    def _for_groups(values: Any) -> Any:
        return for_groups(values)._replace(max_waiting_count=world.max_waiting_count)

    def _new_transaction(*arguments: Any) -> Any:
        made = new_transaction(*arguments)
        return made._replace(producer=made.producer._replace(producer_epoch=world.first_epoch))

    RuntimeSettings.for_groups = _for_groups  # type: ignore[method-assign]
    rules.new_transaction = _new_transaction
    try:
        yield
    finally:
        RuntimeSettings.for_groups = for_groups  # type: ignore[method-assign]
        rules.new_transaction = new_transaction


METADATA = "__cluster_metadata"
UNSEEN = (METADATA, "__transaction_state")
