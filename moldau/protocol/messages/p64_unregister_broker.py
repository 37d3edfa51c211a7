"""UnregisterBroker (64) v0: forget a broker."""

from moldau.protocol.schema import ExplainedResponse, Request
from moldau.protocol.types import Int32


class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"], versions="0", flexible="0+"):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(ExplainedResponse, answers=UnregisterBrokerRequest):
    """It says no more."""
