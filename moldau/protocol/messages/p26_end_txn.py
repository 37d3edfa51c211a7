"""EndTxn (26) v0-v5: commit or abort a transaction.

Versions: 5 returns the producer id and epoch to go on with.
"""

from moldau.protocol.schema import FailableResponse, Request, field
from moldau.protocol.types import Bool, Int16, Int64, String


class EndTxnRequest(Request["EndTxnResponse"], versions="0-5", flexible="3+"):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(FailableResponse, answers=EndTxnRequest):
    producer_id: Int64 = field(-1, since=5, ignorable=True)
    producer_epoch: Int16 = field(-1, since=5, ignorable=True)
