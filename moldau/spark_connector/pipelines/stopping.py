"""Ending a streaming query between two micro-batches instead of in the middle of one.

Owns the way to tell a query that the batch at work is its last. Must not interrupt that batch.
Invariant: no task of a further batch begins, and a batch whose tasks were at work is committed.

Spark's own `stop()` interrupts whatever runs. Nothing is lost by that, since the batch is done
again after a restart, but minutes of work may be. The stream's thread asks after each batch whether
the query is still active, so marking it as ended, without the interrupt, ends it there:

1. the batch's tasks run; the mark is set from here; nobody looks at it.
2. the batch commits; the trigger asks, sees the mark, and leaves its loop.

It also asks before it starts a batch's first task: one that was only planned by then is given up,
and is done after a restart.

From 1 on Spark calls the query inactive, so its thread has to be asked whether it has ended. When
the query waits for its next trigger or for data there is no batch to wait for: `stop()` ends the
waiting. A trigger that fires between the look and the `stop()` sees the mark and does nothing; but
one that has looked for the mark just before it was set is not called active yet. So a query waits
when it was seen to wait twice, some time apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PACKAGES = (
    "org.apache.spark.sql.execution.streaming.runtime",  # since 4.1
    "org.apache.spark.sql.execution.streaming",
)


def mark_as_last(query: StreamingQuery) -> bool:
    """Let the batch at work be the last one; False when this Spark cannot be told so."""
    from py4j.protocol import Py4JError

    handle: Any = getattr(query, "_jsq", None)
    if handle is None:  # Spark Connect: the query lives elsewhere
        return False
    from pyspark import SparkContext

    machine: Any = SparkContext._jvm
    for package in _PACKAGES:
        try:
            found = machine.java.lang.Class.forName(f"{package}.TERMINATED$")
            handle.streamingQuery().state().set(found.getField("MODULE$").get(None))
        except Py4JError:
            continue
        return True
    return False


def has_ended(query: StreamingQuery) -> bool:
    """Whether the query does nothing any more; a marked one may be at its last batch still."""
    if query.isActive:
        return False
    handle: Any = getattr(query, "_jsq", None)
    return handle is None or not handle.streamingQuery().queryExecutionThread().isAlive()


def is_between_batches(query: StreamingQuery) -> bool:
    """Whether the query waits for its next trigger or has ended."""
    return has_ended(query) or not query.status["isTriggerActive"]
