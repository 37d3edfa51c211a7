"""Whether a peer has gone, asked of a transport that does not read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from moldau.runtime.network import has_lost_peer
from moldau.runtime.tls_transport import RAW_BYTES

pytestmark = pytest.mark.real

RESET = struct.pack("ii", 1, 0)


class Transport:
    """As much of one as is asked."""

    def __init__(self, connection: socket.socket | None, *, has_tls: bool = False) -> None:
        self._found = {"socket": connection, "ssl_object": object() if has_tls else None}

    def get_extra_info(self, name: str) -> object:
        return self._found[name]


def is_lost(connection: socket.socket | None, missing: int = 1, *, has_tls: bool = False) -> bool:
    transport = Transport(connection, has_tls=has_tls)
    return has_lost_peer(cast(asyncio.BaseTransport, transport), missing)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection's both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        yield client, server


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_peer_has_gone_unless_what_is_missing_has_come(
    pair: tuple[socket.socket, socket.socket], end: str
) -> None:
    client, server = pair
    client.sendall(bytes(1_000))
    assert not is_lost(server, 1_001)
    if end == "close":
        client.close()
    else:
        client.shutdown(socket.SHUT_WR)
    assert is_lost(server, 1_001)
    assert not is_lost(server, 1_000)
    assert is_lost(server, 1_001 + RAW_BYTES, has_tls=True)
    assert not is_lost(server, 1_000 + RAW_BYTES, has_tls=True)
    server.recv(1)
    assert is_lost(server, 1_000)


def test_a_peer_that_has_reset_the_connection_has_gone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    client.sendall(bytes(1_000))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    assert is_lost(server, 1)


def test_what_has_no_socket_is_not_asked(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    client.close()
    server.close()
    assert not is_lost(None)
    assert not is_lost(server), "it is closed"
