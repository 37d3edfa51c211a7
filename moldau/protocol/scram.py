"""SCRAM credentials in records and requests (KIP-84, KIP-554, KIP-900); logins: `sasl.scram`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

HASH_NAMES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISM_NUMBERS: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
MECHANISMS_BY_NUMBER: Final[Mapping[int, str]] = {
    number: name for name, number in MECHANISM_NUMBERS.items()
}

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
"""What a credential may have, as Apache Kafka's controller has it."""


class ScramKeys(NamedTuple):
    """What a server needs to check a client's proof, and to prove itself."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramKeys([hidden])"


class KnownKeys(NamedTuple):
    """Keys, and who has proved what by them.

    Attributes:
        user: None for keys that are invented.
        left_ms: for how long a delegation token is good; None for a password.
    """

    keys: ScramKeys
    user: str | None
    left_ms: float | None = None


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi of RFC 5802: what AlterUserScramCredentials carries. Takes milliseconds."""
    return hashlib.pbkdf2_hmac(HASH_NAMES[mechanism], password.encode(), salt, iterations)


def derived_keys(hash_name: str, salted: bytes) -> tuple[bytes, bytes, bytes]:
    """ClientKey, StoredKey and ServerKey of RFC 5802."""
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return client_key, stored_key, hmac.digest(salted, b"Server Key", hash_name)


def scram_keys(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """The keys to be stored of a salted password; it cannot be found from them."""
    _, stored_key, server_key = derived_keys(HASH_NAMES[mechanism], salted)
    return ScramKeys(salt, stored_key, server_key, iterations)
