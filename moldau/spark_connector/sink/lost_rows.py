"""What is to be seen of a transaction that can no longer be committed.

Owns the reading of the places where its rows are said to lie, once as a reader of committed
records and once as one of all. Must not decide what follows. Invariant: VISIBLE and ABORTED are
proofs; what is none of both is UNKNOWN.

A transaction is committed or aborted as a whole, so one place is enough. Rows that lie there and
are hidden from readers of committed records, though nothing open is in front of them, are aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.compute as pc

from moldau.client import (
    KafkaError,
    OffsetOutOfRange,
    TopicPartition,
    UnknownTopicOrPartition,
    sync,
)
from moldau.spark_connector.core.commit_steps import Producer, Sight
from moldau.spark_connector.core.ledger import CHECKSUM_MODULUS, Range, Slot
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink.row_checksum import checksum_of

POLL_MS: Final = 500


def look_at(
    options: SinkOptions, slots: tuple[Slot, ...], admin: sync.Admin, limit_ms: float
) -> dict[Producer, Sight]:
    """How each slot's transaction has ended, as far as its rows tell."""
    return {slot.producer: _sight(options, slot, admin, limit_ms) for slot in slots}


def _sight(options: SinkOptions, slot: Slot, admin: sync.Admin, limit_ms: float) -> Sight:
    places = [each for each in slot.ranges if each.first_offset >= 0]
    if not places:
        return Sight.UNKNOWN
    wanted = sum(each.row_count for each in places)
    try:
        if not _is_behind_everything_open(places, admin, limit_ms):
            return Sight.UNKNOWN
        rows, checksum = _read(options, places, "read_committed", limit_ms)
        if rows == wanted:
            is_whole = slot.is_located and len(places) == len(slot.ranges)
            if is_whole and checksum != slot.checksum:
                return Sight.UNKNOWN
            return Sight.VISIBLE
        if rows == 0:
            hidden, _ = _read(options, places, "read_uncommitted", limit_ms)
            if hidden == wanted:
                return Sight.ABORTED
    except (OffsetOutOfRange, UnknownTopicOrPartition):
        return Sight.UNKNOWN
    return Sight.UNKNOWN


def _is_behind_everything_open(places: list[Range], admin: sync.Admin, limit_ms: float) -> bool:
    """Wait until the last stable offsets are beyond the rows; False if they do not get there."""
    ends: dict[TopicPartition, int] = {}
    for each in places:
        name = TopicPartition(each.topic, each.partition)
        ends[name] = max(ends.get(name, 0), each.first_offset + each.row_count)
    deadline_s = time.monotonic() + limit_ms / 1000
    while True:
        found = admin.list_offsets(dict.fromkeys(ends, -1), read_committed=True)
        if all(found[name].offset >= end for name, end in ends.items()):
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_MS / 1000)


def _read(
    options: SinkOptions, places: list[Range], isolation_level: str, limit_ms: float
) -> tuple[int, int]:
    """Rows and checksum of what a reader gets to see at the places."""
    rows = checksum = 0
    with sync.Consumer(
        config=options.consumer_config(isolation_level=isolation_level, auto_offset_reset="none")
    ) as consumer:
        for place in places:
            for batch in _batches(consumer, place, limit_ms):
                rows += batch.num_rows
                checksum += checksum_of(batch)
    return rows, checksum % CHECKSUM_MODULUS


def _batches(consumer: sync.Consumer, place: Range, limit_ms: float) -> Iterator[Any]:
    name = TopicPartition(place.topic, place.partition)
    end = place.first_offset + place.row_count
    consumer.assign([name])
    consumer.seek(name, place.first_offset)
    deadline_s = time.monotonic() + limit_ms / 1000
    while consumer.position(name) < end:
        if time.monotonic() >= deadline_s:
            raise KafkaError(
                f"{name} could not be read from {place.first_offset} to {end} in {limit_ms:.0f} ms"
            )
        batch = consumer.poll_arrow(timeout_ms=POLL_MS)
        inside = pc.less(batch.column("offset"), end)
        yield batch.filter(inside)
