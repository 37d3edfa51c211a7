"""SCRAM, the client's side (RFC 5802, RFC 7677), as Kafka's brokers speak it.

Owns one exchange's messages and their checks; no I/O. Like Kafka, names and passwords are taken as
UTF-8 without SASLprep. Invariant: the exchange succeeds only when the server has proved that it
knows the password too.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

from moldau.runtime.authentication.errors import AuthenticationError

HASH_BY_MECHANISM: Final[Mapping[str, str]] = {
    "SCRAM-SHA-256": "sha256",
    "SCRAM-SHA-512": "sha512",
}

LEAST_ITERATIONS: Final = 4_096
"""Fewer are not accepted (RFC 7677, and Kafka's own limit)."""

MOST_ITERATIONS: Final = 1_000_000
"""More would only keep this process busy; Kafka stores at most 16384."""

_GS2_HEADER: Final = "n,,"


class ScramClient:
    """One exchange: first → final → verified, each step once and in this order.

    Args:
        hash_name: "sha256", "sha512".
        nonce: printable and without commas; new for every exchange.
        extensions: sent along in the first message, such as tokenauth=true (KIP-48).
    """

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
        """Whether the server has proved itself."""
        return self._step == 3

    def first(self) -> bytes:
        """The client's first message."""
        self._step = 1
        return (_GS2_HEADER + self._first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to what the server said; None when the exchange is complete.

        Raises:
            AuthenticationError: the server broke the rules, said e=…, or does not know the
            password.
        """
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
            raise AuthenticationError("SCRAM: the server demands an extension nobody knows")
        nonce, salt_text, count_text = (attributes.get(key, "") for key in "rsi")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError("SCRAM: the server's nonce does not continue ours")
        try:
            salt = b64decode(salt_text, validate=True)
        except (Base64Error, ValueError):
            salt = b""
        if not salt:
            raise AuthenticationError("SCRAM: the server's salt is not base64")
        if not (count_text.isascii() and count_text.isdigit()) or len(count_text) > 9:
            raise AuthenticationError("SCRAM: the server's iteration count is not a number")
        count = int(count_text)
        if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise AuthenticationError(
                f"SCRAM: {count} iterations; from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are "
                "accepted: set the user's credential anew"
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
            signature = b64decode(attributes.get("v", ""), validate=True)
        except (Base64Error, ValueError):
            signature = b""
        if not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError(
                "SCRAM: the server could not prove that it knows the password; is it the right one?"
            )

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}
