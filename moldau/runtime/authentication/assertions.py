"""Assertions: short-lived JWTs by which a client or a node proves to an identity provider who it is
(RFC 7521, RFC 7523; KIP-1139, KIP-1258).

Owns the private key that signs them. Must not ask for a token. Invariants: the key leaves this
module in no error and no `repr`; a file is read again when it has changed.
"""

from __future__ import annotations

import json
import os
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from moldau.config.small_files import read_small_file
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.clock import Clock

T = TypeVar("T")

MAX_FILE_BYTES: Final = 1024 * 1024
"""What is read of a file with a token, an assertion, a key or a template."""

FILE_KEY: Final = "sasl.oauthbearer.assertion.file"
KEY_FILE_KEY: Final = "sasl.oauthbearer.assertion.private.key.file"
PASSPHRASE_KEY: Final = "sasl.oauthbearer.assertion.private.key.passphrase"
TEMPLATE_KEY: Final = "sasl.oauthbearer.assertion.template.file"

_ES256_BYTES: Final = 32


class Assertion(Protocol):
    """Gives assertions; blocks, as it reads files."""

    def __call__(self) -> str:
        """An assertion that is good now. Raises: AuthenticationError."""


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

    def __call__(self) -> T:
        """Raises: AuthenticationError: the file cannot be used now."""
        try:
            found = os.stat(self._path)
            seen = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
            if seen != self._seen or self._content is None:
                data = read_small_file(self._path, MAX_FILE_BYTES)
                self._content, self._seen = self._parse(data), seen
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            raise AuthenticationError(f"{self._key}: {self._path}: {reason}") from None
        except ValueError as error:
            raise AuthenticationError(f"{self._key}: {self._path}: {error}") from None
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


class FileAssertion:
    """An assertion that another program keeps up to date in a file."""

    def __init__(self, path: str) -> None:
        """Reads it. Raises: SecuritySettingError."""
        self._file = WatchedFile(FILE_KEY, path, jwt_text)
        _check(self)

    def __call__(self) -> str:
        return self._file()


@dataclass(frozen=True, slots=True)
class AssertionSettings:
    """`sasl.oauthbearer.assertion.*`: what is signed, and with what.

    Attributes:
        algorithm: ES256 or RS256.
        passphrase: of the private key; None for one that is not encrypted.
        claims: aud, iss and sub, those that are set.
        template_file: a JSON object with `header` and `payload`, which go before `claims`.
        has_id: whether each assertion has an id of its own, `jti`.
    """

    algorithm: str
    private_key_file: str
    passphrase: str | None = field(default=None, repr=False)
    claims: Mapping[str, str] = field(default_factory=dict)
    template_file: str | None = None
    expires_after_s: int = 300
    begins_before_s: int = 60
    has_id: bool = False


class SignedAssertion:
    """Signs an assertion each time it is asked for one."""

    def __init__(self, settings: AssertionSettings, clock: Clock) -> None:
        """Reads the key and the template. Raises: SecuritySettingError."""
        self._settings = settings
        self._clock = clock
        self._key = WatchedFile(KEY_FILE_KEY, settings.private_key_file, self._parse_key)
        path = settings.template_file
        self._template = None if path is None else WatchedFile(TEMPLATE_KEY, path, _parse_template)
        _check(self)

    def __call__(self) -> str:
        settings = self._settings
        now_s = int(self._clock.now_ms() // 1000)
        header, payload = ({}, {}) if self._template is None else self._template()
        header = {**header, "alg": settings.algorithm, "typ": "JWT"}
        payload = {
            **settings.claims,
            **payload,
            "iat": now_s,
            "exp": now_s + settings.expires_after_s,
            "nbf": now_s - settings.begins_before_s,
        }
        if settings.has_id:
            payload["jti"] = str(uuid.uuid4())
        message = f"{_encoded(json.dumps(header))}.{_encoded(json.dumps(payload))}"
        return f"{message}.{_encoded(_signature(self._key(), message.encode()))}"

    def _parse_key(self, data: bytes) -> Any:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric import ec, rsa
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError:
            raise ValueError(
                "signing needs the package cryptography: pip install 'moldau[tls]'"
            ) from None
        settings = self._settings
        passphrase = None if settings.passphrase is None else settings.passphrase.encode()
        try:
            key = load_pem_private_key(data, passphrase)
        except TypeError:
            needs = "is encrypted, and needs" if passphrase is None else "is not encrypted, without"
            raise ValueError(f"it {needs} {PASSPHRASE_KEY}") from None
        except (ValueError, UnsupportedAlgorithm):
            or_else = "" if passphrase is None else f", or {PASSPHRASE_KEY} is wrong"
            raise ValueError(f"it is no private key in PEM{or_else}") from None
        is_right = (
            isinstance(key, rsa.RSAPrivateKey)
            if settings.algorithm == "RS256"
            else isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
        )
        if not is_right:
            kind = "an RSA key" if settings.algorithm == "RS256" else "a key of the curve P-256"
            raise ValueError(f"{settings.algorithm} needs {kind}")
        return key


def _check(assertion: Assertion) -> None:
    """What cannot work is known when settings are read."""
    try:
        assertion()
    except AuthenticationError as error:
        raise SecuritySettingError(str(error)) from None


def _parse_template(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        template = json.loads(data)
        parts = [template.get(name, {}) for name in ("header", "payload")]
    except (ValueError, AttributeError):
        parts = []
    if not parts or not all(isinstance(each, dict) for each in parts):
        raise ValueError("it is no JSON object with the objects header and payload")
    return parts[0], parts[1]


def _signature(key: Any, message: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, padding.PKCS1v15(), SHA256())
    numbers = utils.decode_dss_signature(key.sign(message, ec.ECDSA(SHA256())))
    return b"".join(each.to_bytes(_ES256_BYTES, "big") for each in numbers)


def _encoded(part: str | bytes) -> str:
    data = part if isinstance(part, bytes) else part.encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()
