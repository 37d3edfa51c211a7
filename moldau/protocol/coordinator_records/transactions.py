"""The record of a transactional id, in `__transaction_state`."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, Int64, String


class TransactionLogKey(Message, number=0, versions="0", flexible="none"):
    transactional_id: String = ""


class PartitionsSchema(Struct):
    topic: String = ""
    partition_ids: list[Int32] = field()


class TransactionLogValue(Message, number=0, versions="0-1", flexible="1+"):
    producer_id: Int64 = 0
    previous_producer_id: Int64 = field(-1, since=1, tag=0)
    next_producer_id: Int64 = field(-1, since=1, tag=1)
    producer_epoch: Int16 = 0
    next_producer_epoch: Int16 = field(-1, since=1, tag=3)
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = field(nullable="0+")
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Int16 = field(0, since=1, tag=2)
