"""SCRAM (RFC 5802, RFC 7677), both sides, with the credentials of the metadata (KIP-84).

Owns the messages and the proofs, those of delegation tokens too (their keys:
`node.token_credentials`). Must not look a user up (`metadata.scram_users` does). Invariants: a
nonce serves one exchange; on the listener's side a user that does not exist goes through the same
steps and computations as one with a wrong password, and only then is refused, and a delegation
token is good at the last message, not only at the first; the client accepts no broker that has not
proved that it knows the user's keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from moldau.protocol.base64_text import canonical_base64
from moldau.protocol.scram import HASH_NAMES, LEAST_ITERATIONS, KnownKeys, derived_keys
from moldau.runtime.authentication import AuthenticationError
from moldau.sasl.login import SaslLogin
from moldau.sasl.mechanism import (
    OTHER_AUTHORIZATION_ID,
    Accepted,
    MechanismConfig,
    Offer,
    Postponed,
    SaslRefused,
)

MOST_ITERATIONS: Final = 1_000_000
"""More would only keep this process busy; Kafka stores at most 16384."""
NONCE_BYTES: Final = 24
_NAME: Final = r"(?:[^\0,=]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\0,]+)*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_NO_BINDING: Final = "n,,"

KeysOf: TypeAlias = Callable[[str, bool], KnownKeys]
"""As `FindKeys`, for one mechanism."""


class ScramServer:
    """The listener's side. One exchange: first message → final message, each once, in this order.

    Args:
        hash_name: "sha256", "sha512".
        nonce: the server's part, new for every exchange.
    """

    __slots__ = ("_first", "_gs2", "_hash", "_is_token", "_keys_of", "_known", "_name", "_nonce")

    def __init__(self, hash_name: str, keys_of: KeysOf, nonce: str) -> None:
        self._hash = hash_name
        self._keys_of = keys_of
        self._nonce = nonce
        self._first = ""
        self._gs2 = b""
        self._name = ""
        self._is_token = False
        self._known: KnownKeys | None = None

    def step(self, token: bytes) -> bytes | Accepted:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise SaslRefused("the message of SCRAM is not UTF-8") from None
        known, self._known = self._known, None
        if known is None:
            return self._answer_first(text)
        try:
            return self._answer_final(text, known)
        except Postponed:
            self._known = known
            raise

    def _answer_first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None or self._first:
            raise SaslRefused("the client's first message of SCRAM is malformed")
        name = found["name"].replace("=2C", ",").replace("=3D", "=")
        authorization_id = found["authorization_id"]
        if authorization_id is not None and authorization_id != found["name"]:
            raise SaslRefused("the client asked to act as another user", OTHER_AUTHORIZATION_ID)
        is_token = "tokenauth=true" in found["extensions"].lower().split(",")
        known = self._keys_of(name, is_token)
        self._name, self._is_token, keys = name, is_token, known.keys
        if keys.iterations < LEAST_ITERATIONS:
            raise SaslRefused(f"the credential of {self._name!r} has too few iterations")
        self._nonce = found["nonce"] + self._nonce
        salt = b64encode(keys.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        self._gs2 = text[: found.start("bare")].encode()
        self._first = f"{found['bare']},{server_first}"
        self._known = known
        return server_first.encode()

    def _answer_final(self, text: str, known: KnownKeys) -> Accepted:
        keys = known.keys
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise SaslRefused("the client's final message of SCRAM is malformed")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            # As Apache Kafka 4.x refuses it too, since CVE-2024-56128.
            is_repeated = found["nonce"].endswith(self._nonce)
            why = ": its own twice, as librdkafka before 2.6.1 sends it" if is_repeated else ""
            raise SaslRefused(f"the client's final message of SCRAM has another nonce{why}")
        # Java's client binds "n,," even where it names an authorization id.
        if _decoded(found["binding"]) not in (_NO_BINDING.encode(), self._gs2):
            raise SaslRefused("the client's final message of SCRAM binds another channel")
        signed = f"{self._first},{found['without_proof']}".encode()
        signature = hmac.digest(keys.stored_key, signed, self._hash)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise SaslRefused("the client's proof has the wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        is_proved = hmac.compare_digest(stored_key, keys.stored_key)
        own_signature = hmac.digest(keys.server_key, signed, self._hash)
        if known.user is None or not is_proved:
            no_such = f"there is no such {'token' if self._is_token else 'user'}"
            problem = no_such if known.user is None else "the password is wrong"
            raise SaslRefused(f"{self._name!r}: {problem}")
        if self._is_token:
            # It may have ended, or been renewed, since the first message.
            known = self._keys_of(self._name, True)
        if known.user is None:
            raise SaslRefused(f"{self._name!r}: the token has ended")
        answer = f"v={b64encode(own_signature).decode()}".encode()
        return Accepted(known.user, answer, known.left_ms, is_token=known.left_ms is not None)


def _decoded(text: str) -> bytes:
    try:
        return canonical_base64(text)
    except ValueError:
        raise SaslRefused("the client's final message of SCRAM has bad base64") from None


class ScramClient:
    """The client's side. One exchange: first → final → verified, each once and in this order.

    Like Kafka, it takes names and passwords as UTF-8 without SASLprep.

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
        return self._step == 3

    def first(self) -> bytes:
        self._step = 1
        return (_NO_BINDING + self._first_bare).encode()

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
        salt = _bytes_of(salt_text)
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
        without_proof = f"c={b64encode(_NO_BINDING.encode()).decode()},r={nonce}"
        message = f"{self._first_bare},{server_first},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, count)
        client_key, stored_key, server_key = derived_keys(self._hash, salted)
        signature = hmac.digest(stored_key, message, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(server_key, message, self._hash)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str) -> None:
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise AuthenticationError(f"SCRAM: the server says {attributes['e']}")
        if not hmac.compare_digest(_bytes_of(attributes.get("v", "")), self._server_signature):
            raise AuthenticationError(
                "SCRAM: the server could not prove that it knows the password; is it the right one?"
            )


def _bytes_of(text: str) -> bytes:
    """What a text in base64 stands for; nothing for one that is none."""
    with suppress(ValueError):
        return canonical_base64(text)
    return b""


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


@dataclass(slots=True)
class ScramLogin(SaslLogin):
    """What a client logs in with.

    Attributes:
        extensions: as `ScramClient` takes them.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    async def exchange(self, host: str) -> ScramClient:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        hash_name = HASH_NAMES[self.mechanism]
        return ScramClient(hash_name, self.username, self.password, nonce, self.extensions)


def login(config: MechanismConfig) -> ScramLogin:
    has_token = not config.place and config.options.get("tokenauth", "").lower() == "true"
    extensions = {"tokenauth": "true"} if has_token else {}
    return ScramLogin(config.mechanism, *config.name_and_password(), extensions)


def offer(config: MechanismConfig) -> Offer:
    """A listener needs no login module: its users are in the metadata."""
    config.refuse_plug_ins()
    assert config.find_keys is not None, "a listener has them"
    hash_name = HASH_NAMES[config.mechanism]
    keys_of = partial(config.find_keys, config.mechanism)
    return Offer(lambda: ScramServer(hash_name, keys_of, secrets.token_urlsafe(NONCE_BYTES)))
