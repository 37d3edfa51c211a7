"""What a task does with its rows: write them in a transaction that stays open, or only count them.

Owns the task's one producer. Must not commit anything, nor outlive the task: the driver decides and
ends the transaction. Invariants: a transaction is opened only when there is something to send, and
as late as memory allows, since it holds back readers; a task that raises has aborted its own; a
prepared transaction is handed over only while the ledger is as it was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from moldau.client import ProducerConfig, TopicPartition, sync
from moldau.spark_connector.core.commit_protocol import (
    RefusalKind,
    Refused,
    Role,
    TaskReport,
    role_of,
)
from moldau.spark_connector.core.ledger import (
    CHECKSUM_MODULUS,
    MAX_RANGES_PER_SLOT,
    Range,
    Slot,
)
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink.batch_plan import PlannedBatch
from moldau.spark_connector.sink.ledger_store import newest_record
from moldau.spark_connector.sink.recovery import slot_id
from moldau.spark_connector.sink.rows import RowColumns, checksum_of

SEND_BYTES: Final = 8 * 1024 * 1024
"""Rows are gathered up to so many bytes before they are sent, and before the first of them opens a
transaction."""

ABORT_MS: Final = 10_000
"""How long a failed task tries to abort its transaction; then its time limit does, or a sweep."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which task this is."""

    query_id: str
    batch_id: int
    task: int
    attempt: int


@dataclass
class _Counted:
    """What has come so far."""

    rows: int = 0
    checksum: int = 0

    def add(self, batch: Any) -> None:
        self.rows += batch.num_rows
        self.checksum = (self.checksum + checksum_of(batch)) % CHECKSUM_MODULUS


def write_slot(
    options: SinkOptions,
    columns: RowColumns,
    planned: PlannedBatch,
    place: TaskPlace,
    batches: Iterator[Any],
) -> TaskReport:
    """Do what the plan has for this task.

    Raises:
        Refused: the protocol does not allow it.
        KafkaError: the cluster; the transaction is aborted.
    """
    plan, two_phase = planned.plan, planned.two_phase
    role, lost = role_of(plan, place.query_id, place.batch_id, place.task)
    counted = _Counted()
    slot = None
    if role is Role.VERIFY:
        for batch in batches:
            counted.add(columns.taken(batch))
    else:
        name = slot_id(plan.record.sink_id, place.task, place.attempt)
        config = _transactional_config(options, name, two_phase=two_phase)
        with _Sending(config, columns.topic, is_transactional=True) as sending:
            for batch in batches:
                taken = columns.taken(batch)
                sending.add(taken)
                counted.add(taken)
            if lost is not None:
                _check_same(lost, counted, plan.record.sink_id, place)
            if counted.rows:
                if two_phase:
                    sending.flush()
                    _check_in_charge(options, planned, place)
                producer_id, producer_epoch = sending.handed_over(two_phase=two_phase)
                slot = Slot(
                    place.task,
                    name,
                    producer_id,
                    producer_epoch,
                    counted.rows,
                    counted.checksum,
                    sending.ranges(),
                )
    return TaskReport(place.task, place.attempt, role, counted.rows, counted.checksum, slot)


def write_plain(options: SinkOptions, columns: RowColumns, batches: Iterator[Any]) -> int:
    """Write rows at least once and return how many.

    Raises:
        KafkaError: the cluster; some rows may have been written.
    """
    rows = 0
    with _Sending(options.producer_config(), columns.topic, is_transactional=False) as sending:
        for batch in batches:
            sending.add(columns.taken(batch))
            rows += batch.num_rows
        sending.flush()
    return rows


def _transactional_config(
    options: SinkOptions, transactional_id: str, *, two_phase: bool
) -> ProducerConfig:
    if two_phase:
        return options.producer_config(
            transactional_id=transactional_id, transaction_two_phase_commit_enable=True
        )
    return options.producer_config(transactional_id=transactional_id)


def _check_same(lost: Slot, counted: _Counted, sink_id: str, place: TaskPlace) -> None:
    if (lost.rows, lost.checksum) != (counted.rows, counted.checksum):
        raise Refused(
            RefusalKind.REPLAY_DIFFERS,
            f"task {place.task} of batch {place.batch_id} was decided in sink {sink_id!r} with "
            f"{lost.rows} rows (checksum {lost.checksum:016x}), which were lost, and comes again "
            f"with {counted.rows} rows ({counted.checksum:016x})",
        )


def _check_in_charge(options: SinkOptions, planned: PlannedBatch, place: TaskPlace) -> None:
    """A transaction without a time limit must be one that a driver will end.

    A driver that takes the sink over, or decides for the batch, changes the sink's record, and then
    aborts what is open. This transaction is open by now: either that driver finds it, or the change
    is seen here, and the task aborts its own transaction.

    Raises:
        Refused: the record has changed since the planning.
    """
    sink_id = planned.sink_id
    record = newest_record(options, sink_id, planned.ledger)
    if record != planned.plan.record:
        found = "nothing" if record is None else f"the token {record.driver}"
        raise Refused(
            RefusalKind.FENCED,
            f"task {place.task} of batch {place.batch_id} of sink {sink_id!r} comes too late: the "
            f"ledger has {found}, or another decision, since the batch was planned with the token "
            f"{planned.plan.token}",
        )


@dataclass
class _Sending:
    """Rows on their way; a thread of its own sends while Spark brings the next ones."""

    config: ProducerConfig
    topic: str | None
    is_transactional: bool
    _held: list[Any] = field(default_factory=list)
    _held_bytes: int = 0
    _producer: sync.Producer | None = None
    _pool: ThreadPoolExecutor | None = None
    _sent: Future[Any] | None = None
    _ranges: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=value is None, cancel_futures=True)
        if self._producer is not None:
            # Aborts what was not handed over.
            self._producer.close(timeout_ms=None if value is None else ABORT_MS)
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def add(self, batch: Any) -> None:
        """Take rows; wait for those before the last ones to be acknowledged."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= SEND_BYTES:
            self._send()

    def flush(self) -> None:
        """Send what is held and wait until everything is acknowledged."""
        if self._held:
            self._send()
        self._settle()

    def handed_over(self, *, two_phase: bool) -> tuple[int, int]:
        """Flush, and leave the transaction open for the driver: producer id and epoch."""
        self.flush()
        assert self._producer is not None
        if two_phase:
            prepared = self._producer.prepare_transaction()
        else:
            prepared = self._producer.hand_over_transaction()
        return prepared.producer_id, prepared.producer_epoch

    def ranges(self) -> tuple[Range, ...]:
        """Where the rows lie; not all places if there are very many."""
        found = [
            Range(name.topic, name.partition, first_offset, row_count)
            for name, places in self._ranges.items()
            for first_offset, row_count in places
        ]
        return tuple(found[:MAX_RANGES_PER_SLOT])

    def _send(self) -> None:
        table = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        self._settle()
        if self._producer is None:
            self._producer = sync.Producer(config=self.config)
            self._producer.flush()  # starts it: without, closing it leaves a task behind
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="moldau-sink")
            if self.is_transactional:
                self._producer.init_transactions()
                self._producer.begin_transaction()
        assert self._pool is not None
        self._sent = self._pool.submit(self._producer.send_arrow, self.topic, table)

    def _settle(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            for name, places in sent.result().partitions.items():
                self._ranges.setdefault(name, []).extend(places)
