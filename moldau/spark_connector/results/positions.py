"""Which rows of a batch are new, and how far the store is when they are in it.

Owns the comparison of rows with stored offsets. Must not do I/O. Invariant: a row is new exactly
when its offset is at or after the stored one of its partition, so that a batch that comes again,
with the same rows or cut in another way, adds nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.client import TopicPartition
from moldau.spark_connector.results.errors import InvalidResults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFSET_COLUMNS: Final = ("topic", "partition", "offset")
EARLIEST: Final = -2
"""How `startingOffsets` says: from the beginning."""


class Positions:
    """The next offset of each partition: what is stored, moved on by the rows that are new."""

    def __init__(self, stored: Mapping[TopicPartition, int]) -> None:
        self._stored = dict(stored)
        self.moved: dict[TopicPartition, int] = {}
        self.skipped_count = 0

    def new_rows(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Those that the store does not have. A partition's rows may come in any order."""
        for row in rows:
            partition = TopicPartition(row["topic"], row["partition"])
            next_offset = row["offset"] + 1
            if next_offset <= self._stored.get(partition, 0):
                self.skipped_count += 1
                continue
            if next_offset > self.moved.get(partition, 0):
                self.moved[partition] = next_offset
            yield row


def has_offsets(columns: Iterable[str]) -> bool:
    """Whether rows say which record they come from."""
    return set(OFFSET_COLUMNS) <= set(columns)


def require_offsets(columns: Iterable[str], what: str) -> None:
    """Raises: InvalidResults: a column is missing."""
    missing = [each for each in OFFSET_COLUMNS if each not in set(columns)]
    if missing:
        raise InvalidResults(
            f"{what} needs the columns topic, partition and offset of each row's record; there is "
            f"no {', '.join(missing)}"
        )


def missing_batches(store: str, last_batch: int, batch_id: int) -> str:
    """What is wrong when Spark goes on with a batch behind the next one."""
    what = f"batches up to {last_batch} of this query" if last_batch >= 0 else "none of this query"
    return (
        f"{store} has {what}, and Spark goes on with {batch_id}: what was acknowledged is gone "
        "(restored from a backup, emptied?), or the batches before went somewhere else"
    )


def starting_offsets(
    stored: Mapping[TopicPartition, int], partition_counts: Mapping[str, int]
) -> str:
    """The source's option `startingOffsets`, to go on where a store is.

    Args:
        partition_counts: how many partitions each topic has; those that the store knows nothing of
            are read from their beginning.
    """
    return json.dumps(
        {
            topic: {
                str(number): stored.get(TopicPartition(topic, number), EARLIEST)
                for number in range(count)
            }
            for topic, count in partition_counts.items()
        }
    )


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """A frame's rows as mappings, one partition after the other, never all at once.

    Bytes are `bytes`, and times with a zone are in UTC: PySpark gives them without one, in the
    zone of this process.
    """
    yield from plain_rows(frame, frame.toLocalIterator(prefetchPartitions=True))


def plain_rows(frame: DataFrame, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """`rows_of` for rows that have been fetched in another way."""
    from pyspark.sql.types import TimestampType

    timed = [each.name for each in frame.schema.fields if isinstance(each.dataType, TimestampType)]
    yield from (plain_row(row.asDict(), timed) for row in rows)


def plain_row(row: dict[str, Any], timed: Iterable[str]) -> dict[str, Any]:
    """One row; `timed` are its columns with times of a zone."""
    from datetime import UTC

    for name in timed:
        if row[name] is not None:
            row[name] = row[name].astimezone(UTC)
    for name, value in row.items():
        if isinstance(value, bytearray):
            row[name] = bytes(value)
    return row


def query_id_of(frame: DataFrame) -> str | None:
    """The id of the streaming query that calls; None outside of one, or where nobody knows it."""
    from pyspark.errors import PySparkException

    try:
        context = frame.sparkSession.sparkContext
    except PySparkException:  # Spark Connect has none
        return None
    found: str | None = context.getLocalProperty("sql.streaming.queryId")
    return found
