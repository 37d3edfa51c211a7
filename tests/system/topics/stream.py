"""The readers' process `spark`: a stream of Spark, and the results stores that it writes into.

Owns the query, which is stopped and started again from its checkpoint now and then. What the source
says of losses comes from processes of Spark's own, on standard error, which the soak reads too.
Must not judge. Invariant: what lies in a store is told as that store's reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import fakeredis

from moldau.spark_connector import register
from moldau.spark_connector.pipelines.spark_home import lean_spark_home
from moldau.spark_connector.results import RedisOffsets, RedisResults, SqlResults, UniqueRows
from tests.spark.conftest import SETTINGS
from tests.system.topics.events import READY, Teller
from tests.system.topics.readers import Stop
from tests.system.topics.stores import COLUMNS, DIRECTORY_VARIABLE, Table, create_tables, read_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIGGER: Final = "300 milliseconds"
QUERY_S: Final = (20.0, 45.0)
"""How long a query runs before it is started again from its checkpoint."""
LOOK_S: Final = 0.2
ROWS: Final = (
    *("topic", "partition", "offset", "topicId"),
    "cast(string(value) as int) as number",
)


class SparkStores:
    """What `foreachBatch` calls: each batch goes to each of the stores."""

    def __init__(self, teller: Teller, directory: Path) -> None:
        self._teller = teller
        url = f"sqlite:///{directory}/spark-results.db"
        create_tables(url)
        self._redis = fakeredis.FakeRedis()
        self._stores = [
            SqlResults(url, "with-ids", "with_ids"),
            UniqueRows(url, "unique_rows"),
            RedisResults(
                RedisOffsets("", "results", client=self._redis),
                lambda pipe, row: pipe.rpush("spark-redis-results", json.dumps(row)),
            ),
            RedisOffsets("", "offsets", client=self._redis).after(self._push),
        ]
        self._tables = {
            "spark-sql-results": Table(url, "with_ids"),
            "spark-unique-rows": Table(url, "unique_rows"),
        }
        self._pushed = dict.fromkeys(("spark-redis-results", "spark-redis-offsets"), 0)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """One batch."""
        frame = frame.persist()
        try:
            rows = [row.asDict() for row in frame.collect()]
            rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
            self._teller.reads("spark", map(read_of, rows))
            for write in self._stores:
                write(frame, batch_id)
        finally:
            frame.unpersist()
        for name, table in self._tables.items():
            found = sorted(
                table.new(), key=lambda row: (row["topic"], row["partition"], row["offset"])
            )
            self._teller.reads(name, map(read_of, found))
        for name, count in self._pushed.items():
            new: Any = self._redis.lrange(name, count, -1)
            self._pushed[name] += len(new)
            self._teller.reads(name, [read_of(json.loads(each)) for each in new])

    def _push(self, frame: DataFrame, batch_id: int) -> None:
        for row in frame.select(*COLUMNS).sort("topic", "partition", "offset").collect():
            self._redis.rpush("spark-redis-offsets", json.dumps(row.asDict()))


def spark(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """Spark's stream, `failOnDataLoss=false`, read_committed."""
    stop, dice = Stop(), Random()
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    session = _session(directory)
    write = SparkStores(teller, directory)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "includeTopicId": "true",
    }
    is_first = True
    while not stop:
        rows = session.readStream.format("moldau").options(**options).load().selectExpr(*ROWS)
        writer = rows.writeStream.foreachBatch(write).trigger(processingTime=TRIGGER)
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        end = time.monotonic() + dice.uniform(*QUERY_S)
        while not stop and query.isActive and time.monotonic() < end:
            if is_first and query.lastProgress is not None:
                is_first = False
                teller.note("spark", READY)
            time.sleep(LOOK_S)
        failure = query.exception()
        if failure is not None:
            raise failure
        query.stop()
        teller.note("spark", "a query ends")
    session.stop()


def _session(directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = lean_spark_home(directory)
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    builder = SparkSession.builder.master("local[2]").appName("soak-topics")
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session
