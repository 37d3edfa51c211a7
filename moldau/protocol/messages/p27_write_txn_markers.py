"""WriteTxnMarkers (27) v1-v2: write transaction markers; sent by the transaction coordinator to
leaders.

Versions: 2 carries the transaction's version.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bool, Int8, Int16, Int32, Int64, String


class WritableTxnMarkerTopic(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field()


class WritableTxnMarker(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = field()
    coordinator_epoch: Int32 = 0
    transaction_version: Int8 = field(0, since=2, ignorable=True)


class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"], versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarker] = field()


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Struct):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field()


class WritableTxnMarkerResult(Struct):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = field()


class WriteTxnMarkersResponse(Message, answers=WriteTxnMarkersRequest):
    markers: list[WritableTxnMarkerResult] = field()
