"""The progress of a pipeline: one value for each batch, and how it is shown.

Owns the reading of Spark's progress (rows, time, offsets, lag) and the two ways to show it: a table
on a terminal, a line per batch elsewhere. Must not ask Spark by itself. Invariant: stdout is left
alone; whatever is written goes to the console that was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

REDRAW_PER_S: Final = 4


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

    def as_json(self) -> dict[str, Any]:
        """For `--json`: one object per batch."""
        return {"event": "batch", **asdict(self)}


ProgressObserver = Callable[[BatchProgress], None]


def batch_progress(pipeline: str, progress: Mapping[str, Any]) -> BatchProgress:
    """From what Spark says about a micro-batch (`StreamingQueryProgress`, as a mapping)."""
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
    """One line about a batch."""
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
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD)
        for column in ("pipeline", "batch", "rows", "ms", "rows/s", "lag", "rows in all"):
            table.add_column(column, justify="left" if column == "pipeline" else "right")
        for name, last in self._last.items():
            table.add_row(
                name,
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

    with Live(console=console, refresh_per_second=REDRAW_PER_S) as live:
        yield ProgressView(console, live)
