"""What lies in the log of transactions, read and written by hand."""

from __future__ import annotations

from moldau.broker.coordinator.core.result import (
    LAST_CLIENT_EPOCH,
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
)
from moldau.broker.coordinator.transaction.core.transaction import (
    Transaction,
    TransactionStatus,
    record_key,
    record_value,
)
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.coordinator_records.transactions import TransactionLogValue
from moldau.protocol.records import decode_records, iter_batches
from tests.unit.broker.coordinator.transaction.bench import FIRST_PRODUCER_ID, TIMEOUT_MS, Bench

FIRST = FIRST_PRODUCER_ID
LAST = Producer(FIRST_PRODUCER_ID, LAST_CLIENT_EPOCH)
DAY_MS = 24 * 3600 * 1000


def logged(bench: Bench) -> list[tuple[str, TransactionLogValue | None, int]]:
    """Id, value and value version of every record in the log that says something: not of those
    that prove the leadership for a refusal.
    """
    found = []
    for batch in bench.log.batches:
        for position, _ in iter_batches(batch):
            for record in decode_records(batch, position):
                key = TRANSACTION_STATE.decode_key(record.key)
                if key == TRANSACTION_STATE.unused_key:
                    assert record.value is None
                    continue
                value, version = None, -1
                if record.value is not None:
                    value, version = TRANSACTION_STATE.decode_value(key, record.value)
                found.append((key.transactional_id, value, version))
    return found


def with_epoch(bench: Bench, producer_epoch: int, **changes: object) -> None:
    """The id "t", or that of `changes`, as if it had gone on to that epoch: in the log."""
    transaction = bench.transaction()
    made = Transaction(
        **{
            "transactional_id": "t",
            "producer": transaction.producer._replace(producer_epoch=producer_epoch),
            "status": TransactionStatus.EMPTY,
            "timeout_ms": TIMEOUT_MS,
            "last_update_ms": transaction.last_update_ms,
            "client_version": 2,
            **changes,
        }
    )
    append(bench, CoordinatorRecord(record_key(made.transactional_id), record_value(made, 1), 1))


def append(bench: Bench, record: CoordinatorRecord) -> None:
    bench.runtime.call(0, lambda state, now_ms: CoordinatorResult(records=[record]))
