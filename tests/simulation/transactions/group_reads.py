"""How members of groups read committed records: what they are shown is what the markers say.

Owns: one fetch, and taking aborted records out as clients do. Must not: know
transactions. Invariant: between two positions a reader has got exactly the committed records.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.records import (
    ControlRecordType,
    Record,
    decode_end_txn_marker,
    decode_records,
    iter_batches,
)
from tests.kit.seeds import Violation
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink, PartitionView

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import Key
    from tests.simulation.transactions.world import TransactionWorld

READ_COMMITTED = 1
MAX_WAIT_MS = 200
UNEXPECTED = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST, ErrorCode.CORRUPT_MESSAGE}
)


async def read_committed(
    world: TransactionWorld,
    link: ClusterLink,
    random: Random,
    place: tuple[str, int],
    position: int,
    *,
    may_follow: bool = True,
) -> tuple[list[tuple[int, bytes]], int]:
    """One fetch: committed records with their offsets, and the position behind what was read.

    Raises Violation when they are not those that the log's markers commit.
    """
    topic, index = place
    view = await link.leader(topic, index)
    if view is None or topic not in link.topic_ids:
        await link.pause()
        await link.refresh(topic)
        return [], position
    topic_id = link.topic_ids[topic]
    source = view.leader_id
    if may_follow and random.random() < 0.2:
        source = random.choice(sorted(view.replicas))
    request = _request(link, view, place, position, random)
    try:
        response = await link.ask(source, request)
    except NO_ANSWER:
        await link.pause()
        await link.refresh(topic)
        return [], position
    error = ErrorCode.of(response.error_code)
    data = None
    if error is ErrorCode.NONE and response.responses:
        data = response.responses[0].partitions[0]
        error = ErrorCode.of(data.error_code)
    if error in UNEXPECTED:
        raise Violation("unexpected-error", f"{link.process.name}: fetch: {error.name}")
    if data is None or error is not ErrorCode.NONE:
        world.counts[f"read {error.name}"] += 1
        if error is ErrorCode.OFFSET_OUT_OF_RANGE and world.data.is_spoilt:
            return [], 0
        await link.pause()
        await link.refresh(topic)
        return [], position
    return _take(world, link.process.name, (topic_id, index), position, data)


def _request(
    link: ClusterLink, view: PartitionView, place: tuple[str, int], position: int, random: Random
) -> fetch.FetchRequest:
    return fetch.FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=random.choice((1, 1_000, 1_000_000)),
        isolation_level=READ_COMMITTED,
        session_epoch=-1,
        topics=[
            fetch.FetchTopic(
                topic=place[0],
                topic_id=link.topic_ids[place[0]],
                partitions=[
                    fetch.FetchPartition(
                        partition=place[1],
                        current_leader_epoch=view.leader_epoch,
                        fetch_offset=position,
                        partition_max_bytes=100_000,
                    )
                ],
            )
        ],
    )


def _take(
    world: TransactionWorld, who: str, key: Key, position: int, data: Any
) -> tuple[list[tuple[int, bytes]], int]:
    truth = world.data.truth(key)
    name = truth.name
    pairs = [(each.first_offset, each.producer_id) for each in data.aborted_transactions or ()]
    if pairs != sorted(pairs, key=lambda pair: pair[0]):
        raise Violation("aborted-out-of-order", f"{who}, {name}: {pairs}")
    found, end = _filtered(bytes(data.records or b""), pairs, position)
    if world.data.is_spoilt or truth.allows_unclean:
        return [(offset, record.value or b"") for offset, record in found], end
    if end > max(position, data.last_stable_offset):
        raise Violation(
            "read-beyond-stable", f"{who}, {name}: up to {end}, stable {data.last_stable_offset}"
        )
    got = {offset: record.value for offset, record in found}
    expected = {}
    stream = world.data.stream(name)
    for placed in stream.between(position, end):
        outcome = placed.outcome
        if outcome is None:
            marker = stream.marker_after(placed.producer_id, placed.offset)
            outcome = None if marker is None else marker[1]
            world.counts["read_before_marker"] += 1
        if outcome is None:
            raise Violation("read-open", f"{who}, {name}: {placed}")
        if outcome is False and placed.offset in got:
            raise Violation("read-aborted", f"{who}, {name}: {placed}, told {pairs}")
        if outcome:
            expected[placed.offset] = placed.record.value
    if got != expected:
        wrong = sorted(set(got.items()) ^ set(expected.items()))
        raise Violation("read-incomplete", f"{who}, {name} {position}-{end}: {wrong[:4]}")
    world.counts["read_committed"] += len(got)
    return [(offset, value or b"") for offset, value in got.items()], end


def _filtered(
    records: bytes, aborted: list[tuple[int, int]], position: int
) -> tuple[list[tuple[int, Record]], int]:
    """What a client hands to its application, and where it goes on."""
    waiting = list(aborted)
    dropped: set[int] = set()
    found: list[tuple[int, Record]] = []
    end = position
    for start, header in iter_batches(records):
        end = header.last_offset + 1
        while waiting and waiting[0][0] <= header.last_offset:
            dropped.add(waiting.pop(0)[1])
        decoded = decode_records(records, start)
        if header.is_control:
            if decode_end_txn_marker(decoded[0]).type is ControlRecordType.ABORT:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            found.extend(
                (header.base_offset + number, record)
                for number, record in enumerate(decoded)
                if header.base_offset + number >= position
            )
    return found, max(end, position)
