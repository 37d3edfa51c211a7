"""A stranger cannot find out which users exist: what SCRAM's first answer shows of a name."""

from __future__ import annotations

import socket
import ssl
import struct
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from moldau.client.admin.security import ScramMechanism, ScramUpsertion
from moldau.client.sync import Admin
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.testing import Cluster
from tests.kit.waiting import until

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
NAMES: Final = [f"nobody-{number}" for number in range(60)]
TIMEOUT_S: Final = 30.0


class Stranger:
    """One connection without credentials: TLS, as the client's certificate is not asked for."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket = context.wrap_socket(plain)

    def _ask(self, request: Any, version: int) -> Any:
        parts = encode_request(request, api_version=version, correlation_id=1, client_id="x")
        self._socket.sendall(b"".join(parts))
        (size,) = struct.unpack(">i", self._receive(4))
        _, response = decode_response(request.API_KEY, version, self._receive(size))
        return response

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the node has closed the connection"
            data += more
        return data

    def first_answer(self, mechanism: str, name: str, extensions: str = "") -> tuple[bytes, int]:
        """The salt and the iterations of a name."""
        self._ask(SaslHandshakeRequest(mechanism=mechanism), 1)
        first = f"n,,n={name},r=of-the-client{extensions}".encode()
        answer = self._ask(SaslAuthenticateRequest(auth_bytes=first), 2)
        assert answer.error_code == 0, answer
        _, salt, count = bytes(answer.auth_bytes).decode().split(",")
        self._socket.close()
        return b64decode(salt.removeprefix("s=")), int(count.removeprefix("i="))


def shown(
    address: str, names: Iterable[str], mechanism: str = SHA_512, extensions: str = ""
) -> dict[str, tuple[bytes, int]]:
    return {each: Stranger(address).first_answer(mechanism, each, extensions) for each in names}


def shapes(found: dict[str, tuple[bytes, int]]) -> set[tuple[int, int]]:
    return {(len(salt), iterations) for salt, iterations in found.values()}


@pytest.mark.system
@pytest.mark.timeout(240)
def test_what_is_shown_of_a_name_is_the_same_at_all_nodes_and_stays(tmp_path: Path) -> None:
    upsertions = [
        ScramUpsertion(f"user-{number}", "u-secret", ScramMechanism.SCRAM_SHA_512, iterations)
        for number, iterations in enumerate((4_096, 16_384, 16_384))
    ]
    only_256 = ScramUpsertion("only-256", "u-secret", ScramMechanism.SCRAM_SHA_256, 8_192)
    users = ["admin", *(each.user for each in upsertions)]
    with Cluster(2, secure=True, directory=tmp_path) as cluster:
        first, second = cluster.bootstrap_server.split(",")
        with Admin(config=cluster.client_properties) as admin:
            assert set(admin.alter_user_scram_credentials(upsertions).values()) == {None}
            assert set(admin.alter_user_scram_credentials([only_256]).values()) == {None}
        until(
            lambda: shown(second, ["only-256"], SHA_256) == shown(first, ["only-256"], SHA_256),
            what="both brokers know the user",
        )
        unknown = shown(first, [*NAMES, "only-256"])
        assert shapes(unknown) == shapes(shown(first, users)) == {(32, 4_096), (32, 16_384)}
        assert unknown == shown(second, unknown)
        of_256 = shown(first, [*NAMES, "admin"], SHA_256)
        assert shapes(of_256) == shapes(shown(first, ["only-256"], SHA_256)) == {(32, 8_192)}
        assert not {salt for salt, _ in of_256.values()} & {salt for salt, _ in unknown.values()}
        tokens = shown(first, NAMES[:5], SHA_256, ",tokenauth=true")
        assert tokens == shown(second, NAMES[:5], SHA_256, ",tokenauth=true")
        for node_id in cluster.node_ids:
            cluster.stop(node_id)
        for node_id in reversed(cluster.node_ids):  # controllers come first
            cluster.restart(node_id)
        assert unknown == shown(second, unknown)
        assert of_256 == shown(first, of_256, SHA_256)
        assert tokens == shown(first, NAMES[:5], SHA_256, ",tokenauth=true")
