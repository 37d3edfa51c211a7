"""The control record that opens a snapshot."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Int16, Int64


@data(versions="0", flexible="0+")
class SnapshotHeaderRecord(Message):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0
