"""The wire: messages, record batches, frames, error codes.

This package turns bytes into values and values into bytes, and does nothing else: no sockets, no
files, no clocks. Importing it costs next to nothing; message modules are imported by `registry`
or by name, and codecs compiled, when they are first needed.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode

__all__ = ["ApiKey", "ErrorCode"]
