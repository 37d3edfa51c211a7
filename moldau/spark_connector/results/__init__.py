"""Results of a stream outside of Kafka, each once: helpers for `foreachBatch`.

    stream.writeStream.foreachBatch(SqlResults(URL, "delays", "delays")).option(…).start()

`SqlResults` stores results and offsets in one transaction of a database, `UniqueRows` relies on a
unique (topic, partition, offset) where there are no transactions, `RedisResults` and `RedisOffsets`
keep offsets in Redis. docs/spark.md says what each promises. Names are imported when they are asked
for; SQLAlchemy and redis come with `moldau[results]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from moldau.spark_connector.results.errors import (
        ForeignResults,
        InvalidResults,
        ResultsBehind,
        ResultsError,
        RowsOutOfOrder,
    )
    from moldau.spark_connector.results.redis_offsets import RedisOffsets, RedisResults
    from moldau.spark_connector.results.sql_results import SqlResults
    from moldau.spark_connector.results.unique_rows import UniqueRows

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

_EXTRA: Final = ("sqlalchemy", "redis")
_PACKAGE: Final = "moldau.spark_connector.results"
_MODULES: Final = {
    "ForeignResults": "errors",
    "InvalidResults": "errors",
    "RedisOffsets": "redis_offsets",
    "RedisResults": "redis_offsets",
    "ResultsBehind": "errors",
    "ResultsError": "errors",
    "RowsOutOfOrder": "errors",
    "SqlResults": "sql_results",
    "UniqueRows": "unique_rows",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        text = f"{name} needs {error.name}: pip install 'moldau[results]'"
        raise ModuleNotFoundError(text, name=error.name) from None
