"""AbortTransactionRecord (type 25, version 0): ends a group of records that then never happened."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import String


@metadata_record(25, versions="0", flexible="0+")
class AbortTransactionRecord(Message):
    reason: String | None = field(None, nullable="0+", tag=0)
