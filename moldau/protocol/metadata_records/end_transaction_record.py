"""EndTransactionRecord (type 24, version 0): ends a group of records that now count."""

from moldau.protocol.schema import Message, metadata_record


@metadata_record(24, versions="0", flexible="0+")
class EndTransactionRecord(Message):
    """This record has no fields."""
