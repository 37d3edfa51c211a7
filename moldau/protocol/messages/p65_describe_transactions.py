"""DescribeTransactions (65) v0: describe transactions."""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, Int32, Int64, String


class DescribeTransactionsRequest(
    Request["DescribeTransactionsResponse"], versions="0", flexible="0+"
):
    transactional_ids: list[String] = field()


class TopicData(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


class TransactionState(Struct):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = field()


class DescribeTransactionsResponse(ThrottledResponse, answers=DescribeTransactionsRequest):
    transaction_states: list[TransactionState] = field()
