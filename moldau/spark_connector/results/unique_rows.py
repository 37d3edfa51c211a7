"""Rows that are there once because the database refuses the second one.

Owns writing from Spark's workers, in parallel and without a transaction around the batch. Must not
need the driver's memory. Invariant: the table has a unique key on (topic, partition, offset), which
is checked before anything is written, so a row that comes again changes nothing.

A reader may see part of a batch; and a batch that comes again must have the same rows, which holds
for whatever is computed from a record alone, without clock or dice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from moldau.spark_connector.results.errors import InvalidResults
from moldau.spark_connector.results.positions import (
    OFFSET_COLUMNS,
    plain_row,
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


class UniqueRows:
    """A function for `foreachBatch` that adds each record's row once.

    Args:
        url: of the database (SQLite, PostgreSQL), as SQLAlchemy writes it; workers connect to it.
        table: a table with the frame's columns, and a unique key on topic, partition and offset.
    """

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._table_name = table

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

        def write(rows: Iterable[Any]) -> None:
            self.write_rows((plain_row(row.asDict(), timed) for row in rows), columns)

        frame.foreachPartition(write)

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
            if not _has_key(connection, table):
                raise InvalidResults(
                    f"the table {self._table_name} has no unique key on exactly topic, partition "
                    "and offset: without it a row that comes again would be there twice"
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
                statement = insert.on_conflict_do_nothing(index_elements=list(OFFSET_COLUMNS))
                while chunk := list(islice(rows, CHUNK_ROWS)):
                    values = [{name: row[name] for name in columns} for row in chunk]
                    with connection.begin():
                        found = connection.execute(statement, values)
                        new_count += max(0, found.rowcount)
        finally:
            engine.dispose()
        return new_count

    def _connect(self) -> sa.Engine:
        is_sqlite = sa.make_url(self._url).get_backend_name() == "sqlite"
        arguments = {"timeout": LOCK_WAIT_S} if is_sqlite else {}
        return sa.create_engine(self._url, connect_args=arguments, poolclass=sa.pool.NullPool)


_WANTED: Final = frozenset(OFFSET_COLUMNS)


def _has_key(connection: sa.Connection, table: sa.Table) -> bool:
    if {column.name for column in table.primary_key} == _WANTED:
        return True
    looked = sa.inspect(connection)
    unique = looked.get_unique_constraints(table.name, table.schema)
    if any(set(each["column_names"]) == _WANTED for each in unique):
        return True
    return any(
        each["unique"] and set(each["column_names"]) == _WANTED
        for each in looked.get_indexes(table.name, table.schema)
    )
