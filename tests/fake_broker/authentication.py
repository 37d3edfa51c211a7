"""TLS and SASL as a broker does them.

Owns certificates, credentials and the server's side of PLAIN, SCRAM and OAUTHBEARER, and when a
session ends (KIP-368). Must share no code with the client's side. Sources: RFC 4616, 5802, 7628,
KIP-84, KIP-152, KIP-255, KIP-368. Invariant: a session serves nothing but the exchange until it
has succeeded.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeResponse
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateResponse

if TYPE_CHECKING:
    from tests.fake_broker.context import Context

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

SCRAM_ITERATION_COUNT = 4096
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_EXCHANGE = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Certificates:
    """A certificate authority of the test's own, one server and one client certificate; PEM files
    in `directory`.
    """

    def __init__(self, directory: Path, *, host: str = "127.0.0.1") -> None:
        import trustme

        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.server = authority.issue_cert(host, key_type=trustme.KeyType.ECDSA)
        self.client = authority.issue_cert("client@example.org", key_type=trustme.KeyType.ECDSA)
        self.authority = authority
        self.authority_path = directory / "ca.pem"
        self.client_path = directory / "client.pem"
        self.client_key_path = directory / "client.key"
        authority.cert_pem.write_to_path(str(self.authority_path))
        self.client_path.write_bytes(b"".join(each.bytes() for each in self.client.cert_chain_pems))
        self.client.private_key_pem.write_to_path(str(self.client_key_path))


@dataclass(slots=True)
class Security:
    """What the listeners demand."""

    protocol: SecurityProtocol = "PLAINTEXT"
    certificates: Certificates | None = None
    client_certificate_required: bool = False
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    users: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    session_lifetime_ms: int = 0
    session_grace_ms: int = 0
    """How much longer than the answer says that a session lasts: for tests on busy machines."""
    authenticated_count: int = 0
    reauthenticated_count: int = 0
    failed_count: int = 0

    @property
    def uses_sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        """Whether the listeners speak TLS."""
        return self.protocol.endswith("SSL")

    def server_context(self) -> ssl.SSLContext | None:
        """What the listeners take TLS with; None for plaintext."""
        if not self.uses_tls:
            return None
        assert self.certificates is not None, "TLS needs certificates"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificates.server.configure_cert(context)
        if self.client_certificate_required:
            context.verify_mode = ssl.CERT_REQUIRED
            self.certificates.authority.configure_trust(context)
        return context


class _Refused(Exception):
    """These credentials are not good; the text is for the client."""


class Session:
    """Who a connection belongs to, and until when.

    States: handshake awaited, exchange, authenticated (until the lifetime is over), failed.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        self._exchange: _Exchange | None = None
        self._expires_at: float | None = None
        self.is_authenticated = not security.uses_sasl
        self.has_failed = False
        self.principal: str | None = None

    def allows(self, api_key: ApiKey) -> bool:
        """Whether a request may be carried out now."""
        if api_key == ApiKey.API_VERSIONS or api_key in _EXCHANGE:
            return True
        if not self.is_authenticated:
            return False
        now = asyncio.get_running_loop().time()
        return self._expires_at is None or now < self._expires_at

    def answer(self, context: Context) -> Any:
        """Answer a request of the exchange."""
        message = context.received.message
        if not self._security.uses_sasl:
            return self._not_here(context.received.api_key)
        if context.received.api_key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(context, message.mechanism)
        refusal = context.refusal("top")
        if refusal:
            return self._fail(refusal, "as the script says")
        if self._exchange is None:
            return self._fail(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate before the handshake")
        try:
            answer, is_done = self._exchange.step(bytes(message.auth_bytes))
        except _Refused as refused:
            return self._fail(ErrorCode.SASL_AUTHENTICATION_FAILED, str(refused))
        response = SaslAuthenticateResponse(auth_bytes=answer, error_message=None)
        if is_done:
            self._succeed(response)
        return response

    def _not_here(self, api_key: ApiKey) -> Any:
        """What a listener without SASL says; the connection stays."""
        if api_key == ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="no SASL on this listener"
        )

    def _handshake(self, context: Context, mechanism: str) -> SaslHandshakeResponse:
        offered = list(self._security.mechanisms)
        refusal = context.refusal("top")
        if not refusal and mechanism not in offered:
            refusal = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if refusal:
            self.has_failed = True
            self._security.failed_count += 1
            return SaslHandshakeResponse(error_code=refusal, mechanisms=offered)
        self._exchange = _EXCHANGES[mechanism](self._security, mechanism)
        return SaslHandshakeResponse(mechanisms=offered)

    def _succeed(self, response: SaslAuthenticateResponse) -> None:
        assert self._exchange is not None
        principal = self._exchange.principal
        self._exchange = None
        if self.is_authenticated:
            assert principal == self.principal, "another principal on re-authentication"
            self._security.reauthenticated_count += 1
        self.is_authenticated = True
        self.principal = principal
        self._security.authenticated_count += 1
        lifetime_ms = self._security.session_lifetime_ms
        response.session_lifetime_ms = lifetime_ms
        if lifetime_ms:
            lasts_ms = lifetime_ms + self._security.session_grace_ms
            self._expires_at = asyncio.get_running_loop().time() + lasts_ms / 1000

    def _fail(self, code: ErrorCode, text: str) -> SaslAuthenticateResponse:
        self.has_failed = True
        self._security.failed_count += 1
        return SaslAuthenticateResponse(error_code=code, error_message=text)


class _Exchange:
    """One run of a mechanism; `step` takes the client's bytes, returns (answer, whether done)."""

    principal = ""

    def __init__(self, security: Security, mechanism: str) -> None:
        self._security = security
        self._mechanism = mechanism

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """Raises _Refused."""
        raise NotImplementedError


class _Plain(_Exchange):
    def step(self, data: bytes) -> tuple[bytes, bool]:
        parts = data.decode().split("\0")
        if len(parts) != 3:
            raise _Refused("PLAIN takes authorization id, user and password")
        authorization_id, user, password = parts
        if authorization_id not in ("", user):
            raise _Refused("nobody may act for somebody else")
        if self._security.users.get(user) != password:
            raise _Refused("Authentication failed: Invalid username or password")
        self.principal = user
        return b"", True


class _Scram(_Exchange):
    def __init__(self, security: Security, mechanism: str) -> None:
        super().__init__(security, mechanism)
        self._hash = _HASHES[mechanism]
        self._salt = os.urandom(16)
        self._first_bare = ""
        self._server_first = ""
        self._gs2 = ""

    def step(self, data: bytes) -> tuple[bytes, bool]:
        text = data.decode()
        return self._first(text) if not self._server_first else self._final(text)

    def _first(self, text: str) -> tuple[bytes, bool]:
        if not text.startswith(("n,", "y,")):
            raise _Refused("channel binding is not served")
        binding, authorization, self._first_bare = text.split(",", 2)
        self._gs2 = f"{binding},{authorization},"
        attributes = _attributes(self._first_bare)
        user = attributes["n"].replace("=2C", ",").replace("=3D", "=")
        if user not in self._security.users:
            raise _Refused("Authentication failed during authentication due to invalid credentials")
        self.principal = user
        salt = base64.b64encode(self._salt).decode()
        nonce = attributes["r"] + base64.b64encode(os.urandom(15)).decode()
        self._server_first = f"r={nonce},s={salt},i={SCRAM_ITERATION_COUNT}"
        return self._server_first.encode(), False

    def _final(self, text: str) -> tuple[bytes, bool]:
        attributes = _attributes(text)
        without_proof, _, _ = text.rpartition(",p=")
        expected_binding = base64.b64encode(self._gs2.encode()).decode()
        nonce = _attributes(self._server_first)["r"]
        if attributes["c"] != expected_binding or attributes["r"] != nonce:
            raise _Refused("the final message does not continue the first one")
        secret = self._security.users[self.principal].encode()
        salted = hashlib.pbkdf2_hmac(self._hash, secret, self._salt, SCRAM_ITERATION_COUNT)
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signed = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        signature = self._mac(stored_key, signed)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(base64.b64decode(attributes["p"]), expected):
            raise _Refused("Authentication failed during authentication due to invalid credentials")
        proof = base64.b64encode(self._mac(self._mac(salted, b"Server Key"), signed))
        return b"v=" + proof, True

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()


class _OauthBearer(_Exchange):
    _refused = False

    def step(self, data: bytes) -> tuple[bytes, bool]:
        if self._refused:
            # The client has taken note (a single 0x01): now the exchange fails (RFC 7628, 3.2.3).
            raise _Refused("invalid_token")
        head, *pairs = data.decode().split("\x01")
        if not head.startswith("n,"):
            raise _Refused("channel binding is not served")
        values = dict(pair.split("=", 1) for pair in pairs if pair)
        scheme, _, token = values.get("auth", "").partition(" ")
        if scheme.lower() != "bearer" or token not in self._security.tokens:
            self._refused = True
            return b'{"status":"invalid_token"}', False
        self.principal = "bearer"
        return b"", True


_EXCHANGES: Mapping[str, type[_Exchange]] = {
    "PLAIN": _Plain,
    "SCRAM-SHA-256": _Scram,
    "SCRAM-SHA-512": _Scram,
    "OAUTHBEARER": _OauthBearer,
}


def _attributes(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(","))
