"""The control record that closes a snapshot."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Int16


@data(versions="0", flexible="0+")
class SnapshotFooterRecord(Message):
    version: Int16 = 0
