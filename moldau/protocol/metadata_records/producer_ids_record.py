"""ProducerIdsRecord (type 15, version 0): the end of the producer ids handed out so far."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int32, Int64


@metadata_record(15, versions="0", flexible="0+")
class ProducerIdsRecord(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0
