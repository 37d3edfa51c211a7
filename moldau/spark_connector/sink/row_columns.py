"""Spark's rows as the columns that records are made of.

Owns which columns a frame to be written must, may and may not have (Spark's own rules for its Kafka
sink) and their Arrow types. Must not send anything. Invariant: what is checked once, on the schema,
cannot fail on a row, but for a null topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from moldau.spark_connector.errors import InvalidSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class RowColumns:
    """What is taken of each Arrow batch.

    Attributes:
        topic: for all rows; None: the column says it.
        positions: where each column stands, by name.
        ledger_topic: where no row may go; None: there is no such topic.
    """

    topic: str | None
    positions: Mapping[str, int]
    ledger_topic: str | None = None

    @classmethod
    def of(
        cls,
        schema: StructType,
        topic: str | None,
        *,
        include_timestamp: bool,
        ledger_topic: str | None = None,
    ) -> RowColumns:
        """From the frame's schema; other columns are left out.

        Raises:
            InvalidSchema: no `value`, no topic, a column of another type, or one twice.
        """
        positions: dict[str, int] = {}
        for position, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _ALLOWED or (name == "timestamp" and not include_timestamp):
                continue
            if name == "topic" and topic is not None:
                continue
            if name in positions:
                raise InvalidSchema(f"there are two columns named {name!r}")
            found = field.dataType.simpleString()
            if found.startswith(("varchar", "char")):
                found = "string"
            if found not in _ALLOWED[name]:
                raise InvalidSchema(
                    f"column {name!r} is {found}: {' or '.join(_ALLOWED[name])} is needed"
                )
            positions[name] = position
        if "value" not in positions:
            names = ", ".join(schema.fieldNames()) or "no columns"
            raise InvalidSchema(
                f"there is no column 'value' (there is {names}): rename one to `value`, or make it "
                "with to_json(struct(*)) AS value"
            )
        if topic is None and "topic" not in positions:
            raise InvalidSchema(
                "no topic: set the option `topic` for all rows, or add a column 'topic'"
            )
        if include_timestamp and "timestamp" not in positions:
            raise InvalidSchema("includeTimestamp=true needs a column 'timestamp'")
        return cls(topic, positions, ledger_topic)

    def taken(self, batch: Any) -> Any:
        """The columns of a `pyarrow.RecordBatch`, as `send_arrow` takes them.

        Raises:
            InvalidSchema: a row without a topic, or for the ledger's.
        """
        names, columns = [], []
        for name, position in self.positions.items():
            column = batch.column(position)
            if name in ("key", "value") and not pa.types.is_binary(column.type):
                column = column.cast(pa.binary())
            if name == "topic":
                self._check_topics(column)
            names.append(name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_topics(self, column: Any) -> None:
        if column.null_count:
            raise InvalidSchema(
                "a row has a null in column 'topic': set the option `topic`, or fill it"
            )
        if self.ledger_topic is not None and pc.any(pc.equal(column, self.ledger_topic)).as_py():
            raise InvalidSchema(
                f"a row is for {self.ledger_topic}, where sinks keep their decisions "
                "(ledgerTopic): leave out such rows"
            )
