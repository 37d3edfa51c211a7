"""AddPartitionsToTxn (24) v0-v5: add partitions to a transaction.

Versions: 4 is sent by brokers for many transactions at once and can verify only.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int16, Int32, Int64, String


class AddPartitionsToTxnTopic(Struct):
    name: String = ""
    partitions: list[Int32] = field()


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: String = field("", since=4)
    producer_id: Int64 = field(0, since=4)
    producer_epoch: Int16 = field(0, since=4)
    verify_only: Bool = field(False, since=4)
    topics: list[AddPartitionsToTxnTopic] = field(since=4)


class AddPartitionsToTxnRequest(
    Request["AddPartitionsToTxnResponse"], versions="0-5", flexible="3+"
):
    transactions: list[AddPartitionsToTxnTransaction] = field(since=4)
    v3_and_below_transactional_id: String = field("", until=3)
    v3_and_below_producer_id: Int64 = field(0, until=3)
    v3_and_below_producer_epoch: Int16 = field(0, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(until=3)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Struct):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field()


class AddPartitionsToTxnResult(Struct):
    transactional_id: String = field("", since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = field(since=4)


class AddPartitionsToTxnResponse(ThrottledResponse, answers=AddPartitionsToTxnRequest):
    error_code: Int16 = field(0, since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(until=3)
