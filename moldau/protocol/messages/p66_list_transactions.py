"""ListTransactions (66) v0-v2: list transactions.

Versions: 1 filters by duration, 2 by pattern of the transactional id.
"""

from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import Int64, String


class ListTransactionsRequest(Request["ListTransactionsResponse"], versions="0-2", flexible="0+"):
    state_filters: list[String] = field()
    producer_id_filters: list[Int64] = field()
    duration_filter: Int64 = field(-1, since=1)
    transactional_id_pattern: String | None = field(None, since=2, nullable="2+")


class TransactionState(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(FailableResponse, answers=ListTransactionsRequest):
    unknown_state_filters: list[String] = field()
    transaction_states: list[TransactionState] = field()
