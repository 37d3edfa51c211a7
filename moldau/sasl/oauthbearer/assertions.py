"""Assertions: short-lived JWTs by which a client or a node proves to an identity provider who it is
(RFC 7521, RFC 7523; KIP-1139, KIP-1258).

Owns the private key that signs them. Must not ask for a token. Invariants: the key leaves this
module in no error and no `repr`; a file is read again when it has changed.
"""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from moldau.config.small_files import file_state, read_small_file
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.clock import Clock
from moldau.sasl.login import Value

T = TypeVar("T")

MAX_FILE_BYTES: Final = 1024 * 1024
"""What is read of a file with a token, an assertion, a key or a template."""

FILE_KEY: Final = "sasl.oauthbearer.assertion.file"
KEY_FILE_KEY: Final = "sasl.oauthbearer.assertion.private.key.file"
PASSPHRASE_KEY: Final = "sasl.oauthbearer.assertion.private.key.passphrase"
TEMPLATE_KEY: Final = "sasl.oauthbearer.assertion.template.file"


Assertion: TypeAlias = Callable[[], str]
"""Gives an assertion that is good now; blocks, as it reads files. Raises: AuthenticationError."""


class WatchedFile(Generic[T]):
    """What a file says, read again when the file has changed. Blocks.

    Args:
        key: the setting that names the file, for errors.
        parse: raises ValueError, whose text shows nothing of the file.
    """

    def __init__(self, key: str, path: str, parse: Callable[[bytes], T]) -> None:
        self._key = key
        self._path = path
        self._parse = parse
        self._seen: tuple[int, ...] | None = None
        self._content: T | None = None

    @property
    def place(self) -> str:
        """The setting and the file that it names."""
        return f"{self._key}: {self._path}"

    def __call__(self) -> T:
        """Raises: AuthenticationError: the file cannot be used now."""
        try:
            seen = file_state(self._path)
            if seen is None or seen != self._seen or self._content is None:
                data = read_small_file(self._path, MAX_FILE_BYTES)
                self._content, self._seen = self._parse(data), seen
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            raise AuthenticationError(f"{self.place}: {reason}") from None
        except ValueError as error:
            raise AuthenticationError(f"{self.place}: {error}") from None
        return self._content


def jwt_text(data: bytes) -> str:
    """A JWT of a file. Raises: ValueError."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("it holds more than a token: bytes outside ASCII") from None
    if not text:
        raise ValueError("it is empty")
    return text


class SignedAssertion:
    """Signs an assertion each time it is asked for one, as `sasl.oauthbearer.assertion.*` say: the
    header and the payload of the template go before the claims of the keys.
    """

    def __init__(self, value: Value, clock: Clock) -> None:
        """Raises: SecuritySettingError: no key is named."""
        key_file, template_file = value(KEY_FILE_KEY), value(TEMPLATE_KEY)
        if key_file is None:
            raise SecuritySettingError(
                f"{KEY_FILE_KEY} is needed, to sign assertions; or {FILE_KEY}"
            )
        self._clock = clock
        self._algorithm: str = value("sasl.oauthbearer.assertion.algorithm").upper()
        self._passphrase: str | None = value(PASSPHRASE_KEY)
        claims = {
            "aud": value("sasl.oauthbearer.assertion.claim.aud"),
            "iss": value("sasl.oauthbearer.assertion.claim.iss"),
            "sub": value("sasl.oauthbearer.assertion.claim.sub"),
        }
        self._claims = {name: claim for name, claim in claims.items() if claim is not None}
        self._expires_after_s: int = value("sasl.oauthbearer.assertion.claim.exp.seconds")
        self._begins_before_s: int = value("sasl.oauthbearer.assertion.claim.nbf.seconds")
        self._has_id: bool = value("sasl.oauthbearer.assertion.claim.jti.include")
        self._key = WatchedFile(KEY_FILE_KEY, key_file, self._parse_key)
        self._template: Callable[[], tuple[dict[str, Any], dict[str, Any]]] = lambda: ({}, {})
        if template_file is not None:
            self._template = WatchedFile(TEMPLATE_KEY, template_file, _parse_template)

    def __call__(self) -> str:
        from joserfc.jws import JWSRegistry

        now_s = int(self._clock.now_ms() // 1000)
        header, payload = self._template()
        header = {**header, "alg": self._algorithm, "typ": "JWT"}
        payload = {
            **self._claims,
            **payload,
            "iat": now_s,
            "exp": now_s + self._expires_after_s,
            "nbf": now_s - self._begins_before_s,
        }
        if self._has_id:
            payload["jti"] = str(uuid.uuid4())
        key = self._key()
        message = b".".join(_encoded(json.dumps(each).encode()) for each in (header, payload))
        signature = JWSRegistry.algorithms[self._algorithm].sign(message, key)
        return f"{message.decode()}.{_encoded(signature).decode()}"

    def _parse_key(self, data: bytes) -> Any:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric import ec, rsa
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
            from joserfc.jwk import ECKey, RSAKey
        except ImportError as error:
            raise ValueError(
                f"signing needs the package {error.name}: pip install 'moldau[tls]'"
            ) from None
        passphrase = self._passphrase
        try:
            key = load_pem_private_key(data, None if passphrase is None else passphrase.encode())
        except TypeError:
            needs = "is encrypted, and needs" if passphrase is None else "is not encrypted, without"
            raise ValueError(f"it {needs} {PASSPHRASE_KEY}") from None
        except (ValueError, UnsupportedAlgorithm):
            or_else = "" if passphrase is None else f", or {PASSPHRASE_KEY} is wrong"
            raise ValueError(f"it is no private key in PEM{or_else}") from None
        if self._algorithm == "RS256":
            if isinstance(key, rsa.RSAPrivateKey):
                return RSAKey(key, key)
        elif isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
            return ECKey(key, key)
        kind = "an RSA key" if self._algorithm == "RS256" else "a key of the curve P-256"
        raise ValueError(f"{self._algorithm} needs {kind}")


def _parse_template(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        template = json.loads(data)
        parts = [template.get(name, {}) for name in ("header", "payload")]
    except (ValueError, AttributeError):
        parts = []
    if not parts or not all(isinstance(each, dict) for each in parts):
        raise ValueError("it is no JSON object with the objects header and payload")
    return parts[0], parts[1]


def _encoded(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")
