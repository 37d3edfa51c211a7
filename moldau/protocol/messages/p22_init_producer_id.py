"""InitProducerId (22) v0-v6: get a producer id and epoch.

Versions: 3 lets a producer bump its own epoch. 4 knows PRODUCER_FENCED. 6, two-phase commit
(KIP-939), is not settled yet.
"""

from moldau.protocol.schema import FailableResponse, Request, field
from moldau.protocol.types import Bool, Int16, Int32, Int64, String


class InitProducerIdRequest(
    Request["InitProducerIdResponse"], versions="0-6", flexible="2+", latest_stable=5
):
    transactional_id: String | None = field("", nullable="0+")
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = field(-1, since=3)
    producer_epoch: Int16 = field(-1, since=3)
    enable2_pc: Bool = field(False, since=6)
    keep_prepared_txn: Bool = field(False, since=6)


class InitProducerIdResponse(FailableResponse, answers=InitProducerIdRequest):
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = field(-1, since=6)
    ongoing_txn_producer_epoch: Int16 = field(-1, since=6)
