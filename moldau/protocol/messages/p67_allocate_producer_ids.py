"""AllocateProducerIds (67) v0: a broker asks the controller for a block of producer ids."""

from moldau.protocol.schema import FailableResponse, Request
from moldau.protocol.types import Int32, Int64


class AllocateProducerIdsRequest(
    Request["AllocateProducerIdsResponse"], versions="0", flexible="0+"
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(FailableResponse, answers=AllocateProducerIdsRequest):
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
