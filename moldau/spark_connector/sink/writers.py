"""The two writers that Spark calls, of a streaming query and of a batch write, and a task's work.

Owns what happens in which process, and the one producer of a task. The driver decides
(`core.commit_protocol`) and ends the transaction; a task must not commit anything, and its producer
does not outlive it. Invariants: a transaction is opened only when there is something to send, and
as late as memory allows, since it holds back readers; a task that raises has aborted its own; a
prepared transaction is handed over only while the ledger is as it was planned.

Stream: Spark makes the writer on the driver for every micro-batch and pickles it, twice, before a
task starts: there the batch is planned, once. Tasks get the pickled writer. For commit and abort
Spark makes a new writer, which knows nothing: everything travels in the tasks' messages.

Batch: one transaction over all tasks, and once only when the write has a name. Spark pickles the
writer on the driver before the tasks start, where the write is planned; tasks, commit and abort get
that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

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
    NAMED_PREFIX,
    ONCE_PREFIX,
    Range,
    Slot,
)
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.failures import explained
from moldau.spark_connector.sink.driver import (
    PlannedBatch,
    abort_batch,
    commit_batch,
    plan_batch,
    planned_for,
    slot_id,
)
from moldau.spark_connector.sink.ledger_store import newest_record
from moldau.spark_connector.sink.options import Semantics, SinkOptions
from moldau.spark_connector.sink.rows import RowColumns, checksum_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ID = 0


@dataclass
class SinkMessage(WriterCommitMessage):
    """What a task reports to the driver. `report` is None for a write without transactions."""

    rows: int
    planned: PlannedBatch | None = None
    query_id: str = ""
    report: TaskReport | None = None


def make_stream_writer(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> MoldauStreamWriter:
    """The writer for one micro-batch. `overwrite` (output mode complete) changes nothing: every
    batch is appended, as in Spark's own sink. Raises: InvalidOption, InvalidSchema
    """
    options = SinkOptions.parse(given)
    sink_id = options.stream_sink_id() if options.semantics is Semantics.EXACTLY_ONCE else ""
    return MoldauStreamWriter(options, _columns(schema, options), sink_id)


def _columns(schema: StructType, options: SinkOptions) -> RowColumns:
    return RowColumns.of(
        schema,
        options.topic,
        include_timestamp=options.include_timestamp,
        ledger_topic=options.ledger_topic,
    )


class MoldauStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch; see the module."""

    def __init__(self, options: SinkOptions, columns: RowColumns, sink_id: str) -> None:
        self.options = options
        self.columns = columns
        self.sink_id = sink_id
        self.planned: PlannedBatch | None = None

    def __getstate__(self) -> dict[str, object]:
        """Plan: the driver pickles it before the tasks run."""
        if self.options.semantics is Semantics.EXACTLY_ONCE and self.planned is None:
            self.planned = plan_batch(self.options, self.sink_id)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with explained(f"writing a partition of sink {self.sink_id or self.columns.topic!r}"):
            if self.planned is None:
                return SinkMessage(write_plain(self.options, self.columns, iterator))
            place = _place()
            planned = planned_for(self.options, self.planned, place.query_id)
            report = write_slot(self.options, self.columns, planned, place, iterator)
            return SinkMessage(report.rows, planned, place.query_id, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.options.semantics is Semantics.EXACTLY_ONCE:
            planned, query_id, reports = gathered(messages)
            check_all_told(messages, reports)
            if planned is not None:
                commit_batch(self.options, planned, query_id, batchId, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.options.semantics is Semantics.EXACTLY_ONCE:
            planned, _, reports = gathered(messages)
            abort_batch(self.options, self.sink_id, planned, batchId, reports, len(messages))


def gathered(
    messages: list[WriterCommitMessage | None],
) -> tuple[PlannedBatch | None, str, list[TaskReport]]:
    """The plan, the query and the reports, from the tasks that have sent a message."""
    told = [each for each in messages if isinstance(each, SinkMessage) and each.report is not None]
    if not told:
        return None, "", []
    reports = [each.report for each in told if each.report is not None]
    return told[0].planned, told[0].query_id, reports


def check_all_told(messages: list[WriterCommitMessage | None], reports: list[TaskReport]) -> None:
    """A decision without one task's transaction would lose that task's rows. Raises:
    SparkConnectorError: a task has no report, though Spark wants to commit
    """
    if len(reports) != len(messages):
        raise SparkConnectorError(
            f"Spark commits {len(messages)} tasks, and only {len(reports)} have said what they "
            "wrote: nothing was committed. Start the query again, or write once more"
        )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkConnectorError("the sink writes in Spark's tasks only")
    return context


def _place() -> TaskPlace:
    context = _task_context()
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or batch_id is None:
        raise SparkConnectorError(
            "Spark does not tell this task which query and batch it belongs to"
        )
    return TaskPlace(query_id, int(batch_id), context.partitionId(), context.attemptNumber())


def make_batch_writer(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> MoldauBatchWriter:
    """The writer for one `save`. Raises: InvalidOption, InvalidSchema"""
    if overwrite:
        raise InvalidOption(
            "mode overwrite is not supported: records of a topic cannot be replaced; use "
            'mode("append"), as with Spark\'s own sink'
        )
    options = SinkOptions.parse(given)
    return MoldauBatchWriter(options, _columns(schema, options))


class MoldauBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; see the module."""

    def __init__(self, options: SinkOptions, columns: RowColumns) -> None:
        self.options = options
        self.columns = columns
        self.planned: PlannedBatch | None = None
        name = options.txn_id
        self.query_id = f"{ONCE_PREFIX}{uuid.uuid4().hex}" if name is None else NAMED_PREFIX + name
        self.sink_id = options.batch_sink_id(self.query_id)

    def __getstate__(self) -> dict[str, object]:
        """Plan: the driver pickles it before the tasks run."""
        if self.options.semantics is Semantics.EXACTLY_ONCE and self.planned is None:
            self.planned = plan_batch(
                self.options,
                self.sink_id,
                query_id=self.query_id,
                is_single=self.options.sink_id is None and self.options.txn_id is None,
            )
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with explained(f"writing a partition of sink {self.sink_id!r}"):
            if self.planned is None:
                return SinkMessage(write_plain(self.options, self.columns, iterator))
            context = _task_context()
            place = TaskPlace(
                self.query_id, BATCH_ID, context.partitionId(), context.attemptNumber()
            )
            report = write_slot(self.options, self.columns, self.planned, place, iterator)
            # The driver's writer has the plan: it need not travel with every task's message.
            return SinkMessage(report.rows, None, self.query_id, report)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.planned is not None:
            _, _, reports = gathered(messages)
            check_all_told(messages, reports)
            commit_batch(self.options, self.planned, self.query_id, BATCH_ID, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.planned is not None:
            _, _, reports = gathered(messages)
            abort_batch(self.options, self.sink_id, self.planned, BATCH_ID, reports, len(messages))


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
    """How many rows have come so far, and their checksum."""

    rows: int = 0
    checksum: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.checksum = (self.checksum + checksum_of(batch)) % CHECKSUM_MODULUS


def write_slot(
    options: SinkOptions,
    columns: RowColumns,
    planned: PlannedBatch,
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
) -> TaskReport:
    """Do what the plan has for this task. Raises: Refused: the protocol does not allow it;
    KafkaError: the cluster; the transaction is then aborted
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
        config = options.producer_config(
            transactional_id=name, transaction_two_phase_commit_enable=two_phase
        )
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


def write_plain(
    options: SinkOptions, columns: RowColumns, batches: Iterator[pa.RecordBatch]
) -> int:
    """Write rows at least once and return how many. Raises: KafkaError: the cluster; some rows may
    have been written
    """
    rows = 0
    with _Sending(options.producer_config(), columns.topic, is_transactional=False) as sending:
        for batch in batches:
            sending.add(columns.taken(batch))
            rows += batch.num_rows
        sending.flush()
    return rows


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
    is seen here (Refused), and the task aborts its own transaction.
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
    """Rows on their way; its own thread sends while Spark brings the next ones."""

    config: ProducerConfig
    topic: str | None
    is_transactional: bool
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0
    _producer: sync.Producer | None = None
    _pool: ThreadPoolExecutor | None = None
    _sent: Future[Any] | None = None
    _ranges: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=value is None, cancel_futures=True)
        if self._producer is not None:
            # Aborts what was not handed over.
            self._producer.close(timeout_ms=None if value is None else ABORT_MS)
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; wait for those before the last ones to be acknowledged."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= SEND_BYTES:
            self._send()

    def flush(self) -> None:
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
