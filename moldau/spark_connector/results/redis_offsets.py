"""Offsets in Redis, with the results in the same Redis or somewhere else.

Owns one hash per pipeline (`moldau:offsets:NAME`, a field per partition and per query). Must not
hold more rows than `MAX_ROWS` at once. Invariant: an offset in the hash never goes back.

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
from typing import TYPE_CHECKING, Any, Final

import redis

from moldau.client import TopicPartition
from moldau.spark_connector.results.errors import InvalidResults, ResultsBehind, ResultsError
from moldau.spark_connector.results.positions import (
    Positions,
    missing_batches,
    query_id_of,
    require_offsets,
    rows_of,
    starting_offsets,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROWS: Final = 100_000
"""A transaction of Redis is sent as a whole: more rows than this are several batches' worth."""

MAX_ATTEMPTS: Final = 10
PREFIX: Final = "moldau:offsets:"
_BATCH_OF: Final = "batch of "

WriteRow = Callable[[Any, dict[str, Any]], None]
WriteBatch = Callable[["DataFrame", int], None]


class RedisOffsets:
    """The offsets of one pipeline.

    Args:
        url: of Redis, as redis-py writes it.
        pipeline: names them.
        client: instead of the url, a client that is there already.
    """

    def __init__(self, url: str, pipeline: str, *, client: redis.Redis | None = None) -> None:
        self._url = url
        self.key = f"{PREFIX}{pipeline}"
        self._client = client

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> redis.Redis:
        """The connection to Redis."""
        if self._client is None:
            self._client = redis.Redis.from_url(self._url)
        return self._client

    def load(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that the store knows of."""
        return offsets_in(_as_bytes(self.client.hgetall(self.key)))

    def starting_offsets(self, partition_counts: Mapping[str, int]) -> str:
        """The source's option `startingOffsets`, to go on here with a new checkpoint."""
        return starting_offsets(self.load(), partition_counts)

    def advance(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store next offsets; what is further already stays. Raises: ResultsError."""

        def queue(pipe: Any, stored: Mapping[bytes, bytes]) -> None:
            known = offsets_in(stored)
            further = {
                field_of(each): end for each, end in offsets.items() if end > known.get(each, 0)
            }
            if further:
                pipe.hset(self.key, mapping=further)

        self.change(queue)

    def change(self, queue: Callable[[Any, Mapping[bytes, bytes]], None]) -> None:
        """Run commands in one transaction, as long as nobody else changes the offsets meanwhile.

        Args:
            queue: gets the transaction and the hash as it is, and may be called several times.

        Raises:
            ResultsError: somebody else changes them all the time.
        """
        for _ in range(MAX_ATTEMPTS):
            opened: Any = self.client.pipeline(transaction=True)
            with opened as pipe:
                try:
                    pipe.watch(self.key)
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

        At least once: when something dies in between, `write` gets the same rows again.
        """

        def write_batch(frame: DataFrame, batch_id: int) -> None:
            from pyspark.sql import functions as f

            require_offsets(frame.columns, "RedisOffsets")
            for partition, next_offset in self.load().items():
                is_old = (
                    (f.col("topic") == partition.topic)
                    & (f.col("partition") == partition.partition)
                    & (f.col("offset") < next_offset)
                )
                frame = frame.where(~is_old)
            frame = frame.persist()
            try:
                write(frame, batch_id)
                ends = frame.groupBy("topic", "partition").agg(f.max("offset")).collect()
            finally:
                frame.unpersist()
            self.advance({TopicPartition(row[0], row[1]): row[2] + 1 for row in ends})

        return write_batch


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

    def write_batch(self, rows: list[dict[str, Any]], batch_id: int, query_id: str | None) -> int:
        """What a call does, without Spark: how many rows were new."""
        new_count = 0

        def queue(pipe: Any, stored: Mapping[bytes, bytes]) -> None:
            nonlocal new_count
            last_batch = int(stored.get(f"{_BATCH_OF}{query_id}".encode(), b"-1"))
            if query_id is not None and batch_id > last_batch + 1:
                raise ResultsBehind(
                    f"{self._offsets.key}: {missing_batches('Redis', last_batch, batch_id)}. Start "
                    "with a new checkpoint and startingOffsets from RedisOffsets.starting_offsets()"
                )
            positions = Positions(offsets_in(stored))
            new_count = 0
            for row in positions.new_rows(rows):
                self._write(pipe, row)
                new_count += 1
            fields: dict[str, str | int] = {
                field_of(each): end for each, end in positions.moved.items()
            }
            if query_id is not None and batch_id > last_batch:
                fields[f"{_BATCH_OF}{query_id}"] = batch_id
            if fields:
                pipe.hset(self._offsets.key, mapping=fields)

        self._offsets.change(queue)
        return new_count


def _as_bytes(stored: Any) -> dict[bytes, bytes]:
    """A hash as it is; a client with `decode_responses` gives text."""
    return {
        key.encode() if isinstance(key, str) else key: (
            value.encode() if isinstance(value, str) else value
        )
        for key, value in stored.items()
    }


def field_of(partition: TopicPartition) -> str:
    """The field of a partition; a topic's name has no colon."""
    return f"{partition.topic}:{partition.partition}"


def offsets_in(stored: Mapping[bytes, bytes]) -> dict[TopicPartition, int]:
    """The offsets among the fields of the hash."""
    found: dict[TopicPartition, int] = {}
    for field, value in stored.items():
        topic, separator, number = field.decode().rpartition(":")
        if separator:
            found[TopicPartition(topic, int(number))] = int(value)
    return found
