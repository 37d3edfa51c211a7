"""The client side of SASL: the handshake on a connection and the mechanisms' messages.

Owns the order of requests (KIP-152), the reading of refusals, and what each mechanism says and
checks: PLAIN, SCRAM (RFC 5802 and RFC 7677, as Kafka's brokers speak it) and OAUTHBEARER; GSSAPI is
in `kerberos`. Their settings are read in client/cluster/credentials.py. Listeners' side is
server/authentication. Must not do I/O but through `send`, the token source and Kerberos' library,
which works beside the loop. Invariants: `authenticate` returns only when the broker has accepted
the client, and with SCRAM and GSSAPI the broker has proved its own identity too; an exchange object
is used for one authentication only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

from moldau.protocol.base64_text import canonical_base64
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Request, Response
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.tokens import OAuthBearerToken, TokenSource

if TYPE_CHECKING:
    from moldau.runtime.authentication.kerberos import KerberosLogin

T = TypeVar("T")


class Send(Protocol):
    """Sends a request in the highest version both sides speak and returns the response."""

    async def __call__(self, message: Request[Response], /) -> Response:
        """Raises what `Connection.send` raises."""


MOST_STEPS: Final = 10
"""No mechanism here needs more than four."""

HASH_BY_MECHANISM: Final[Mapping[str, str]] = {
    "SCRAM-SHA-256": "sha256",
    "SCRAM-SHA-512": "sha512",
}

LEAST_ITERATIONS: Final = 4_096
"""Fewer are not accepted (RFC 7677, and Kafka's own limit)."""

MOST_ITERATIONS: Final = 1_000_000
"""More would only keep this process busy; Kafka stores at most 16384."""

_GS2_HEADER: Final = "n,,"

MECHANISMS: Final = ("PLAIN", *HASH_BY_MECHANISM, "OAUTHBEARER", "GSSAPI")

_SEPARATOR: Final = "\x01"
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN: Final = re.compile(r"[-._~+/A-Za-z0-9]+=*")


class Exchange(Protocol):
    """One authentication, step by step.

    Attributes:
        is_slow: whether `first` and `answer` may take long, and so belong beside the event loop.
    """

    is_slow: ClassVar[bool]

    @property
    def is_complete(self) -> bool:
        """Whether the mechanism accepts that the broker ends the exchange now."""

    def first(self) -> bytes:
        """The client's first message. Raises as `answer`."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to the broker's message; None for none.

        Raises:
            AuthenticationError: the broker refuses, broke the rules, or did not prove itself.
            ConnectionError: another attempt may succeed as things are.
        """


class PlainExchange:
    """PLAIN (RFC 4616)."""

    def __init__(self, username: str, password: str) -> None:
        for part in (username, password):
            if not part or "\0" in part:
                raise SecuritySettingError(
                    "PLAIN: a username and a password are needed, both not empty and without NUL"
                )
        self._message = f"\0{username}\0{password}".encode()

    is_complete = True
    is_slow: ClassVar[bool] = False

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None  # the broker only says yes or no


class ScramClient:
    """SCRAM. One exchange: first → final → verified, each step once and in this order.

    Like Kafka, it takes names and passwords as UTF-8 without SASLprep.

    Args:
        hash_name: "sha256", "sha512".
        nonce: printable and without commas; new for every exchange.
        extensions: sent along in the first message, such as tokenauth=true (KIP-48).
    """

    is_slow: ClassVar[bool] = False

    def __init__(
        self,
        hash_name: str,
        username: str,
        password: str,
        nonce: str,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        for key, value in (extensions or {}).items():
            self._first_bare += f",{key}={value}"
        self._server_signature = b""
        self._step = 0

    @property
    def is_complete(self) -> bool:
        return self._step == 3

    def first(self) -> bytes:
        self._step = 1
        return (_GS2_HEADER + self._first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise AuthenticationError("SCRAM: the server's message is not UTF-8") from None
        if self._step == 1:
            self._step = 2
            return self._final(text)
        if self._step == 2:
            self._verify(text)
            self._step = 3
            return None
        raise AuthenticationError("SCRAM: the server goes on after the end")

    def _final(self, server_first: str) -> bytes:
        attributes = _attributes(server_first)
        if "m" in attributes:
            raise AuthenticationError(
                "SCRAM: the server demands an extension that this client does not know"
            )
        nonce, salt_text, count_text = (attributes.get(key, "") for key in "rsi")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError("SCRAM: the server's nonce does not continue ours")
        try:
            salt = canonical_base64(salt_text)
        except ValueError:
            salt = b""
        if not salt:
            raise AuthenticationError("SCRAM: the server's salt is not base64")
        if not (count_text.isascii() and count_text.isdigit()) or len(count_text) > 9:
            raise AuthenticationError("SCRAM: the server's iteration count is not a number")
        count = int(count_text)
        if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise AuthenticationError(
                f"SCRAM: {count} iterations; from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are "
                "accepted: set the user's credential again"
            )
        without_proof = f"c={b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = f"{self._first_bare},{server_first},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, count)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str) -> None:
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise AuthenticationError(f"SCRAM: the server says {attributes['e']}")
        try:
            signature = canonical_base64(attributes.get("v", ""))
        except ValueError:
            signature = b""
        if not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError(
                "SCRAM: the server could not prove that it knows the password; is it the right one?"
            )

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


class OAuthBearerExchange:
    """OAUTHBEARER (RFC 7628, KIP-255) with SASL extensions (KIP-342)."""

    is_slow: ClassVar[bool] = False

    def __init__(self, token: OAuthBearerToken) -> None:
        if not _TOKEN.fullmatch(token.value):
            raise SecuritySettingError("OAUTHBEARER: the token has characters that tokens lack")
        fields = [f"auth=Bearer {token.value}"]
        for name, value in token.extensions:
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
                raise SecuritySettingError(f"OAUTHBEARER: {name!r} cannot name an extension")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise SecuritySettingError(f"OAUTHBEARER: extension {name} has no printable value")
            fields.append(f"{name}={value}")
        self._message = _SEPARATOR.join(["n,,", *fields, "", ""]).encode()
        self._refusal: str | None = None

    @property
    def is_complete(self) -> bool:
        return self._refusal is None

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # The broker says in JSON what is wrong. The client confirms it; then the refusal comes.
        if self._refusal is not None:
            raise AuthenticationError(f"OAUTHBEARER: {self._refusal}")
        text = challenge.decode(errors="replace")
        try:
            told = json.loads(text)
            self._refusal = str(told.get("status", text)) if isinstance(told, dict) else text
        except ValueError:
            self._refusal = text
        return _SEPARATOR.encode()


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """What one client logs in with.

    Attributes:
        mechanism: one of MECHANISMS.
        username, password: for PLAIN and SCRAM.
        token_source: for OAUTHBEARER.
        scram_extensions: as `ScramClient` takes them.
        kerberos: for GSSAPI.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_source: TokenSource | None = None
    scram_extensions: Mapping[str, str] = field(default_factory=dict)
    kerberos: KerberosLogin | None = None

    async def prepare(self) -> None:
        """Have a token before the peer waits for it. Raises: AuthenticationError: there is none."""
        if self.token_source is not None:
            await self.token_source()

    async def exchange(self, host: str) -> Exchange:
        """An exchange for one authentication to a broker at `host`.

        Raises:
            AuthenticationError: the token source gave no token.
            SecuritySettingError: the credentials cannot be sent.
        """
        if self.mechanism == "PLAIN":
            return PlainExchange(self.username, self.password)
        if self.kerberos is not None:
            from moldau.runtime.authentication.kerberos import GssapiExchange

            return GssapiExchange(self.kerberos, host)
        if self.mechanism == "OAUTHBEARER":
            assert self.token_source is not None
            return OAuthBearerExchange(await self.token_source())
        return ScramClient(
            HASH_BY_MECHANISM[self.mechanism],
            self.username,
            self.password,
            secrets.token_urlsafe(24),
            self.scram_extensions,
        )


async def authenticate(send: Send, credentials: SaslCredentials, peer: str) -> int:
    """Log in, or log in again (KIP-368).

    Returns:
        How many ms the session lasts; 0 when it does not end.

    Raises:
        AuthenticationError: refused, or the broker is not who it should be.
        ConnectionError: no connection now; another attempt may succeed.
    """
    mechanism = credentials.mechanism
    where = f"{peer}: {mechanism}"
    handshake = await send(SaslHandshakeRequest(mechanism=mechanism))
    code = ErrorCode.of(handshake.error_code)
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationError(
            f"{where} is not offered there; set sasl.mechanism to one of: {offered}"
        )
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"{where}: this listener does not authenticate; set security.protocol to PLAINTEXT or "
            "SSL, or use the port of a SASL listener"
        )
    if code is not ErrorCode.NONE:
        raise AuthenticationError(f"{where}: {code.name}: {code.message}")
    try:
        exchange = await credentials.exchange(peer.rpartition(":")[0])
    except SecuritySettingError as error:
        raise AuthenticationError(f"{peer}: {error}") from error
    message: bytes | None = await _step(exchange, peer, exchange.first)
    for _ in range(MOST_STEPS):
        if message is None:
            break
        response = await send(SaslAuthenticateRequest(auth_bytes=message))
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            raise AuthenticationError(f"{where}: {response.error_message or code.message}")
        message = await _step(exchange, peer, exchange.answer, bytes(response.auth_bytes))
    else:
        raise AuthenticationError(f"{where}: the broker never comes to an end")
    if not exchange.is_complete:
        raise AuthenticationError(f"{where}: the broker ended it too early")
    return int(response.session_lifetime_ms)


async def _step(exchange: Exchange, peer: str, step: Callable[..., T], *args: bytes) -> T:
    """Take a step of an exchange. Raises: AuthenticationError, ConnectionError."""
    try:
        if not exchange.is_slow:
            return step(*args)
        from moldau.runtime.authentication.kerberos import aside

        return await aside()(step, *args)
    except AuthenticationError as error:
        raise AuthenticationError(f"{peer}: {error}") from None
    except TimeoutError:
        raise AuthenticationError(
            f"{peer}: Kerberos does not come to an end: is a KDC reachable from here?"
        ) from None
