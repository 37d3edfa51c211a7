"""Envelope (58) v0: carry a client's request from a broker to the controller.

`committed_end_offset` is no field of Apache Kafka's: only Moldau writes and reads it, and every
other implementation skips it as it skips any tagged field that it does not know. Its tag is far
above those that Kafka counts up from 0.
"""

from typing import Final

from moldau.protocol.schema import Message, Request, field
from moldau.protocol.types import Bool, Bytes, Int16, Int64, String

UNKNOWN_END_OFFSET: Final = -1
"""The value of controllers that leave out how far the metadata log is committed."""

COMMITTED_END_OFFSET_TAG: Final = 10_000


class EnvelopeRequest(Request["EnvelopeResponse"], versions="0", flexible="0+"):
    request_data: Bytes = b""
    request_principal: Bytes | None = field(b"", nullable="0+")
    client_host_address: Bytes = b""


class EnvelopeResponse(Message, answers=EnvelopeRequest):
    response_data: Bytes | None = field(None, nullable="0+")
    error_code: Int16 = 0
    committed_end_offset: Int64 = field(
        UNKNOWN_END_OFFSET, since=0, tag=COMMITTED_END_OFFSET_TAG, ignorable=True
    )


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """An authenticated principal, as brokers forward it inside an Envelope."""

    type: String = ""
    name: String = ""
    token_authenticated: Bool = False
