"""A pipeline at work: a streaming query, or a job that goes from chunk to chunk by itself.

Owns the common interface of both, and the way to tell a query that the batch at work is its last.
Must not decide when to stop, nor interrupt that batch. Invariants: each batch is reported once; a
failure is one line, with the cause that the connector itself gave when it did; after the mark no
task of a further batch begins, and a batch whose tasks were at work is committed.

Spark's own `stop()` interrupts whatever runs. Nothing is lost by that, since the batch is done
again after a restart, but minutes of work may be. The stream's thread asks after each batch whether
the query is still active, so marking it as ended, without the interrupt, ends it there:

1. the batch's tasks run; the mark is set from here; nothing reads it yet.
2. the batch commits; the trigger asks, sees the mark, and leaves its loop.

It also asks before it starts a batch's first task: one that was only planned by then is given up,
and is done after a restart.

From 1 on Spark calls the query inactive, so its thread has to be asked whether it has ended. When
the query waits for its next trigger or for data there is no batch to wait for: `stop()` ends the
waiting. A trigger that fires between the look and the `stop()` sees the mark and does nothing; but
one that has looked for the mark just before it was set is not called active yet. So a query counts
as waiting only when it was seen to wait twice, some time apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.spark_connector.pipelines.output_claims import OutputClaim
from moldau.spark_connector.pipelines.progress import BatchProgress, batch_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PACKAGES = (
    "org.apache.spark.sql.execution.streaming.runtime",  # since 4.1
    "org.apache.spark.sql.execution.streaming",
)
MAX_MESSAGE_CHARACTERS: Final = 1_000
_OURS: Final = re.compile(
    r"moldau\.spark_connector\.[\w.]*?(\w+): (.+?)(?=\n\s*at |\n\S*Traceback|\n\n|\Z)", re.S
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


class Running(Protocol):
    """A pipeline at work."""

    name: str

    def is_over(self) -> bool:
        """Whether it has ended, well or not."""

    def new_progress(self) -> Sequence[BatchProgress]:
        """The batches that were done since the last call, in their order."""

    def stop_after_batch(self) -> None:
        """Begin no further batch. Returns at once; may be called again."""

    def stop_now(self) -> None:
        """Give up the batch at work; it will be done again after a restart."""

    def failure(self) -> str | None:
        """Why it has ended, in one line; None when it ended well or has not."""


class RunningQuery:
    """A streaming query; what it has claimed for itself is released when it has ended."""

    def __init__(self, name: str, query: StreamingQuery, claim: OutputClaim | None = None) -> None:
        self.name = name
        self._query = query
        self._claim = claim
        self._told: tuple[int, str] = (-1, "")
        self._seen: tuple[int, str] | None = None
        self._is_marked = False
        self._asked_at: int | None = None
        self._seems_to_wait = False

    def is_over(self) -> bool:
        if not has_ended(self._query):
            return False
        self._release()
        return True

    def new_progress(self) -> list[BatchProgress]:
        last = self._query.lastProgress
        if last is None or _turn(last) == self._seen:
            return []
        self._seen = _turn(last)
        # The whole list is some hundred calls of the Java machine: only when a batch was missed.
        is_next = last["batchId"] == self._told[0] + 1 and last["numInputRows"]
        found = []
        for each in (last,) if is_next else self._query.recentProgress:
            # While idle Spark tells of the same batch again, with a later time and no rows.
            turn = _turn(each)
            if turn > self._told and (turn[0] > self._told[0] or each["numInputRows"]):
                found.append(batch_progress(self.name, _plain(each)))
                self._told = turn
        return found

    def stop_after_batch(self) -> None:
        if self._asked_at is None:
            self._asked_at = self._told[0]
            self._is_marked = mark_as_last(self._query)
        # Without the mark (Spark Connect) the next batch may just have begun: it is given up.
        has_done_one = not self._is_marked and self._told[0] > self._asked_at
        seemed_to_wait, self._seems_to_wait = self._seems_to_wait, is_between_batches(self._query)
        if has_done_one or (seemed_to_wait and self._seems_to_wait):
            self._query.stop()

    def stop_now(self) -> None:
        self._query.stop()  # a query that does not stop keeps its claim until the process ends
        self._release()

    def failure(self) -> str | None:
        error = self._query.exception()
        return None if error is None else failure_line(str(error))

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()


def failure_line(text: str) -> str:
    """The one line that matters in what Spark says about a failed query.

    Spark wraps an error of the connector in its own text and a Python traceback; the last such
    error in there is the cause.
    """
    ours = list(_OURS.finditer(text))
    if ours:
        line = f"{ours[-1][1]}: {ours[-1][2]}"
    else:
        line = text.split("JVM stacktrace:")[0].split("\n\tat ")[0]
    line = " ".join(line.split())
    if len(line) > MAX_MESSAGE_CHARACTERS:
        line = f"{line[:MAX_MESSAGE_CHARACTERS]} …"
    return line


def _turn(progress: Any) -> tuple[int, str]:
    return int(progress["batchId"]), str(progress["timestamp"])


def _plain(progress: Any) -> dict[str, Any]:
    """A progress as plain mappings. PySpark's objects are dictionaries, but those of 4.1 have the
    offsets as Python shows them; Spark's own JSON is the same everywhere.
    """
    text = getattr(progress, "json", None)
    return dict(progress) if text is None else dict(json.loads(text))
