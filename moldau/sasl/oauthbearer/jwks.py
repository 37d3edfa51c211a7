"""The keys that sign bearer tokens: a JSON Web Key Set (RFC 7517) from a URL or a file.

Owns the keys that are known now, and their renewal (`sasl.oauthbearer.jwks.endpoint.refresh.ms`).
Must not know what a token claims. Invariants: looking a key up never waits; an answer that is late,
too large, from elsewhere or no key set leaves the known keys as they are; tokens with unknown key
ids cause few requests, however many come; what is kept is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.config.backoff import Backoff
from moldau.config.definition import ConfigError
from moldau.config.small_files import file_state, read_small_file
from moldau.runtime.authentication import SecuritySettingError, is_lasting_status
from moldau.runtime.clock import Clock
from moldau.runtime.fault_words import words_of

if TYPE_CHECKING:
    import aiohttp

URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
MAX_KEY_SET_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 200
"""Keys of a set that are looked at."""

MAX_TRIED: Final = 8
"""Keys that one token is held against."""

FETCH_TIMEOUT_MS: Final = 10_000
"""For one request, from the look-up of the host's name to the last byte."""

RSA_BITS: Final = (2_048, 8_192)

EARLY_FETCHES: Final = 4
"""Requests for unknown key ids that may come at once."""
EARLY_FETCH_EVERY_MS: Final = 15_000.0
"""What one more of them takes."""
MISSING_KEY_IDS: Final = 16
"""Key ids without a key that are remembered, each for `MISSING_FOR_MS`: no request for these."""
MISSING_FOR_MS: Final = 60_000.0
MAX_KEY_ID_LENGTH: Final = 1_000

CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
EDWARDS_ALGORITHMS: Final = ("EdDSA", "Ed25519")
_PUBLIC_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}

_LOG = logging.getLogger(__name__)


class SigningKey(NamedTuple):
    """A public key of a set.

    Attributes:
        key_id: its `kid`; None without one.
        algorithms: what its type, and its `alg` if it has one, allow. Never a symmetric one: a
            public key is no secret to sign with.
        key: as joserfc has it.
    """

    key_id: str | None
    algorithms: frozenset[str]
    key: Any

    def verifies(self, algorithm: str, message: bytes, signature: bytes) -> bool:
        from joserfc.errors import JoseError
        from joserfc.jws import JWSRegistry

        if algorithm not in self.algorithms:
            return False
        model = JWSRegistry.algorithms["Ed25519" if algorithm == "EdDSA" else algorithm]
        try:
            model.check_key(self.key)
            return bool(model.verify(message, signature, self.key))
        except (JoseError, ValueError):
            return False


class KeySet(NamedTuple):
    """Usable keys, and how many others there were."""

    keys: tuple[SigningKey, ...] = ()
    unusable_count: int = 0

    def candidates(self, key_id: str | None, algorithm: str) -> list[SigningKey]:
        """The keys that may have signed a token; without a key id, those that fit its algorithm."""
        fitting = (key for key in self.keys if algorithm in key.algorithms)
        return list(islice((key for key in fitting if key_id in (None, key.key_id)), MAX_TRIED))


class KeySetError(Exception):
    """There is no key set to be had; the text is one line, fit for a log."""


def parse_key_set(data: bytes) -> KeySet:
    """The usable keys of a set: for signatures, RSA, elliptic curves or Ed25519.

    Raises:
        KeySetError: it is no key set.
    """
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise KeySetError('what was read is no key set: {"keys": […]}')
    if len(entries) > MAX_KEYS:
        raise KeySetError(f"{len(entries)} keys; at most {MAX_KEYS} are taken")
    found = [_signing_key(entry) for entry in entries]
    keys = tuple(key for key in found if key is not None)
    return KeySet(keys, len(found) - len(keys))


def _signing_key(entry: object) -> SigningKey | None:
    """None for a key that cannot, or must not, verify signatures."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    key_id = entry.get("kid")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > MAX_KEY_ID_LENGTH):
        return None
    algorithms = _algorithms(entry)
    if "alg" in entry:
        algorithms = [each for each in algorithms if each == entry["alg"]]
    key = _public_key(entry) if algorithms else None
    return None if key is None else SigningKey(key_id, frozenset(algorithms), key)


def _algorithms(entry: Mapping[str, Any]) -> list[str]:
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "RSA":
        return list(RSA_ALGORITHMS)
    if kind == "EC" and isinstance(curve, str) and curve in CURVES:
        return [CURVES[curve]]
    return list(EDWARDS_ALGORITHMS) if kind == "OKP" and curve == "Ed25519" else []


def _public_key(entry: Mapping[str, Any]) -> Any:
    """The key's public half: private members that a set should not have are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    kind = entry["kty"]
    members = {name: entry.get(name) for name in _PUBLIC_MEMBERS[kind]}
    if not all(isinstance(each, str) for each in members.values()):
        return None
    if kind == "RSA" and not RSA_BITS[0] // 6 <= len(members["n"] or "") <= RSA_BITS[1] // 5:
        return None
    try:
        key = import_key({"kty": kind, **members})  # type: ignore[dict-item]
        public: Any = key.get_op_key("verify")
    except (JoseError, ValueError, TypeError):
        return None
    if kind == "RSA" and not RSA_BITS[0] <= public.key_size <= RSA_BITS[1]:
        return None
    return key


class _KeysRefused(KeySetError):
    """The server has no keys to give, and would say the same again."""


class KeySource:
    """Where the keys of a listener come from.

    Attributes:
        context: of TLS towards them; None without a trust store of its own.
    """

    context: ssl.SSLContext | None = None

    def keys(self) -> KeySet:
        """What is known now."""
        raise NotImplementedError

    def is_missing(self, key_id: str) -> None:
        """A token has an unknown key id: newer keys may exist."""

    async def start(self) -> None:
        """Begin to keep the keys up to date. Returns when they were read once, or could not be.

        Raises:
            ConfigError: what should have them refuses to give them; it is asked on.
        """

    async def close(self) -> None:
        """Stop; idempotent."""


class KeyFile(KeySource):
    """A key set in a file, which is read again when it has changed.

    A file that cannot be used any more is logged, once for each change, and its last keys stay.
    """

    def __init__(self, path: str) -> None:
        """Reads it. Raises: SecuritySettingError."""
        self._path = path
        self._seen = file_state(self._path)
        try:
            self._keys = self._read()
        except KeySetError as error:
            raise SecuritySettingError(f"{path}: {error}") from None

    def keys(self) -> KeySet:
        seen = file_state(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._keys = self._read()
            except KeySetError as error:
                _LOG.error("the keys of %s stay as they were: %s", self._path, error)
            else:
                _LOG.info("%d keys read again from %s", len(self._keys.keys), self._path)
        return self._keys

    def _read(self) -> KeySet:
        try:
            data = read_small_file(self._path, MAX_KEY_SET_BYTES)
        except OSError as error:
            raise KeySetError(error.strerror or "it cannot be read") from None
        return parse_key_set(data)


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where a key set is fetched from, and how often: `sasl.oauthbearer.jwks.endpoint.*`.

    Attributes:
        context: for https; None for the system's authorities.
        timeout_ms: for one request in all.
    """

    url: str
    refresh_ms: float = 3_600_000.0
    retry_backoff_ms: float = 100.0
    retry_backoff_max_ms: float = 10_000.0
    context: ssl.SSLContext | None = None
    timeout_ms: float = FETCH_TIMEOUT_MS


class KeyEndpoint(KeySource):
    """A key set behind a URL, fetched in the background: every `refresh_ms`, after a failure with
    growing pauses, and early, within limits, when a token has an unknown key id.
    """

    def __init__(self, settings: EndpointSettings, clock: Clock) -> None:
        self._settings = settings
        self.context = settings.context
        self._clock = clock
        self._keys = KeySet()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._tried = asyncio.Event()
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._early_full_at_ms = 0.0
        self._failure: str | None = None
        self._refusal: str | None = None

    def keys(self) -> KeySet:
        return self._keys

    def is_missing(self, key_id: str) -> None:
        now_ms = self._clock.monotonic_ms()
        if len(key_id) > MAX_KEY_ID_LENGTH or self._missing.get(key_id, 0.0) > now_ms:
            return
        # What is left of the allowance, as the time at which it is whole again.
        full_at_ms = max(self._early_full_at_ms, now_ms) + EARLY_FETCH_EVERY_MS
        if full_at_ms > now_ms + EARLY_FETCHES * EARLY_FETCH_EVERY_MS:
            return
        self._early_full_at_ms = full_at_ms
        self._missing[key_id] = now_ms + MISSING_FOR_MS
        self._missing.move_to_end(key_id)
        if len(self._missing) > MISSING_KEY_IDS:
            self._missing.popitem(last=False)
        self._wanted.set()

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="keys of bearer tokens")
            self._task.add_done_callback(_report)
            tried = asyncio.create_task(self._tried.wait())
            await asyncio.wait((tried, self._task), return_when=asyncio.FIRST_COMPLETED)
            tried.cancel()
            if self._refusal is not None:
                raise ConfigError(URL_KEY, None, f"{self._settings.url}: {self._refusal}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        import aiohttp

        settings = self._settings
        pauses = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        timeout = aiohttp.ClientTimeout(total=settings.timeout_ms / 1000)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=timeout,
            auto_decompress=False,
        ) as session:
            while True:
                self._wanted.clear()
                is_read = await self._renew(session)
                self._tried.set()
                if is_read:
                    pauses.reset()
                pause_ms = max(settings.refresh_ms, 1.0) if is_read else pauses.next_ms()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(pause_ms, 1.0) / 1000):
                        await self._wanted.wait()

    async def _renew(self, session: aiohttp.ClientSession) -> bool:
        url = self._settings.url
        try:
            keys = await asyncio.to_thread(parse_key_set, await self._fetch(session))
        except KeySetError as error:
            # The same failure is logged once, however often it comes.
            if str(error) != self._failure:
                state = (
                    "stay as they were" if self._keys.keys else "are not known, tokens are refused"
                )
                _LOG.warning("the keys of bearer tokens %s: %s: %s", state, url, error)
            self._failure = str(error)
            self._refusal = str(error) if isinstance(error, _KeysRefused) else None
            return False
        known = {key.key_id for key in keys.keys}
        if self._failure is not None or known != {key.key_id for key in self._keys.keys}:
            _LOG.info(
                "%d keys of bearer tokens from %s, %d more cannot be used",
                len(keys.keys), url, keys.unusable_count,
            )  # fmt: skip
        self._failure = self._refusal = None
        self._keys = keys
        for key_id in known:
            self._missing.pop(key_id or "", None)
        return True

    async def _fetch(self, session: aiohttp.ClientSession) -> bytes:
        import aiohttp

        settings = self._settings
        try:
            async with session.get(
                settings.url,
                ssl=True if settings.context is None else settings.context,
                # What may be read is the URL in the configuration, and no other.
                allow_redirects=False,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as response:
                if response.status != 200:
                    kind = _KeysRefused if is_lasting_status(response.status) else KeySetError
                    raise kind(f"it answered with status {response.status}, not 200")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise KeySetError("it answered with a compressed body")
                data = bytearray()
                async for chunk in response.content.iter_chunked(64 * 1024):
                    data += chunk
                    if len(data) > MAX_KEY_SET_BYTES:
                        raise KeySetError(f"it answered with more than {MAX_KEY_SET_BYTES} bytes")
        except TimeoutError:
            raise KeySetError(f"no answer within {settings.timeout_ms:.0f} ms") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise KeySetError(_first_line(error)) from None
        return bytes(data)


def _report(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        told = {"message": "the renewal of bearer tokens' keys ended", "exception": error}
        task.get_loop().call_exception_handler(told)


def _first_line(error: Exception) -> str:
    return words_of(error).splitlines()[0][:200]
