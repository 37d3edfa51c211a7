"""A pipeline at work: a streaming query, or a job that goes from chunk to chunk by itself.

Owns the common interface of both, the way to tell a query that the batch at work is its last, and
the progress: one value for each batch, shown as a table on a terminal and as a line per batch
elsewhere. Must not decide when to stop (`runner` does), nor interrupt the batch at work.
Invariants: each batch is reported once; a failure is one line, with the cause that the connector
itself gave when it did; after the mark no task of a further batch begins, and a batch whose tasks
were at work is committed; progress is written to the console that was given, and never to stdout.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from moldau.spark_connector.pipelines.output_claims import OutputClaim
from moldau.text import one_line

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

SparkProgress: TypeAlias = Mapping[str, Any]
"""What Spark says about a micro-batch, as JSON."""
_PACKAGES = (
    "org.apache.spark.sql.execution.streaming.runtime",  # since 4.1
    "org.apache.spark.sql.execution.streaming",
)
MAX_MESSAGE_CHARACTERS: Final = 1_000
_OURS: Final = re.compile(
    r"moldau\.spark_connector\.[\w.]*?(\w+): (.+?)(?=\n\s*at |\n\S*Traceback|\n\n|\Z)", re.S
)


def mark_as_last(query: StreamingQuery) -> bool:
    """Let the batch at work be the last one; False when this Spark cannot do that."""
    from py4j.protocol import Py4JError

    handle: JavaObject | None = getattr(query, "_jsq", None)
    if handle is None:  # Spark Connect: the query lives elsewhere
        return False
    from pyspark import SparkContext

    machine = SparkContext._jvm
    assert machine is not None, "a query runs in it"
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
    handle: JavaObject | None = getattr(query, "_jsq", None)
    return handle is None or not handle.streamingQuery().queryExecutionThread().isAlive()


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
            # While idle Spark reports the same batch again, with a later time and no rows.
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
        seemed_to_wait, query = self._seems_to_wait, self._query
        self._seems_to_wait = has_ended(query) or not query.status["isTriggerActive"]
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


def _turn(progress: SparkProgress) -> tuple[int, str]:
    return int(progress["batchId"]), str(progress["timestamp"])


def _plain(progress: SparkProgress) -> SparkProgress:
    """A progress as plain mappings. PySpark's objects are dictionaries, but those of 4.1 have the
    offsets as Python shows them; Spark's own JSON is the same everywhere.
    """
    text = getattr(progress, "json", None)
    return dict(progress) if text is None else dict(json.loads(text))


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch that is done.

    `lag` is how many records are behind it in the topics, None where the source does not say;
    `end_offsets` is what has been read up to (exclusive) by topic and partition.
    """

    pipeline: str
    batch_id: int
    row_count: int
    duration_ms: int
    rows_per_second: float
    lag: int | None
    end_offsets: Mapping[str, Mapping[str, int]]

    def as_json(self) -> dict[str, object]:
        return {"event": "batch", **asdict(self)}


ProgressObserver = Callable[[BatchProgress], None]


def batch_progress(pipeline: str, progress: SparkProgress) -> BatchProgress:
    """From what Spark says about a micro-batch (`StreamingQueryProgress`)."""
    durations = progress.get("durationMs") or {}
    duration_ms = int(durations.get("triggerExecution", progress.get("batchDuration", 0)) or 0)
    row_count = int(progress.get("numInputRows") or 0)
    sources = progress.get("sources") or [{}]
    ends, latest = _offsets(sources[0].get("endOffset")), _offsets(sources[0].get("latestOffset"))
    return BatchProgress(
        pipeline=pipeline,
        batch_id=int(progress["batchId"]),
        row_count=row_count,
        duration_ms=duration_ms,
        rows_per_second=row_count * 1_000 / duration_ms if duration_ms else 0.0,
        lag=lag_of(ends, latest) if latest else None,
        end_offsets=ends,
    )


def lag_of(ends: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> int:
    """Offsets between two places; a partition that was not read yet counts from its beginning."""
    return sum(
        max(0, end - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    )


def _offsets(given: object) -> dict[str, dict[str, int]]:
    """Kafka's offsets in Spark's JSON, without the ids of topics (topics without partitions); empty
    for sources that count in another way.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    if not isinstance(given, dict):
        return {}
    return {
        str(topic): {str(each): int(end) for each, end in partitions.items()}
        for topic, partitions in given.items()
        if isinstance(partitions, dict) and partitions
    }


def progress_line(progress: BatchProgress) -> str:
    lag = "" if progress.lag is None else f", lag {progress.lag:,}"
    return (
        f"{progress.pipeline}: batch {progress.batch_id}: {progress.row_count:,} rows in "
        f"{progress.duration_ms:,} ms ({progress.rows_per_second:,.0f} rows/s){lag}"
    )


class ProgressView:
    """Shows batches as they are done. Made by `progress_view`."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._last: dict[str, BatchProgress] = {}
        self._rows: dict[str, int] = {}

    def batch_done(self, progress: BatchProgress) -> None:
        """Show one more batch; batches without rows change the table only."""
        self._last[progress.pipeline] = progress
        self._rows[progress.pipeline] = self._rows.get(progress.pipeline, 0) + progress.row_count
        if self._live is not None:
            self._live.update(self._table())
        elif progress.row_count:
            self.say(progress_line(progress))

    def say(self, text: str) -> None:
        """One line of text, above the table where there is one."""
        self._console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        from rich.box import Box
        from rich.table import Table
        from rich.text import Text

        box = Box("\n".join(["    "] * 2 + ["────"] + ["    "] * 5))
        # With one rule below the headers and two spaces between columns, as every table has them.
        table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column in ("pipeline", "batch", "rows", "ms", "rows/s", "lag", "rows in all"):
            table.add_column(column, justify="left" if column == "pipeline" else "right")
        for name, last in self._last.items():
            table.add_row(
                Text(one_line(name)),
                f"{last.batch_id}",
                f"{last.row_count:,}",
                f"{last.duration_ms:,}",
                f"{last.rows_per_second:,.0f}",
                "-" if last.lag is None else f"{last.lag:,}",
                f"{self._rows[name]:,}",
            )
        return table


@contextmanager
def progress_view(console: Console) -> Iterator[ProgressView]:
    """A view while the block runs; on a terminal the last state stays on the screen."""
    if not console.is_terminal:
        yield ProgressView(console, None)
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4) as live:
        yield ProgressView(console, live)
