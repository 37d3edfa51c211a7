"""Offsets in Redis, with the results in the same Redis or somewhere else.

Owns one hash per pipeline (`moldau:offsets:NAME`). Must not hold more rows than `MAX_ROWS` at once.
Invariant: an offset in the hash never goes back. Its fields:

- `TOPIC:PARTITION`, `TOPIC:ID:PARTITION`: the next offset; without an id as releases before topic
  ids have written it, and for rows that do not say which topic they are of
- `moved TOPIC/ID/PARTITION`: the generation, the batch and query that have moved it last, and how
  many rows were left out (see `StoredPosition`)
- `batch of QUERY`: the query's last batch

What that promises, and what not (docs/spark.md says more):

- `RedisResults`: results and offsets change in one MULTI/EXEC, under a WATCH of the offsets: once,
  as far as Redis keeps what it has acknowledged. After a crash with `appendfsync everysec`, or a
  fail-over to a replica that was behind, results and offsets are older together; since Spark's
  checkpoint is not, that is found (`ResultsBehind`) and not read over.
- `RedisOffsets.after`: the results are written first, somewhere else, then the offsets: at least
  once. A crash between the two writes the batch's results again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import redis
from redis.client import Pipeline

from moldau.client import TopicPartition
from moldau.spark_connector.errors import InvalidResults, ResultsError
from moldau.spark_connector.results.positions import (
    NOTHING_YET,
    UNKNOWN_ID,
    Batch,
    Place,
    Positions,
    Row,
    StoredOffsets,
    StoredPosition,
    query_id_of,
    require_offsets,
    rows_of,
)
from moldau.spark_connector.source.options import TOPIC_ID_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROWS: Final = 100_000
"""A transaction of Redis is sent as a whole: more rows than this are several batches' worth."""

MAX_ATTEMPTS: Final = 10
PREFIX: Final = "moldau:offsets:"
_BATCH_OF: Final = "batch of "
_MOVED: Final = "moved "

WriteRow = Callable[[Pipeline, Row], None]
WriteBatch = Callable[["DataFrame", int], None]


class RedisOffsets(StoredOffsets):
    """The offsets of one pipeline.

    Args:
        url: of Redis, as redis-py writes it.
        pipeline: names them.
        client: instead of the url, a client that exists already.
    """

    def __init__(self, url: str, pipeline: str, *, client: redis.Redis | None = None) -> None:
        self._url = url
        self.key = f"{PREFIX}{pipeline}"
        self._client = client

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> redis.Redis:
        """The connection to Redis."""
        if self._client is None:
            self._client = redis.Redis.from_url(self._url)
        return self._client

    def load(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that the store knows of."""
        return self._next_offsets()

    def forget(self, topic: str) -> None:
        """Forget the positions in a topic, when it was deleted and created again."""

        def queue(pipe: Pipeline, stored: Mapping[bytes, bytes]) -> None:
            places = [place for place in positions_in(stored) if place.topic == topic]
            for place in places:
                pipe.hdel(self.key, *fields_of(place))

        self.change(queue)

    def advance(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store next offsets; what is further already stays. Raises: ResultsError."""

        def queue(pipe: Pipeline, stored: Mapping[bytes, bytes]) -> None:
            known = positions_in(stored)
            batch = Batch(self.key, None, NOTHING_YET)
            positions = Positions(batch, known)
            for each, end in offsets.items():
                place = positions.place_of(each.topic, None, each.partition, end - 1)
                if end > positions.next_offset(place):
                    positions.take(place, end - 1)
            self.store(pipe, stored, batch, positions)

        self.change(queue)

    def store(
        self, pipe: Pipeline, stored: Mapping[bytes, bytes], batch: Batch, positions: Positions
    ) -> None:
        """Queue what a batch has changed; what is further already, by another driver, stays."""
        known = positions_in(stored)
        for place, position in positions.changed().items():
            offset_field, moved_field = fields_of(place)
            if position is None:
                pipe.hdel(self.key, offset_field, moved_field)
            elif place not in known or known[place].next_offset <= position.next_offset:
                next_offset, moved = _values(position)
                pipe.hset(self.key, mapping={offset_field: next_offset, moved_field: moved})
        query_id = batch.query_id
        if query_id is not None and batch.batch_id > last_batch_of(stored, query_id):
            pipe.hset(self.key, mapping={f"{_BATCH_OF}{query_id}": batch.batch_id})

    def change(self, queue: Callable[[Pipeline, Mapping[bytes, bytes]], None]) -> None:
        """Run commands in one transaction, repeated when another process has changed the offsets.

        Args:
            queue: gets the transaction and the hash as it is, and may be called several times.

        Raises:
            ResultsError: other processes change them all the time.
        """
        for _ in range(MAX_ATTEMPTS):
            with self.client.pipeline(transaction=True) as pipe:
                try:
                    pipe.watch(self.key)  # type: ignore[no-untyped-call]  # redis annotates all but this one
                    stored = _as_bytes(pipe.hgetall(self.key))
                    pipe.multi()
                    queue(pipe, stored)
                    pipe.execute()
                except redis.WatchError:
                    continue
                return
        raise ResultsError(
            f"{self.key} was changed by others {MAX_ATTEMPTS} times in a row: two drivers at work?"
        )

    def after(self, write: WriteBatch) -> WriteBatch:
        """A function for `foreachBatch`: `write` gets what is new, then its offsets are stored.

        At least once: when something dies in between, `write` gets the same rows again. The rows of
        a partition must come in the order of offsets from batch to batch (`RowsOutOfOrder`).
        """

        def write_batch(frame: DataFrame, batch_id: int) -> None:
            require_offsets(frame.columns, "RedisOffsets")
            query_id = query_id_of(frame)
            stored = _as_bytes(self.client.hgetall(self.key))
            batch = Batch(self.key, query_id, batch_id, last_batch_of(stored, query_id))
            positions = Positions(batch, positions_in(stored))
            frame = frame.persist()
            try:
                write(new_rows_of(frame, positions), batch_id)
            finally:
                frame.unpersist()

            self.change(lambda pipe, stored: self.store(pipe, stored, batch, positions))
            positions.warn()

        return write_batch

    def _stored(self) -> dict[Place, StoredPosition]:
        return positions_in(_as_bytes(self.client.hgetall(self.key)))


class RedisResults:
    """A function for `foreachBatch`: results and offsets in one transaction of Redis.

    Args:
        offsets: where the offsets are kept.
        write: queues the commands for one row on the transaction it is given; it must not read.
    """

    def __init__(self, offsets: RedisOffsets, write: WriteRow) -> None:
        self._offsets = offsets
        self._write = write

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch.

        Raises:
            InvalidResults: columns are missing, or more than MAX_ROWS rows.
            ResultsBehind: Redis has lost batches that it had acknowledged.
            RowsOutOfOrder: rows of a batch that was never written lie before those of the query's
                own batches.
        """
        require_offsets(frame.columns, "RedisResults")
        rows = []
        for row in rows_of(frame):
            rows.append(row)
            if len(rows) > MAX_ROWS:
                raise InvalidResults(
                    f"more than {MAX_ROWS:,} rows in one batch: set maxOffsetsPerTrigger lower"
                )
        self.write_batch(rows, batch_id, query_id_of(frame))

    def write_batch(self, rows: list[Row], batch_id: int, query_id: str | None) -> int:
        """What a call does, without Spark: how many rows were new."""
        new_count = 0
        positions = Positions(Batch(self._offsets.key, query_id, batch_id), {})

        def queue(pipe: Pipeline, stored: Mapping[bytes, bytes]) -> None:
            nonlocal new_count, positions
            last_batch = last_batch_of(stored, query_id)
            batch = Batch(self._offsets.key, query_id, batch_id, last_batch)
            batch.check_follows("Redis", "RedisOffsets")
            positions = Positions(batch, positions_in(stored))
            new_count = 0
            for row in positions.new_rows(rows):
                self._write(pipe, row)
                new_count += 1
            self._offsets.store(pipe, stored, batch, positions)

        self._offsets.change(queue)
        positions.warn()
        return new_count


def new_rows_of(frame: DataFrame, positions: Positions) -> DataFrame:
    """The rows that the store does not have, judged on Spark's side. Raises: RowsOutOfOrder"""
    from pyspark.sql import functions as f

    with_id = TOPIC_ID_COLUMN in frame.columns
    topic_id = f.col(TOPIC_ID_COLUMN) if with_id else f.lit(None).cast("string")
    keys = [f.col("topic"), topic_id.alias("topic_id"), f.col("partition")]
    ends = [
        f.max("offset").alias("last"),
        f.min("offset").alias("first"),
        f.count("*").alias("rows"),
    ]
    partitions = frame.groupBy(*keys).agg(*ends).collect()
    for row in partitions:  # rows that go on behind stored offsets name the topic of all
        positions.place_of(row.topic, row.topic_id, row.partition, row.last)
    places = [
        positions.place_of(row.topic, row.topic_id, row.partition, row.last) for row in partitions
    ]
    is_old = f.lit(False)
    for row, place in zip(partitions, places, strict=True):
        next_offset = positions.next_offset(place)
        if row.first < next_offset:
            is_old |= (
                f.col("topic").eqNullSafe(row.topic)
                & topic_id.eqNullSafe(row.topic_id)
                & f.col("partition").eqNullSafe(row.partition)
                & (f.col("offset") < next_offset)
            )
    old_counts = {row[:3]: row[3] for row in frame.where(is_old).groupBy(*keys).count().collect()}
    for row, place in zip(partitions, places, strict=True):
        old_count = old_counts.get(row[:3], 0)
        if old_count:
            positions.skip(place, row.first, old_count)
        positions.take(place, row.last, row.rows - old_count)
    return frame.where(~is_old)


def _as_bytes(stored: object) -> dict[bytes, bytes]:
    """A hash as it is; a client with `decode_responses` gives text."""
    assert isinstance(stored, Mapping), "no asyncio client"
    return {
        key.encode() if isinstance(key, str) else key: (
            value.encode() if isinstance(value, str) else value
        )
        for key, value in stored.items()
    }


def last_batch_of(stored: Mapping[bytes, bytes], query_id: str | None) -> int:
    return int(stored.get(f"{_BATCH_OF}{query_id}".encode(), NOTHING_YET))


def fields_of(place: Place) -> tuple[str, str]:
    """The fields of a partition: its offset, and what has moved it. A topic's name has no colon and
    no slash.
    """
    parts = [place.topic, place.topic_id, str(place.partition)]
    return ":".join(part for part in parts if part), f"{_MOVED}{'/'.join(parts)}"


def positions_in(stored: Mapping[bytes, bytes]) -> dict[Place, StoredPosition]:
    found: dict[Place, StoredPosition] = {}
    for field, value in stored.items():
        parts = field.decode().split(":")
        if len(parts) > 1:
            place = Place(parts[0], UNKNOWN_ID if len(parts) == 2 else parts[1], int(parts[-1]))
            moved = stored.get(fields_of(place)[1].encode(), b"0 -1 0 ").decode().split(" ")
            generation, batch_id, skipped_count = map(int, moved[:3])
            found[place] = StoredPosition(
                int(value), generation, moved[3] or None, batch_id, skipped_count
            )
    return found


def _values(position: StoredPosition) -> tuple[int, str]:
    moved = (position.generation, position.batch_id, position.skipped_count)
    return position.next_offset, " ".join([*map(str, moved), position.query_id or ""])
