"""The two writers that Spark calls: of a streaming query, and of a batch write.

Owns what happens in which process. Must not talk to a cluster by itself.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from moldau.spark_connector.core.commit_protocol import TaskReport
from moldau.spark_connector.core.ledger import NAMED_PREFIX, ONCE_PREFIX
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.options.sink_options import Semantics, SinkOptions
from moldau.spark_connector.sink.batch_plan import (
    PlannedBatch,
    abort_batch,
    commit_batch,
    plan_batch,
    planned_for,
)
from moldau.spark_connector.sink.failures import explained
from moldau.spark_connector.sink.rows import RowColumns
from moldau.spark_connector.sink.slot_writer import TaskPlace, write_plain, write_slot

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ID = 0


@dataclass
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver. `report` is None for a write without transactions."""

    rows: int
    planned: PlannedBatch | None = None
    query_id: str = ""
    report: TaskReport | None = None


def make_stream_writer(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> MoldauStreamWriter:
    """The writer for one micro-batch. `overwrite` (output mode complete) changes nothing: every
    batch is appended, as in Spark's own sink.

    Raises:
        InvalidOption, InvalidSchema
    """
    options = SinkOptions.parse(given)
    sink_id = ""
    if options.semantics is Semantics.EXACTLY_ONCE:
        sink_id = options.stream_sink_id()
    columns = _columns(schema, options)
    return MoldauStreamWriter(options, columns, sink_id)


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

    def __getstate__(self) -> dict[str, Any]:
        """On the driver, before the tasks: plan."""
        if self.options.semantics is Semantics.EXACTLY_ONCE and self.planned is None:
            self.planned = plan_batch(self.options, self.sink_id)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task: write its rows."""
        with explained(f"writing a partition of sink {self.sink_id or self.columns.topic!r}"):
            if self.planned is None:
                return SinkMessage(write_plain(self.options, self.columns, iterator))
            place = _place()
            planned = planned_for(self.options, self.planned, place.query_id)
            report = write_slot(self.options, self.columns, planned, place, iterator)
            return SinkMessage(report.rows, planned, place.query_id, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks have written."""
        if self.options.semantics is Semantics.EXACTLY_ONCE:
            planned, query_id, reports = gathered(messages)
            check_all_told(messages, reports)
            if planned is not None:
                commit_batch(self.options, planned, query_id, batchId, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task or the commit has failed."""
        if self.options.semantics is Semantics.EXACTLY_ONCE:
            planned, _, reports = gathered(messages)
            abort_batch(self.options, self.sink_id, planned, batchId, reports, len(messages))


def gathered(
    messages: list[WriterCommitMessage | None],
) -> tuple[PlannedBatch | None, str, list[TaskReport]]:
    """What the tasks that have got that far have told."""
    told = [each for each in messages if isinstance(each, SinkMessage) and each.report is not None]
    if not told:
        return None, "", []
    reports = [each.report for each in told if each.report is not None]
    return told[0].planned, told[0].query_id, reports


def check_all_told(messages: list[WriterCommitMessage | None], reports: list[TaskReport]) -> None:
    """A decision without one task's transaction would lose that task's rows.

    Raises:
        SparkConnectorError: a task has no report, though Spark wants to commit.
    """
    if len(reports) != len(messages):
        raise SparkConnectorError(
            f"Spark commits {len(messages)} tasks, and only {len(reports)} have said what they "
            "wrote: nothing was committed. Start the query again, or write once more"
        )


def _place() -> TaskPlace:
    context = TaskContext.get()
    if context is None:
        raise SparkConnectorError("the sink writes in Spark's tasks only")
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
    """The writer for one `save`.

    Raises:
        InvalidOption, InvalidSchema
    """
    if overwrite:
        raise InvalidOption(
            "mode overwrite is not supported: records of a topic cannot be replaced; use "
            'mode("append"), as with Spark\'s own sink'
        )
    options = SinkOptions.parse(given)
    columns = _columns(schema, options)
    return MoldauBatchWriter(options, columns)


class MoldauBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; see the module."""

    def __init__(self, options: SinkOptions, columns: RowColumns) -> None:
        self.options = options
        self.columns = columns
        self.planned: PlannedBatch | None = None
        name = options.txn_id
        self.query_id = f"{ONCE_PREFIX}{uuid.uuid4().hex}" if name is None else NAMED_PREFIX + name
        self.sink_id = options.batch_sink_id(self.query_id)

    def __getstate__(self) -> dict[str, Any]:
        """On the driver, before the tasks: plan."""
        if self.options.semantics is Semantics.EXACTLY_ONCE and self.planned is None:
            self.planned = plan_batch(
                self.options,
                self.sink_id,
                query_id=self.query_id,
                is_single=self.options.sink_id is None and self.options.txn_id is None,
            )
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task: write its rows."""
        with explained(f"writing a partition of sink {self.sink_id!r}"):
            if self.planned is None:
                return SinkMessage(write_plain(self.options, self.columns, iterator))
            context = TaskContext.get()
            if context is None:
                raise SparkConnectorError("the sink writes in Spark's tasks only")
            place = TaskPlace(
                self.query_id, BATCH_ID, context.partitionId(), context.attemptNumber()
            )
            report = write_slot(self.options, self.columns, self.planned, place, iterator)
            # The driver's writer has the plan: it need not travel with every task's message.
            return SinkMessage(report.rows, None, self.query_id, report)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have written."""
        if self.planned is not None:
            _, _, reports = gathered(messages)
            check_all_told(messages, reports)
            commit_batch(self.options, self.planned, self.query_id, BATCH_ID, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit has failed."""
        if self.planned is not None:
            _, _, reports = gathered(messages)
            abort_batch(self.options, self.sink_id, self.planned, BATCH_ID, reports, len(messages))
