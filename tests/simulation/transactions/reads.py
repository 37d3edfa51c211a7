"""What a consumer hands out between two positions is what the log's markers say.

Owns: the comparison with the streams of committed records. Must not: know how a consumer fetches.
Invariant: with read_committed exactly the committed records are handed out, each once and in order,
and nothing behind the first open transaction; with read_uncommitted all records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moldau.protocol.messages.p01_fetch import PartitionData
from moldau.protocol.records import iter_batches
from moldau.protocol.types import TopicPartition
from tests.kit.seeds import Violation

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld


def check_read(
    world: TransactionWorld,
    who: str,
    place: TopicPartition,
    between: tuple[int, int],
    got: Mapping[int, bytes | None],
    is_committed: bool,
) -> None:
    """A consumer has gone from one position to another. Raises Violation."""
    data = world.data
    start, end = between
    name = f"{place.topic}-{place.partition}"
    if data.is_spoilt or data.is_unclean(place.topic):
        return
    if end < start:
        raise Violation("reader-moved-back", f"{who}, {name}: from {start} to {end}")
    if list(got) != sorted(got):
        raise Violation("read-out-of-order", f"{who}, {name}: {list(got)}")
    expected = {}
    stream = data.stream(name)
    for placed in stream.between(start, end):
        outcome = placed.outcome
        if not is_committed:
            outcome = True
        elif outcome is None:
            marker = stream.marker_after(placed.producer_id, placed.offset)
            outcome = None if marker is None else marker[1]
            world.counts["read_before_marker"] += 1
        if outcome is None:
            raise Violation("read-open", f"{who}, {name}: {placed}")
        if outcome is False and placed.offset in got:
            raise Violation("read-aborted", f"{who}, {name}: {placed}")
        if outcome:
            expected[placed.offset] = placed.record.value
    if got != expected:
        wrong = sorted(set(got.items()) ^ set(expected.items()))
        raise Violation("read-incomplete", f"{who}, {name} {start}-{end}: {wrong[:4]}")
    world.counts["read_committed" if is_committed else "read_uncommitted"] += len(got)


def check_fetched(
    world: TransactionWorld, place: TopicPartition, data: PartitionData, is_committed: bool
) -> None:
    """A broker's answer to a consumer: aborted transactions come in the order in which they begin,
    and with read_committed nothing behind the last stable offset. Raises Violation.
    """
    pairs = [(each.first_offset, each.producer_id) for each in data.aborted_transactions or ()]
    if pairs != sorted(pairs, key=lambda pair: pair[0]):
        raise Violation("aborted-out-of-order", f"{place}: {pairs}")
    if not is_committed or world.data.is_spoilt or world.data.is_unclean(place.topic):
        return
    starts = [header.base_offset for _, header in iter_batches(data.records or b"")]
    if starts and starts[-1] >= data.last_stable_offset:
        stable = data.last_stable_offset
        raise Violation("read-beyond-stable", f"{place}: {starts}, stable up to {stable}")
