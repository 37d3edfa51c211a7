"""Base64 as a peer must write it: one text for each value (RFC 4648, section 3.5)."""

from __future__ import annotations

from base64 import b64decode, b64encode


def canonical_base64(text: str) -> bytes:
    """The bytes that a text in base64 stands for.

    Args:
        text: of the standard alphabet, with its padding, and with zeros for the bits that the last
            character has to spare: two texts never stand for the same bytes.

    Raises:
        ValueError: it is not what an encoder writes.
    """
    data = b64decode(text, validate=True)
    if b64encode(data).decode("ascii") != text:
        raise ValueError("the last character of the base64 text has bits to spare")
    return data
