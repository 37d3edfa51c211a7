"""Results of a stream in a SQL database: with their offsets in one transaction, or by a unique key.

`SqlResults` owns two small tables beside the results, and reads a third one, `moldau_offsets`,
which releases before topic ids have written. Must not keep a transaction open between batches.
Invariant: the database holds the results of a record (or a batch) and the note that it does, or
neither; so whatever is killed, and however often Spark gives the same batch, they are stored once.

What happens when two drivers have the same batch, one of them a zombie:

1. both begin a transaction and update the pipeline's row in `moldau_batches`; one of them waits.
2. the first writes results and position and commits.
3. the second sees the new position: nothing in its batch is new, and it commits nothing.

`UniqueRows` writes from Spark's workers, in parallel and without a transaction around the batch,
and must not need the driver's memory. Invariant: the table has a unique key on (topic, partition,
offset), which is checked before anything is written, so a row that comes again changes nothing. A
reader may see part of a batch; and a batch that comes again must have the same rows, which holds
for whatever is computed from a record alone, without clock or random numbers. With the column
topicId, which then belongs to the key, records of a topic that was deleted and created again have
rows of their own. Rows that are stored already are counted; a warning says so where Spark has not
given the batch before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from moldau.client import TopicPartition
from moldau.spark_connector.errors import ForeignResults, InvalidResults
from moldau.spark_connector.results.positions import (
    NOTHING_YET,
    OFFSET_COLUMNS,
    UNKNOWN_ID,
    Batch,
    Place,
    Positions,
    Row,
    StoredOffsets,
    StoredPosition,
    plain_row,
    query_id_of,
    require_offsets,
    rows_of,
    timed_columns,
)
from moldau.spark_connector.source.options import TOPIC_ID_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import Row as SparkRow

CHUNK_ROWS: Final = 1_000
LOCK_WAIT_S: Final = 60
"""How long a writer waits for another one, before the batch fails and Spark's query with it."""

_BOOK: Final = sa.MetaData()
BATCHES: Final = sa.Table(
    "moldau_batches",
    _BOOK,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("query_id", sa.String(64), primary_key=True),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
)
POSITIONS: Final = sa.Table(
    "moldau_positions",
    _BOOK,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("topic_id", sa.String(22), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("query_id", sa.String(64), nullable=True),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("skipped_count", sa.BigInteger, nullable=False),
)
"""See `StoredPosition`."""
OFFSETS: Final = sa.Table(
    "moldau_offsets",
    _BOOK,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
)
"""What releases before topic ids have written: read for a pipeline that has no positions yet."""
LOCK_ROW: Final = ""
"""The query id of the row that says nothing and only serves to be locked."""

Rows = Iterator[Row]
Write = Callable[[sa.Connection, Rows], None]
_log: Final = logging.getLogger(__name__)


class SqlResults(StoredOffsets):
    """A function for `foreachBatch` that writes each batch's rows into a database, once.

    Rows with the columns topic, partition and offset are judged by them: also a lost checkpoint, or
    another query, adds nothing twice. They must come in the order of offsets from batch to batch;
    with the column topicId a topic that is deleted and created again is another one. Rows without
    (aggregates, joins) are judged by query and batch.

    Args:
        url: of the database, as SQLAlchemy writes it.
        pipeline: names these results; positions are kept by this name.
        table: the table for the rows, whose columns have the names of the frame's.
        keys: the columns of a unique key of the table: a row replaces the one with the same key
            (SQLite, PostgreSQL). Empty: rows are added.
        write: instead of `table`, what to do with the rows, on the transaction's connection.

    Raises:
        InvalidResults: both or neither of table and write.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        table: str | None = None,
        *,
        keys: Sequence[str] = (),
        write: Write | None = None,
    ) -> None:
        if (table is None) == (write is None):
            raise InvalidResults("either a table or a function that writes must be given")
        self._url = url
        self._pipeline = pipeline
        self._table_name = table
        self._keys = tuple(keys)
        self._write = write
        self._engine: sa.Engine | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_engine": None}  # Spark Connect pickles the function

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch.

        Raises:
            ResultsBehind: the database lacks batches of this query.
            RowsOutOfOrder: rows of a batch that was never written lie before those of the query's
                own batches.
            ForeignResults: rows without offsets, and the results there are another query's.
            InvalidResults: the table does not fit the rows.
            sqlalchemy.exc.SQLAlchemyError: the database refuses; nothing was changed.
        """
        self.write_batch(rows_of(frame), frame.columns, batch_id, query_id_of(frame))

    def write_batch(
        self, rows: Rows, columns: Sequence[str], batch_id: int, query_id: str | None
    ) -> int:
        """What a call does, without Spark: how many rows were new. Raises as the call does."""
        by_offset = set(OFFSET_COLUMNS) <= set(columns)
        if not by_offset and query_id is None:
            # Another query's batch 0 would look like this one's, and be taken for written.
            raise InvalidResults(
                f"{self._pipeline}: rows without the columns topic, partition and offset go by the "
                "query's id, which Spark does not tell here (Spark Connect): add these columns"
            )
        new_count = 0

        def counted(rows: Rows) -> Rows:
            nonlocal new_count
            for row in rows:
                new_count += 1
                yield row

        with self.engine.begin() as connection:
            last_batches = self._lock(connection)
            last_batch = last_batches.get(query_id or "", NOTHING_YET)
            batch = Batch(self._pipeline, query_id, batch_id, last_batch)
            batch.check_follows("the database", "SqlResults")
            if not by_offset and self._has_batch(last_batches, batch):
                for _ in rows:  # Spark's own state comes from computing them, and may be missing
                    pass
                return 0
            positions = Positions(batch, self._stored_in(connection) if by_offset else {})
            new_rows = counted(positions.new_rows(rows) if by_offset else rows)
            self._write_rows(connection, new_rows, columns)
            for _ in new_rows:  # what the function has left counts as written
                pass
            self._keep(connection, positions.changed())
            # A batch that comes again must not set the number back.
            if query_id is not None and batch_id > last_batch:
                place = {"pipeline": self._pipeline, "query_id": query_id}
                _put(connection, BATCHES, place, batch_id=batch_id)
        positions.warn()
        return new_count

    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, as the database has it."""
        return self._next_offsets()

    def forget(self, topic: str | None = None) -> None:
        """Forget all positions and batches, before the results are written again.

        Args:
            topic: forget only the positions in this topic, which was deleted and created again.
        """
        with self.engine.begin() as connection:
            self._lock(connection)
            if topic is None:
                for book in (POSITIONS, OFFSETS, BATCHES):
                    connection.execute(sa.delete(book).where(book.c.pipeline == self._pipeline))
                return
            self._keep(connection, {})
            for book in (POSITIONS, OFFSETS):
                mine = sa.and_(book.c.pipeline == self._pipeline, book.c.topic == topic)
                connection.execute(sa.delete(book).where(mine))

    @property
    def engine(self) -> sa.Engine:
        """The way to the database; the two tables exist once it was asked for."""
        if self._engine is None:
            engine = _engine(self._url, pool_pre_ping=True)
            _BOOK.create_all(engine)
            self._engine = engine
        return self._engine

    # -- how -------------------------------------------------------------------------------------

    def _lock(self, connection: sa.Connection) -> dict[str, int]:
        """Make others wait until this transaction ends; the last batch of each query.

        An UPDATE locks: the row in PostgreSQL and others, the whole database in SQLite, where a
        SELECT before it would see an older state.
        """
        if connection.dialect.name == "postgresql":
            # A holder of the lock that is paused must not hold back all others for ever.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
        mine = BATCHES.c.pipeline == self._pipeline
        own = {"pipeline": self._pipeline, "query_id": LOCK_ROW}
        touch = sa.update(BATCHES).where(mine, BATCHES.c.query_id == LOCK_ROW).values(**own)
        if connection.execute(touch).rowcount == 0:
            try:
                with connection.begin_nested():
                    connection.execute(sa.insert(BATCHES).values(**own, batch_id=NOTHING_YET))
            except sa.exc.IntegrityError:  # another driver has just made it
                connection.execute(touch)
        found = connection.execute(sa.select(BATCHES.c.query_id, BATCHES.c.batch_id).where(mine))
        return {query_id: batch_id for query_id, batch_id in found if query_id != LOCK_ROW}

    def _has_batch(self, last_batches: Mapping[str, int], batch: Batch) -> bool:
        """Whether these results are stored. Without offsets only the batch's number can say."""
        assert batch.query_id is not None, "refused before"
        others = {other: last for other, last in last_batches.items() if other != batch.query_id}
        if others:
            other, last_batch = next(iter(others.items()))
            raise ForeignResults(
                f"{self._pipeline}: the results are those of query {other} up to batch "
                f"{last_batch}, and this is query {batch.query_id}. Rows without topic, partition "
                "and offset cannot be told apart: take another name, or empty the table and "
                "forget()"
            )
        return batch.is_repeated

    def _stored(self) -> dict[Place, StoredPosition]:
        with self.engine.connect() as connection:
            return self._stored_in(connection)

    def _stored_in(self, connection: sa.Connection) -> dict[Place, StoredPosition]:
        pipeline, *columns = POSITIONS.c
        found = connection.execute(sa.select(*columns).where(pipeline == self._pipeline))
        stored = {Place(*row[:3]): StoredPosition(*row[3:]) for row in found}
        return stored or self._stored_without_ids(connection)

    def _stored_without_ids(self, connection: sa.Connection) -> dict[Place, StoredPosition]:
        found = connection.execute(
            sa.select(OFFSETS.c.topic, OFFSETS.c.partition, OFFSETS.c.next_offset).where(
                OFFSETS.c.pipeline == self._pipeline
            )
        )
        return {
            Place(topic, UNKNOWN_ID, number): StoredPosition(end) for topic, number, end in found
        }

    def _keep(
        self, connection: sa.Connection, changed: Mapping[Place, StoredPosition | None]
    ) -> None:
        mine = POSITIONS.c.pipeline == self._pipeline
        is_begun = connection.execute(sa.select(POSITIONS.c.topic).where(mine).limit(1)).first()
        if is_begun is None:
            changed = {**self._stored_without_ids(connection), **changed}
        for place, position in changed.items():
            key = {"pipeline": self._pipeline, **place._asdict()}
            if position is None:
                at_place = sa.and_(*(POSITIONS.c[name] == value for name, value in key.items()))
                connection.execute(sa.delete(POSITIONS).where(at_place))
            else:
                _put(connection, POSITIONS, key, **asdict(position))

    def _write_rows(self, connection: sa.Connection, rows: Rows, columns: Sequence[str]) -> None:
        if self._write is not None:
            self._write(connection, rows)
            return
        assert self._table_name is not None, "one of the two"
        table = reflected(connection, self._table_name)
        # The columns of the record's place may be missing in the table.
        place = (*OFFSET_COLUMNS, TOPIC_ID_COLUMN)
        names = [each for each in columns if each in table.c or each not in place]
        missing = [each for each in names if each not in table.c]
        if missing:
            raise InvalidResults(
                f"the table {self._table_name} has no column {', '.join(missing)}; it has "
                f"{', '.join(table.c.keys())}"
            )
        statement = self._statement(connection, table, names)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            connection.execute(statement, [{name: row[name] for name in names} for row in chunk])

    def _statement(
        self, connection: sa.Connection, table: sa.Table, names: Sequence[str]
    ) -> sa.Executable:
        if not self._keys:
            return sa.insert(table)
        unknown = [each for each in self._keys if each not in names]
        if unknown:
            raise InvalidResults(f"keys: the rows have no column {', '.join(unknown)}")
        insert = upsert_of(connection.dialect.name)(table)
        others = {name: insert.excluded[name] for name in names if name not in self._keys}
        if others:
            return insert.on_conflict_do_update(index_elements=self._keys, set_=others)
        return insert.on_conflict_do_nothing(index_elements=self._keys)


def _put(
    connection: sa.Connection, book: sa.Table, place: Mapping[str, object], **values: object
) -> None:
    """Change the row at a place, or add it. No other driver does: the lock is held."""
    mine = sa.and_(*(book.c[name] == value for name, value in place.items()))
    if connection.execute(sa.update(book).where(mine).values(**values)).rowcount == 0:
        connection.execute(sa.insert(book).values(**place, **values))


def reflected(connection: sa.Connection, name: str) -> sa.Table:
    """TABLE or SCHEMA.TABLE as the database has it. Raises: InvalidResults: there is none."""
    schema, _, bare = name.rpartition(".")
    try:
        return sa.Table(bare, sa.MetaData(), schema=schema or None, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise InvalidResults(f"there is no table {name}: create it first") from None


def upsert_of(dialect: str) -> Callable[[sa.Table], sqlite.Insert | postgresql.Insert]:
    """The INSERT that knows conflicts. Raises: InvalidResults: this database has none."""
    makers: dict[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]] = {
        "sqlite": sqlite.insert,
        "postgresql": postgresql.insert,
    }
    maker = makers.get(dialect)
    if maker is None:
        raise InvalidResults(f"keys are for SQLite and PostgreSQL; for {dialect} give write=")
    return maker


class UniqueRows:
    """A function for `foreachBatch` that adds each record's row once.

    Args:
        url: of the database (SQLite, PostgreSQL), as SQLAlchemy writes it; workers connect to it.
        table: a table with the frame's columns, and a unique key on topic, partition and offset,
            and on topicId where the frame has it.

    Attributes:
        skipped_count: how many rows were stored already, since this object was made.
    """

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._table_name = table
        self.skipped_count = 0
        self._begun: dict[str | None, int] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch; rows that are stored already are left alone.

        Raises:
            InvalidResults: the frame lacks a column, or the table its key.
        """
        columns = frame.columns
        require_offsets(columns, "UniqueRows")
        self.check_table(columns)
        timed = timed_columns(frame)
        found = frame.sparkSession.sparkContext.accumulator(0)
        writer = UniqueRows(self._url, self._table_name)  # without this one's counts

        def write(rows: Iterable[SparkRow]) -> None:
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
        with self._connected() as (connection, table):
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

    def write_rows(self, rows: Iterator[Row], columns: Sequence[str]) -> int:
        """Add rows, a chunk per transaction; how many were not there yet."""
        new_count = 0
        with self._connected() as (connection, table):
            connection.rollback()  # the look at the table began a transaction
            insert = upsert_of(connection.dialect.name)(table)
            insert = insert.on_conflict_do_nothing(index_elements=key_of(columns))
            # Several rows at once have no row count with psycopg: what is returned counts.
            statement = insert.returning(sa.literal(1))
            while chunk := list(islice(rows, CHUNK_ROWS)):
                values = [{name: row[name] for name in columns} for row in chunk]
                for row in values if TOPIC_ID_COLUMN in columns else ():
                    # Brokers before topic ids: a null is never the same as another.
                    row[TOPIC_ID_COLUMN] = row[TOPIC_ID_COLUMN] or UNKNOWN_ID
                with connection.begin():
                    added_count = len(connection.execute(statement, values).all())
                new_count += added_count
                self.skipped_count += len(values) - added_count
        return new_count

    @contextmanager
    def _connected(self) -> Iterator[tuple[sa.Connection, sa.Table]]:
        """A connection for as long as the block runs, and the table."""
        engine = _engine(self._url, poolclass=sa.pool.NullPool)
        try:
            with engine.connect() as connection:
                yield connection, reflected(connection, self._table_name)
        finally:
            engine.dispose()


def _engine(url: str, **settings: Any) -> sa.Engine:
    is_sqlite = sa.make_url(url).get_backend_name() == "sqlite"
    arguments = {"timeout": LOCK_WAIT_S} if is_sqlite else {}
    return sa.create_engine(url, connect_args=arguments, **settings)


def key_of(columns: Sequence[str]) -> list[str]:
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
