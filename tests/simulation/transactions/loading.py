"""What a coordinator knows when it has loaded its log: what was written there, compacted or not.

Owns: comparing a loaded state machine with the log as leaders wrote it. Must not: replay records by
the production state machines. Invariant: a log that compaction has never touched would have led to
the same transactions and the same committed offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import NodeDisk
from tests.simulation.replication.mirror import batches_in, read_bytes
from tests.simulation.transactions.compaction import Meaning
from tests.simulation.transactions.group_log import OFFSET

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld


def check_loaded(world: TransactionWorld, shard: Any) -> None:
    """A shard has replayed its log to the end, and serves from now on. Raises Violation."""
    log = shard.partition._partition.log
    disk = log.filesystem
    if not isinstance(disk, NodeDisk) or disk.crashed or world.data.is_spoilt:
        return
    key = (log.topic_id, log.topic_partition.partition)
    who = disk.owner.name
    data = read_bytes(log, 0)
    meaning = world.data.check_compacted(
        who, key, disk.owner.broker_id, data, may_miss_tombstones=world.may_miss_tombstones
    )
    world.counts["coordinators_loaded"] += 1
    written = world.data.truth(key).replicas[disk.owner.broker_id].batches
    world.counts["loaded_compacted"] += list(batches_in(data)) != written
    if log.topic_partition.topic == TRANSACTION_STATE.topic:
        _check_transactions(who, meaning, shard.machine)
    else:
        world.loaded_ends[disk.owner.broker_id, key[1]] = log.log_end_offset
        _check_offsets(who, meaning, shard.machine)


def _check_transactions(who: str, meaning: Meaning, machine: Any) -> None:
    written = {}
    for raw_key, (_offset, raw_value) in meaning.settled.items():
        key: Any = TRANSACTION_STATE.decode_key(raw_key)
        value: Any = TRANSACTION_STATE.decode_value(key, raw_value)[0]
        partitions = frozenset(
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        )
        written[key.transactional_id] = (
            value.producer_id,
            value.producer_epoch,
            value.transaction_status,
            value.transaction_timeout_ms,
            value.transaction_start_timestamp_ms,
            partitions,
        )
    loaded = {
        name: (
            *each.producer,
            int(each.status),
            each.timeout_ms,
            each.start_ms,
            frozenset(tuple(place) for place in each.partitions),
        )
        for name, each in machine.transactions.items()
    }
    _compare(who, written, loaded)


def _check_offsets(who: str, meaning: Meaning, machine: Any) -> None:
    written = {}
    for raw_key, (offset, raw_value) in meaning.settled.items():
        key: Any = CONSUMER_OFFSETS.decode_key(raw_key)
        if key.API_KEY == OFFSET:
            value: Any = CONSUMER_OFFSETS.decode_value(key, raw_value)[0]
            place = (key.group, key.topic, key.partition)
            written[place] = (value.offset, value.metadata, offset)
    store = machine.offsets
    loaded = {
        (group, topic, partition): (each.offset, each.metadata, each.log_offset)
        for group in store._committed
        for topic, partitions in store.topics(group).items()
        for partition, each in partitions.items()
    }
    _compare(who, written, loaded)


def _compare(who: str, written: dict[Any, Any], loaded: dict[Any, Any]) -> None:
    if written != loaded:
        wrong = [
            (key, written.get(key), loaded.get(key))
            for key in sorted(written.keys() | loaded.keys())
            if written.get(key) != loaded.get(key)
        ]
        raise Violation("loaded-other-state", f"{who}: {wrong[:3]}")
