"""BeginTransactionRecord (type 23, version 0): opens a group of records that count together."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import String


@metadata_record(23, versions="0", flexible="0+")
class BeginTransactionRecord(Message):
    name: String | None = field(None, nullable="0+", tag=0)
