"""Rows that are there once because the database refuses the second one.

Owns writing from Spark's workers, in parallel and without a transaction around the batch. Must not
need the driver's memory. Invariant: the table has a unique key on (topic, partition, offset), which
is checked before anything is written, so a row that comes again changes nothing.

A reader may see part of a batch; and a batch that comes again must have the same rows, which holds
for whatever is computed from a record alone, without clock or dice. With the column topicId, which
then belongs to the key, records of a topic that was deleted and created again have rows of their
own. Rows that are there already are counted; that is told in a warning where Spark has not given
the batch before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from moldau.spark_connector.options.source_options import TOPIC_ID_COLUMN
from moldau.spark_connector.results.errors import InvalidResults
from moldau.spark_connector.results.positions import (
    NOTHING_YET,
    OFFSET_COLUMNS,
    UNKNOWN_ID,
    plain_row,
    query_id_of,
    require_offsets,
)
from moldau.spark_connector.results.sql_results import (
    CHUNK_ROWS,
    LOCK_WAIT_S,
    reflected,
    upsert_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log: Final = logging.getLogger("moldau.spark_connector")


class UniqueRows:
    """A function for `foreachBatch` that adds each record's row once.

    Args:
        url: of the database (SQLite, PostgreSQL), as SQLAlchemy writes it; workers connect to it.
        table: a table with the frame's columns, and a unique key on topic, partition and offset,
            and on topicId where the frame has it.

    Attributes:
        skipped_count: how many rows were there already, since this object was made.
    """

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._table_name = table
        self.skipped_count = 0
        self._begun: dict[str | None, int] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch; rows that are there are left alone.

        Raises:
            InvalidResults: the frame lacks a column, or the table its key.
        """
        from pyspark.sql.types import TimestampType

        columns = frame.columns
        require_offsets(columns, "UniqueRows")
        self.check_table(columns)
        timed = [
            each.name for each in frame.schema.fields if isinstance(each.dataType, TimestampType)
        ]

        found = frame.sparkSession.sparkContext.accumulator(0)
        writer = UniqueRows(self._url, self._table_name)  # without this one's counts

        def write(rows: Iterable[Any]) -> None:
            writer.write_rows((plain_row(row.asDict(), timed) for row in rows), columns)
            found.add(writer.skipped_count)

        query_id = query_id_of(frame)
        begun = self._begun.get(query_id)
        self._begun[query_id] = max(batch_id, NOTHING_YET if begun is None else begun)
        frame.foreachPartition(write)
        self.skipped_count += found.value
        # After a start Spark may give a batch that was written in part.
        if found.value and begun is not None and batch_id > begun:
            _log.warning(
                "%s: %d rows of batch %d of query %s were there already, though Spark has not "
                "given it before. That is right if another query has written them, or a task was "
                "run again. It is a loss if the topic was deleted and created again (have rows say "
                "which topic they are of: includeTopicId, and the column %s in the key), or if a "
                "record has several rows",
                self._table_name,
                found.value,
                batch_id,
                query_id,
                TOPIC_ID_COLUMN,
            )

    def check_table(self, columns: Sequence[str]) -> None:
        """Raises: InvalidResults: the table is missing, lacks a column, or lacks the key."""
        engine = self._connect()
        with engine.connect() as connection:
            table = reflected(connection, self._table_name)
            missing = [each for each in columns if each not in table.c]
            if missing:
                raise InvalidResults(
                    f"the table {self._table_name} has no column {', '.join(missing)}"
                )
            if not _has_key(connection, table, key_of(columns)):
                raise InvalidResults(
                    f"the table {self._table_name} has no unique key on exactly "
                    f"{', '.join(key_of(columns))}: without it a row that comes again would be "
                    "there twice, or that of another topic left out"
                )
            upsert_of(connection.dialect.name)
        engine.dispose()

    def write_rows(self, rows: Iterator[dict[str, Any]], columns: Sequence[str]) -> int:
        """Add rows, a chunk per transaction; how many were not there yet."""
        engine = self._connect()
        new_count = 0
        try:
            with engine.connect() as connection:
                table = reflected(connection, self._table_name)
                connection.rollback()  # the look at the table began a transaction
                insert = upsert_of(connection.dialect.name)(table)
                statement = insert.on_conflict_do_nothing(index_elements=key_of(columns))
                # Several rows at once have no row count with psycopg: what is returned counts.
                statement = statement.returning(sa.literal(1))
                while chunk := list(islice(rows, CHUNK_ROWS)):
                    values = [{name: row[name] for name in columns} for row in chunk]
                    for row in values if TOPIC_ID_COLUMN in columns else ():
                        # Brokers before topic ids: a null is never the same as another.
                        row[TOPIC_ID_COLUMN] = row[TOPIC_ID_COLUMN] or UNKNOWN_ID
                    with connection.begin():
                        added_count = len(connection.execute(statement, values).all())
                    new_count += added_count
                    self.skipped_count += len(values) - added_count
        finally:
            engine.dispose()
        return new_count

    def _connect(self) -> sa.Engine:
        is_sqlite = sa.make_url(self._url).get_backend_name() == "sqlite"
        arguments = {"timeout": LOCK_WAIT_S} if is_sqlite else {}
        return sa.create_engine(self._url, connect_args=arguments, poolclass=sa.pool.NullPool)


def key_of(columns: Sequence[str]) -> list[str]:
    """The columns of the unique key for rows with these columns."""
    return [*OFFSET_COLUMNS, *([TOPIC_ID_COLUMN] if TOPIC_ID_COLUMN in columns else [])]


def _has_key(connection: sa.Connection, table: sa.Table, key: Sequence[str]) -> bool:
    wanted = set(key)
    if {column.name for column in table.primary_key} == wanted:
        return True
    looked = sa.inspect(connection)
    unique = looked.get_unique_constraints(table.name, table.schema)
    if any(set(each["column_names"]) == wanted for each in unique):
        return True
    return any(
        each["unique"] and set(each["column_names"]) == wanted
        for each in looked.get_indexes(table.name, table.schema)
    )
