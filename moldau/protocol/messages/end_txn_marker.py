"""What a transaction marker tells in its value: the epoch of the coordinator that wrote it."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Int32


@data(versions="0", flexible="none")
class EndTxnMarker(Message):
    coordinator_epoch: Int32 = 0
