"""Results of a stream outside of Kafka, each once: helpers for `foreachBatch`.

    stream.writeStream.foreachBatch(SqlResults(URL, "delays", "delays")).option(…).start()

`SqlResults` stores results and offsets in one transaction of a database, `UniqueRows` relies on a
unique (topic, partition, offset) where there are no transactions, `RedisResults` and `RedisOffsets`
keep offsets in Redis. docs/spark.md says what each promises. Names are imported when they are asked
for; SQLAlchemy and redis come with `moldau[results]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.spark_connector.errors import ForeignResults as ForeignResults
    from moldau.spark_connector.errors import InvalidResults as InvalidResults
    from moldau.spark_connector.errors import ResultsBehind as ResultsBehind
    from moldau.spark_connector.errors import ResultsError as ResultsError
    from moldau.spark_connector.errors import RowsOutOfOrder as RowsOutOfOrder
    from moldau.spark_connector.results.redis_offsets import RedisOffsets as RedisOffsets
    from moldau.spark_connector.results.redis_offsets import RedisResults as RedisResults
    from moldau.spark_connector.results.sql_results import SqlResults as SqlResults
    from moldau.spark_connector.results.sql_results import UniqueRows as UniqueRows

at_first_use(
    globals(),
    """
    spark_connector.errors: ForeignResults InvalidResults ResultsBehind ResultsError RowsOutOfOrder
    spark_connector.results.redis_offsets: RedisOffsets RedisResults
    spark_connector.results.sql_results: SqlResults UniqueRows
    """,
    needs={"sqlalchemy": "results", "redis": "results"},
)
