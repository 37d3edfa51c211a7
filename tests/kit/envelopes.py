"""The response inside an Envelope's."""

from __future__ import annotations

from moldau.protocol.envelope import enveloped_response
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p58_envelope import EnvelopeResponse
from moldau.protocol.schema import Message


def decode_enveloped_response(
    envelope: EnvelopeResponse, *, api_key: int, api_version: int, correlation_id: int
) -> Message:
    """Take the response to an embedded request out of an Envelope's that has no error."""
    frame = enveloped_response(envelope, correlation_id)
    return decode_response(api_key, api_version, frame)[1]
