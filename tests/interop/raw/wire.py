"""A bare socket for requests that no well-behaved library would send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SOCKET_TIMEOUT_S = 10.0
RESPONSE_HEAD = struct.Struct(">ii")


@contextmanager
def bare_socket(bootstrap: str) -> Iterator[socket.socket]:
    """An open socket to the node."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SOCKET_TIMEOUT_S) as opened:
        yield opened


def frame(api_key: int, api_version: int, body: bytes = b"", *, correlation_id: int = 7) -> bytes:
    """A request with a non-flexible header (version 1)."""
    head = struct.pack(">hhih", api_key, api_version, correlation_id, 5) + b"probe"
    return struct.pack(">i", len(head) + len(body)) + head + body


def is_closed(opened: socket.socket) -> bool:
    """Waits for the peer: true when it closed without a word, false when it said something."""
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


def read_exactly(opened: socket.socket, size_bytes: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < size_bytes:
        chunk = opened.recv(size_bytes - len(data))
        assert chunk, "the peer closed the connection"
        data += chunk
    return data


def read_response(opened: socket.socket) -> tuple[int, bytes]:
    """Correlation id and body of one response (header version 0)."""
    size_bytes, correlation_id = RESPONSE_HEAD.unpack(read_exactly(opened, RESPONSE_HEAD.size))
    return correlation_id, read_exactly(opened, size_bytes - 4)
