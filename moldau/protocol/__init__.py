"""The wire: messages, record batches, frames, error codes.

This package turns bytes into values and values into bytes, and does nothing else: no sockets, no
files, no clocks. Importing it costs next to nothing; message modules are imported by `registry`
or by name, and codecs compiled, when they are first needed.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, ProtocolError, RemoteProtocolError
from moldau.protocol.types import (
    ZERO_UUID,
    TopicPartition,
    random_topic_id,
    uuid_from_base64,
    uuid_to_base64,
)

__all__ = [
    "ZERO_UUID",
    "ApiKey",
    "ErrorCode",
    "ProtocolError",
    "RemoteProtocolError",
    "TopicPartition",
    "random_topic_id",
    "uuid_from_base64",
    "uuid_to_base64",
]
