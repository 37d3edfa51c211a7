"""UnregisterBrokerRecord (type 1, version 0): a broker is forgotten."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int32, Int64


@metadata_record(1, versions="0", flexible="0+")
class UnregisterBrokerRecord(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
