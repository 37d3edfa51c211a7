"""Results of a stream outside of Kafka, each once: helpers for `foreachBatch`.

    stream.writeStream.foreachBatch(SqlResults(URL, "delays", "delays")).option(…).start()

`SqlResults` stores results and offsets in one transaction of a database, `UniqueRows` relies on a
unique (topic, partition, offset) where there are no transactions, `RedisResults` and `RedisOffsets`
keep offsets in Redis. docs/spark.md says what each promises. Names are imported when they are asked
for; SQLAlchemy and redis come with `moldau[results]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import (
    ForeignResults,
    InvalidResults,
    ResultsBehind,
    ResultsError,
    RowsOutOfOrder,
)

if TYPE_CHECKING:
    from moldau.spark_connector.results.redis_offsets import RedisOffsets, RedisResults
    from moldau.spark_connector.results.sql_results import SqlResults, UniqueRows

__all__ = [
    "ForeignResults",
    "InvalidResults",
    "RedisOffsets",
    "RedisResults",
    "ResultsBehind",
    "ResultsError",
    "RowsOutOfOrder",
    "SqlResults",
    "UniqueRows",
]

_MODULES: Final = {
    "RedisOffsets": "moldau.spark_connector.results.redis_offsets",
    "RedisResults": "moldau.spark_connector.results.redis_offsets",
    "SqlResults": "moldau.spark_connector.results.sql_results",
    "UniqueRows": "moldau.spark_connector.results.sql_results",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("sqlalchemy", "redis"):
            raise
        text = f"{name} needs {error.name}: pip install 'moldau[results]'"
        raise ModuleNotFoundError(text, name=error.name) from None
