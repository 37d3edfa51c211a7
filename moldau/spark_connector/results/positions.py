"""Which rows of a batch are new, and how far the store is when they are in it.

Owns the comparison of rows with stored offsets, and the reports about rows that are left out. Must
not do I/O. Invariants: a row is new exactly when its offset is at or after the stored one of its
partition of its topic, so that a batch that comes again, with the same rows or cut in another way,
adds nothing twice; and a row that is left out was written before, or is reported.

Rows of a partition must come in the order of their offsets from batch to batch; within a batch they
may come in any. Whatever Spark computes from records one by one keeps that order; joins of streams
do not. A row that lies before the stored offset is

1. a repetition, where the store has the batch already: it is left out and counted;
2. of another topic of the same name, where rows say their topic's id (`topicId`) and it is one that
   the store does not know: it is new, and positions of the new topic begin at 0;
3. a row that would be lost, where the same query has moved the offset in a batch before this one:
   `RowsOutOfOrder`, and nothing of the batch is written;
4. for the store alone not to judge, where another query has moved the offset, or a release that did
   not say which query did: it is left out, counted, and reported in a warning.

A checkpoint that was taken back, whose batches come again with other ends, must not look like case
3: offsets that the repeated batch does not reach are the query's own no longer, and case 4 holds.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from moldau.client import TopicPartition
from moldau.spark_connector.core.offsets import EARLIEST_OFFSET, ID_SEPARATOR
from moldau.spark_connector.errors import InvalidResults, ResultsBehind, RowsOutOfOrder
from moldau.spark_connector.source.options import TOPIC_ID_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row: TypeAlias = dict[str, Any]
OFFSET_COLUMNS: Final = ("topic", "partition", "offset")
NOTHING_YET: Final = -1
UNKNOWN_ID: Final = ""
MAX_SHOWN: Final = 5

_log: Final = logging.getLogger(__name__)


class Place(NamedTuple):
    """A partition of one topic; `topic_id` is Kafka's text for it, or UNKNOWN_ID."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        text = f"{self.topic}-{self.partition}"
        return f"{text} (topic id {self.topic_id})" if self.topic_id else text


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """How far a store is in a partition.

    Attributes:
        next_offset: of the first row that it does not have.
        generation: which topic of the name, numbered in the order in which the store has seen them.
        query_id, batch_id: whose batch has moved it last; None and NOTHING_YET where that is not
            known, or the query was taken back before it.
        skipped_count: how many rows were left out since they lay before `next_offset`.
    """

    next_offset: int
    generation: int = 0
    query_id: str | None = None
    batch_id: int = NOTHING_YET
    skipped_count: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One of Spark's batches, and what a store knows of its query.

    Attributes:
        store: names the store, for texts.
        query_id: None where Spark does not tell it (Spark Connect).
        last_batch: the query's last one that the store has; NOTHING_YET for none.
    """

    store: str
    query_id: str | None
    batch_id: int
    last_batch: int = NOTHING_YET

    @property
    def is_repeated(self) -> bool:
        return self.query_id is not None and self.batch_id <= self.last_batch

    def check_follows(self, where: str, helper: str) -> None:
        """Raises: ResultsBehind: the store (`where` in the text) lacks batches of the query."""
        if self.query_id is None or self.batch_id <= self.last_batch + 1:
            return  # without the query's id (Spark Connect) the batch's number says nothing
        has = f"batches up to {self.last_batch}" if self.last_batch >= 0 else "none"
        raise ResultsBehind(
            f"{self.store}: {where} has {has} of this query, and Spark goes on with "
            f"{self.batch_id}: what was acknowledged is gone (restored from a backup, emptied?), "
            "or the batches before went somewhere else. Start with a new checkpoint and "
            f"startingOffsets from {helper}.starting_offsets()"
        )

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id or '(not told)'}"


class Positions:
    """What is stored, moved on by the rows of one batch that are new."""

    def __init__(self, batch: Batch, stored: Mapping[Place, StoredPosition]) -> None:
        self._batch = batch
        self._stored = dict(stored)
        self._before = dict(stored)
        self._moved: dict[Place, int] = {}
        self._reached: dict[Place, int] = {}
        self._skipped: Counter[Place] = Counter()
        self._first_skipped: dict[Place, int] = {}
        self._row_count = 0
        self._generations: dict[str, dict[str, int]] = {}
        for place, position in stored.items():
            self._generations.setdefault(place.topic, {})[place.topic_id] = position.generation

    def new_rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Those that the store does not have. A partition's rows may come in any order. Raises:
        RowsOutOfOrder: see the module, case 3
        """
        for row in rows:
            offset = row["offset"]
            place = self.place_of(row["topic"], row.get(TOPIC_ID_COLUMN), row["partition"], offset)
            if offset < self.next_offset(place):
                self.skip(place, offset)
                self.take(place, offset, 0)
                continue
            self.take(place, offset)
            yield row

    def place_of(self, topic: str, topic_id: str | None, partition: int, last_offset: int) -> Place:
        """Where a record lies, or several of one partition, as far as `last_offset`.

        Rows without an id are of the topic that was seen last. The first id that is seen is
        that of the topic whose positions are stored without one, if its rows go on behind them.
        """
        known = self._generations.setdefault(topic, {})
        if not known:
            known[topic_id or UNKNOWN_ID] = 0
        newest = max(known, key=known.__getitem__)
        if not topic_id:
            return Place(topic, newest, partition)
        if topic_id not in known:
            if newest == UNKNOWN_ID:
                place = Place(topic, UNKNOWN_ID, partition)
                if last_offset < self.next_offset(place):
                    return place
                self._name(topic, topic_id)
            else:
                known[topic_id] = known[newest] + 1
        return Place(topic, topic_id, partition)

    def next_offset(self, place: Place) -> int:
        stored = self._stored.get(place)
        return 0 if stored is None else stored.next_offset

    def skip(self, place: Place, first_offset: int, count: int = 1) -> None:
        """Leave out rows that lie before the stored offset. Raises: RowsOutOfOrder"""
        stored = self._stored[place]
        batch = self._batch
        is_own = batch.query_id is not None and stored.query_id == batch.query_id
        if is_own and not batch.is_repeated:
            recreated = (
                "Either the topic was deleted and created again: then call forget(topic), and have "
                "rows say which topic they are of (the source's option includeTopicId, and the "
                f"column {TOPIC_ID_COLUMN} in the rows). Or rows"
            )
            raise RowsOutOfOrder(
                f"{batch.store}: {place}: {batch}, which was never written, has the row of offset "
                f"{first_offset}, and batch {stored.batch_id} of the same query has come to "
                f"{stored.next_offset}. Nothing of the batch is written. "
                f"{'Rows' if place.topic_id else recreated} do not come in the order of their "
                "offsets (joins of streams, unions): then leave out the columns topic, partition "
                "and offset, so that rows go by the batch"
            )
        self._skipped[place] += count
        self._first_skipped[place] = min(first_offset, self._first_skipped.get(place, first_offset))

    def take(self, place: Place, last_offset: int, count: int = 1) -> None:
        """Rows of a partition, as far as `last_offset`; `count` of them are new."""
        self._row_count += count
        end = last_offset + 1
        self._reached[place] = max(end, self._reached.get(place, 0))
        if count and end > self._moved.get(place, 0):
            self._moved[place] = end

    def changed(self) -> dict[Place, StoredPosition | None]:
        """What is to be stored, and what is to be removed (None)."""
        batch = self._batch
        found: dict[Place, StoredPosition | None] = {}
        for place in self._stored.keys() | self._moved.keys():
            position = self._stored.get(place)
            if position is None:
                generation = self._generations[place.topic][place.topic_id]
                position = StoredPosition(0, generation)
            elif self._was_taken_back(place, position):
                position = replace(position, query_id=None, batch_id=NOTHING_YET)
            if place in self._moved:
                position = replace(
                    position,
                    next_offset=max(position.next_offset, self._moved[place]),
                    query_id=batch.query_id,
                    batch_id=batch.batch_id,
                )
            if place in self._skipped:
                count = position.skipped_count + self._skipped[place]
                position = replace(position, skipped_count=count)
            if position != self._before.get(place):
                found[place] = position
        found |= dict.fromkeys(self._before.keys() - self._stored.keys())
        return found

    def warn(self) -> None:
        """Tell which rows were left out that only the user can know to be written (case 4)."""
        batch = self._batch
        if not self._skipped or batch.is_repeated:
            return
        told = [
            f"{place}: {count} rows from offset {self._first_skipped[place]} on, and the store is "
            f"at {self._stored[place].next_offset} by {self._stored[place].query_id or 'a query'}"
            for place, count in sorted(self._skipped.items())
        ]
        if len(told) > MAX_SHOWN:
            told[MAX_SHOWN:] = [f"{len(told) - MAX_SHOWN} more partitions"]
        left_out = self._skipped.total()
        total = left_out + self._row_count
        _log.warning(
            "%s: %s was never written, and %s of its rows are left out, since the store is further "
            "(%s). That is right if they were written before, by another query or before the "
            "checkpoint was deleted. It is a loss if the topic was deleted and created again (have "
            "rows say which topic they are of, by includeTopicId and the column %s), or if several "
            "queries write different rows of one topic under this name",
            batch.store,
            batch,
            f"all {total}" if left_out == total else f"{left_out} of {total}",
            "; ".join(told),
            TOPIC_ID_COLUMN,
        )

    def _name(self, topic: str, topic_id: str) -> None:
        """Give an id to the topic whose positions are stored without one."""
        known = self._generations[topic]
        known[topic_id] = known.pop(UNKNOWN_ID)
        for held in (self._stored, self._moved, self._reached, self._skipped, self._first_skipped):
            places: dict[Place, Any] = held
            for place in [each for each in places if each[:2] == (topic, UNKNOWN_ID)]:
                places[place._replace(topic_id=topic_id)] = places.pop(place)

    def _was_taken_back(self, place: Place, position: StoredPosition) -> bool:
        """Whether the query has gone back behind the batch that has moved the position."""
        batch = self._batch
        return (
            batch.is_repeated
            and position.query_id == batch.query_id
            and position.batch_id >= batch.batch_id
            and self._reached.get(place, 0) != position.next_offset
        )


class StoredOffsets(ABC):
    """How far a store is, for those who ask: the positions of the topics that were seen last."""

    @abstractmethod
    def _stored(self) -> dict[Place, StoredPosition]:
        """All positions that the store has."""

    def skipped(self) -> dict[TopicPartition, int]:
        """How many rows of each partition were left out since the store had them (repeated batches,
        other queries), or was said to have them: all that ever were, where there are any.
        """
        found: Counter[TopicPartition] = Counter()
        for place, position in self._stored().items():
            found[TopicPartition(place.topic, place.partition)] += position.skipped_count
        return {each: count for each, count in sorted(found.items()) if count}

    def starting_offsets(self, partition_counts: Mapping[str, int]) -> str:
        """The source's option `startingOffsets`, to go on here with a new checkpoint.

        It names the ids of topics as far as the store knows them, so that the source finds topics
        that were deleted and created again.

        Args:
            partition_counts: how many partitions each topic has; those that the store knows nothing
                of are read from their beginning.
        """
        newest = self._newest()
        ends = {(place.topic, place.partition): each.next_offset for place, each in newest.items()}
        found: dict[str, dict[str, int]] = {
            topic: {
                str(number): ends.get((topic, number), EARLIEST_OFFSET) for number in range(count)
            }
            for topic, count in partition_counts.items()
        }
        for place in newest:
            if place.topic in partition_counts and place.topic_id != UNKNOWN_ID:
                found[f"{place.topic}{ID_SEPARATOR}{place.topic_id}"] = {}
        return json.dumps(found)

    def _next_offsets(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(place.topic, place.partition): position.next_offset
            for place, position in self._newest().items()
        }

    def _newest(self) -> dict[Place, StoredPosition]:
        stored = self._stored()
        newest: dict[str, int] = {}
        for place, position in stored.items():
            newest[place.topic] = max(position.generation, newest.get(place.topic, 0))
        return {
            place: position
            for place, position in stored.items()
            if position.generation == newest[place.topic]
        }


def require_offsets(columns: Iterable[str], what: str) -> None:
    """Raises: InvalidResults: a column is missing."""
    missing = [each for each in OFFSET_COLUMNS if each not in set(columns)]
    if missing:
        raise InvalidResults(
            f"{what} needs the columns topic, partition and offset of each row's record; there is "
            f"no {', '.join(missing)}"
        )


def rows_of(frame: DataFrame) -> Iterator[Row]:
    """A frame's rows as mappings, one partition after the other, never all at once.

    Bytes are `bytes`, and times with a zone are in UTC: PySpark gives them without one, in the
    zone of this process.
    """
    timed = timed_columns(frame)
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield plain_row(row.asDict(), timed)


def timed_columns(frame: DataFrame) -> list[str]:
    from pyspark.sql.types import TimestampType

    return [each.name for each in frame.schema.fields if isinstance(each.dataType, TimestampType)]


def plain_row(row: Row, timed: Iterable[str]) -> Row:
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
    """The id of the streaming query that calls; None outside of one, or where it is not known."""
    from pyspark.errors import PySparkException

    try:
        context = frame.sparkSession.sparkContext
    except PySparkException:  # Spark Connect has none
        return None
    found: str | None = context.getLocalProperty("sql.streaming.queryId")
    return found
