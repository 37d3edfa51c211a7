"""Whether a peer has gone, asked of a transport that does not read."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

import pytest

from moldau.runtime.network import has_lost_peer

pytestmark = pytest.mark.real

RESET = struct.pack("ii", 1, 0)


class Transport:
    """As much of one as is asked."""

    def __init__(self, connection: socket.socket | None) -> None:
        self._connection = connection

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self._connection


def is_lost(connection: socket.socket | None) -> bool:
    return has_lost_peer(cast(asyncio.BaseTransport, Transport(connection)))


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    """A connection's both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.mark.parametrize("unread", [b"", b"x" * 1000], ids=["nothing unread", "something unread"])
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_a_peer_that_has_gone_is_seen_without_reading(
    pair: tuple[socket.socket, socket.socket], unread: bytes, is_reset: bool
) -> None:
    client, server = pair
    with server:
        client.sendall(unread)
        assert not is_lost(server)
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        assert is_lost(server)


def test_a_peer_that_only_sends_no_more_has_gone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    with client, server:
        client.shutdown(socket.SHUT_WR)
        assert is_lost(server)


def test_what_has_no_socket_is_not_asked(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    client.close()
    server.close()
    assert not is_lost(None)
    assert not is_lost(server), "it is closed"
