"""The server's side of SCRAM (RFC 5802, RFC 7677), with the credentials of the metadata (KIP-84).

Owns the reading of the client's two messages and the check of its proof. Must not look a user up,
or make nonces: both come from outside. Invariants: a nonce serves one exchange; a user that does
not exist goes through the same steps and computations as one with a wrong password, and only then
is refused; a delegation token is good at the last message, not only at the first.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

from moldau.protocol.base64_text import canonical_base64
from moldau.protocol.scram import LEAST_ITERATIONS, ScramKeys
from moldau.server.authentication.core.mechanism import (
    OTHER_AUTHORIZATION_ID,
    Accepted,
    Postponed,
    SaslRefused,
)

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
_NO_BINDING: Final = b"n,,"


class KnownKeys(NamedTuple):
    """Keys, and who has proved what by them.

    Attributes:
        user: None for keys that are invented.
        left_ms: for how long a delegation token is good; None for a password.
    """

    keys: ScramKeys
    user: str | None
    left_ms: float | None = None


KeysOf = Callable[[str, bool], KnownKeys]
"""The keys of a user, or where the second argument is true of a delegation token by its id; those
of what does not exist are invented. Raises: Postponed: a token's keys are not made yet.
"""


class Scram:
    """One exchange: first message → final message, each once and in this order.

    Args:
        hash_name: "sha256", "sha512".
        nonce: the server's part, new for every exchange.
    """

    __slots__ = (
        "_first",
        "_gs2",
        "_hash",
        "_is_token",
        "_keys",
        "_keys_of",
        "_known",
        "_name",
        "_nonce",
    )

    def __init__(self, hash_name: str, keys_of: KeysOf, nonce: str) -> None:
        self._hash = hash_name
        self._keys_of = keys_of
        self._nonce = nonce
        self._first = ""
        self._gs2 = b""
        self._name = ""
        self._is_token = False
        self._keys: ScramKeys | None = None
        self._known: KnownKeys | None = None

    def step(self, token: bytes) -> bytes | Accepted:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise SaslRefused("the message of SCRAM is not UTF-8") from None
        if self._keys is None:
            return self._answer_first(text)
        keys, self._keys = self._keys, None
        try:
            return self._answer_final(text, keys)
        except Postponed:
            self._keys = keys
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
        self._name, self._is_token, self._known = name, is_token, known
        keys = known.keys
        if keys.iterations < LEAST_ITERATIONS:
            raise SaslRefused(f"the credential of {self._name!r} has too few iterations")
        self._nonce = found["nonce"] + self._nonce
        salt = b64encode(keys.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        self._gs2 = text[: found.start("bare")].encode()
        self._first = f"{found['bare']},{server_first}"
        self._keys = keys
        return server_first.encode()

    def _answer_final(self, text: str, keys: ScramKeys) -> Accepted:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise SaslRefused("the client's final message of SCRAM is malformed")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            # As Apache Kafka 4.x refuses it too, since CVE-2024-56128.
            is_repeated = found["nonce"].endswith(self._nonce)
            why = ": its own twice, as librdkafka before 2.6.1 sends it" if is_repeated else ""
            raise SaslRefused(f"the client's final message of SCRAM has another nonce{why}")
        # Java's client binds "n,," even where it names an authorization id.
        if _decoded(found["binding"]) not in (_NO_BINDING, self._gs2):
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
        known = self._known
        if known is None or known.user is None or not is_proved:
            exists = known is not None and known.user is not None
            kind = "token" if self._is_token else "user"
            problem = "the password is wrong" if exists else f"there is no such {kind}"
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
