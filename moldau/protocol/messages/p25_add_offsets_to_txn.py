"""AddOffsetsToTxn (25) v0-v4: add a consumer group's offsets to a transaction."""

from moldau.protocol.schema import FailableResponse, Request
from moldau.protocol.types import Int16, Int64, String


class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"], versions="0-4", flexible="3+"):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(FailableResponse, answers=AddOffsetsToTxnRequest):
    """It says no more."""
