"""Ends what a sink has left open, without writing: for queries that will not be started again.

Owns nothing but the call. Invariant: what was decided is committed, everything else is aborted;
a query that does run is fenced, and fails loudly.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.spark_connector.core.task_roles import check_nothing_is_lost
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink.batch_plan import plan_batch
from moldau.spark_connector.sink.failures import explained


def settle_sink(options: Mapping[str, str]) -> None:
    """Commit what a sink has decided to commit, and abort whatever else it has open.

    Each start of a query does the same. Standard transactions also end by their time limit;
    prepared ones have none, and hold back readers until somebody does this.

    Args:
        options: those of the write that matter: `kafka.*`, `sinkId` (or `checkpointLocation`), and
            `ledgerTopic` if it was given.

    Raises:
        SparkConnectorError: what a start would raise; RowsLost when rows are lost.
    """
    parsed = SinkOptions.parse(options)
    planned = plan_batch(parsed, parsed.stream_sink_id())
    if planned.plan.record.batch is not None:
        with explained(f"settling sink {planned.sink_id!r}"):
            check_nothing_is_lost(planned.plan.record.batch)
