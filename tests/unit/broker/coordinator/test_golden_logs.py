"""Both coordinators load the logs that Apache Kafka wrote (golden/README.md)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from moldau.broker.coordinator.transaction.core.transaction import TransactionStatus
from moldau.protocol.records import iter_batches
from tests.unit.broker.coordinator.group.harness import Groups
from tests.unit.broker.coordinator.harness import MemoryPartition
from tests.unit.broker.coordinator.transaction.bench import Bench

GOLDEN = Path(__file__).parent / "golden"
TOPIC = "grouped"
TOPIC_ID = UUID("f5ba6592-3409-4691-abb9-5f9b79951107")
"""The topic's id in Apache Kafka's cluster, as some of the offsets name it."""


def put(partition: MemoryPartition, name: str) -> None:
    """Make a file the partition's log, batch by batch."""
    data = bytearray((GOLDEN / name).read_bytes())
    starts = [position for position, _ in iter_batches(data)]
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        partition.batches.append(data[start:end])
    partition.log_end_offset = partition.high_watermark = [
        header.next_offset for _, header in iter_batches(data)
    ][-1]


def kafka_groups() -> Groups:
    """A coordinator that has taken over from Apache Kafka."""
    groups = Groups(partition_count=3, is_led=False)
    groups.create_topic(TOPIC, 3, TOPIC_ID)
    for index in range(3):
        put(groups.broker.partition(index), f"__consumer_offsets-{index}.log")
    groups.broker.elect_all()
    return groups


def test_groups_and_offsets() -> None:
    groups = kafka_groups()
    states = dict(groups.coordinator.runtime.states())
    found = {
        group_id: (index, group.kind, group.state_name)
        for index, state in states.items()
        for group_id, group in state.groups.items()
    }
    assert found == {
        "left-classic": (0, "classic", "Empty"),
        "left-consumer": (0, "consumer", "Empty"),
        "only-offsets": (1, "classic", "Empty"),
        "in-transactions": (2, "classic", "Empty"),
    }
    # Requests find them where Apache Kafka's hash put them.
    assert {group_id: groups.offset(TOPIC, 0, group_id) for group_id in found} == {
        "left-classic": 4,
        "left-consumer": 4,
        "only-offsets": -1,
        "in-transactions": 3,
    }
    assert groups.offset(TOPIC, 1, "only-offsets") == 5
    assert groups.offset(TOPIC, 2, "left-consumer") == 0
    assert not any(state.offsets.has_open_transactions(each) for state in states.values()
                   for each in found)  # fmt: skip


def test_groups_go_on() -> None:
    groups = kafka_groups()
    assert groups.coordinator.partition_of("left-classic") == 0
    [member] = groups.stable(group_id="left-classic")
    assert member.generation > 1, "generations go on from the log's"


def test_transactions() -> None:
    bench = Bench()
    bench.broker.depose()
    put(bench.log, "__transaction_state-0.log")
    bench.broker.elect()
    assert {
        transactional_id: (transaction.status, transaction.timeout_ms)
        for transactional_id, transaction in bench.state.transactions.items()
    } == {
        "t": (TransactionStatus.COMPLETE_ABORT, 60_000),
        "with-offsets": (TransactionStatus.COMPLETE_ABORT, 900_000),
        "left-open": (TransactionStatus.ONGOING, 900_000),
    }
    left = bench.transaction("left-open")
    assert [(each.topic, each.partition) for each in left.partitions] == [("left-open", 0)]
