"""The sink of a batch write: one transaction over all tasks, and once only when it has a name.

Owns what Spark calls, in which process. Must not talk to a cluster by itself. Spark pickles the
writer on the driver before the tasks start, where the write is planned; tasks, commit and abort get
that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from moldau.spark_connector.core.ledger import NAMED_PREFIX, ONCE_PREFIX
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.options.sink_options import Semantics, SinkOptions
from moldau.spark_connector.sink.batch_plan import (
    PlannedBatch,
    abort_batch,
    commit_batch,
    plan_batch,
)
from moldau.spark_connector.sink.failures import explained
from moldau.spark_connector.sink.row_columns import RowColumns
from moldau.spark_connector.sink.slot_writer import TaskPlace, write_plain, write_slot
from moldau.spark_connector.sink.stream_writer import SinkMessage, check_all_told, gathered

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ID = 0


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
    columns = RowColumns.of(
        schema,
        options.topic,
        include_timestamp=options.include_timestamp,
        ledger_topic=options.ledger_topic,
    )
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
