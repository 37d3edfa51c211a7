"""TLS contexts of listeners, made again when a store's file changes on disk.

Owns the context that new connections get. Must not accept connections. Invariants: a listener that
has started always has a context: files that cannot be used any more are logged once, and the last
good context stays; a connection keeps the context that it was accepted with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.alerts import AlertingContext
from moldau.runtime.authentication.tls import (
    Store,
    contents,
    is_tls_1_3_suite,
    load_key,
    load_trust,
    set_ciphers,
    set_versions,
)

CLIENT_AUTHENTICATION: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""The values of `ssl.client.auth`."""

PROTOCOLS: Final = ("TLS", "TLSv1.2", "TLSv1.3")
"""The values of `ssl.protocol` that are served. As with Java's server side, it limits nothing."""

_Signature: TypeAlias = tuple[tuple[int, ...] | None, ...]

_LOG = logging.getLogger("moldau.server")


@dataclass(frozen=True, slots=True)
class ListenerTlsSettings:
    """What a listener shows its clients, and asks of them.

    Attributes:
        client_auth: `ssl.client.auth`.
        key_password: of a PEM key.
    """

    own: Store = field(default_factory=lambda: Store("ssl.keystore"))
    trust: Store = field(default_factory=lambda: Store("ssl.truststore"))
    key_password: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    protocol: str = "TLSv1.3"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()


def listener_context(settings: ListenerTlsSettings) -> ssl.SSLContext:
    """A context for the server's side. Blocks: reads the stores.

    Raises:
        SecuritySettingError: there is no key store, a file cannot be read, a password is wrong, or
            a type, version or cipher suite is not served.
    """
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    if settings.protocol not in PROTOCOLS:
        raise SecuritySettingError(
            f"ssl.protocol: {settings.protocol}; served: {', '.join(PROTOCOLS)}"
        )
    set_versions(context, settings.enabled_protocols)
    _restrict_ciphers(context, settings.cipher_suites)
    chain, key = contents(settings.own)
    if chain is None or key is None:
        missing = "ssl.keystore.location (or .certificate.chain and .key) is needed"
        if settings.own.is_given:
            missing = f"it has no {'private key' if key is None else 'certificate'}"
        raise SecuritySettingError(f"{settings.own.prefix}: {missing}")
    load_key(context, chain, key, settings.own, settings.key_password)
    context.verify_mode = CLIENT_AUTHENTICATION[settings.client_auth]
    if context.verify_mode is ssl.CERT_NONE:
        return context
    # As in Java, every certificate in the store is trusted by itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if settings.trust.is_given:
        load_trust(context, settings.trust)
    else:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def _restrict_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """A version of TLS of which no suite is named is not offered."""
    if not names:
        return
    newest = [name for name in names if is_tls_1_3_suite(name)]
    if not newest:
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
    if len(newest) == len(names):
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_3)
    if context.minimum_version > context.maximum_version:
        raise SecuritySettingError(
            "ssl.cipher.suites: none of them belongs to a version in ssl.enabled.protocols"
        )
    set_ciphers(context, names)


class ListenerContexts:
    """The context of one listener at a time."""

    def __init__(self, settings: ListenerTlsSettings, listener_name: str) -> None:
        """Reads the stores. Raises: SecuritySettingError."""
        self.settings = settings
        self._listener_name = listener_name
        self._lock = asyncio.Lock()
        self._seen = _signature(settings)
        self._context, self.chain = _loaded(settings)
        """The context, and the certificates that it shows, as PEM."""

    async def current(self) -> ssl.SSLContext:
        """The context for a new connection, from what the files hold now."""
        if _signature(self.settings) != self._seen:
            async with self._lock:
                await self._reload()
        return self._context

    async def _reload(self) -> None:
        seen = _signature(self.settings)
        if seen == self._seen:
            return  # another connection has waited for the same change
        try:
            self._context, self.chain = await asyncio.to_thread(_loaded, self.settings)
        except SecuritySettingError as error:
            _LOG.error(
                "listener %s keeps its certificate, the files that have changed cannot be used: %s",
                self._listener_name,
                error,
            )
        else:
            _LOG.info("listener %s has read its key and trust stores again", self._listener_name)
        self._seen = seen

    async def change(self, settings: ListenerTlsSettings) -> None:
        """Have other settings for new connections; those that cannot be used are logged, and the
        present ones stay.
        """
        async with self._lock:
            if settings == self.settings:
                return
            seen = _signature(settings)
            try:
                self._context, self.chain = await asyncio.to_thread(_loaded, settings)
            except SecuritySettingError as error:
                _LOG.error(
                    "listener %s keeps its certificate, the new settings cannot be used: %s",
                    self._listener_name,
                    error,
                )
                return
            self.settings, self._seen = settings, seen
            _LOG.info("listener %s has new key and trust stores", self._listener_name)


def _loaded(settings: ListenerTlsSettings) -> tuple[ssl.SSLContext, str]:
    """A context, and the certificates that it shows."""
    context = listener_context(settings)
    chain, _key = contents(settings.own)
    return context, chain or ""


def _signature(settings: ListenerTlsSettings) -> _Signature:
    """Tells one state of the files from another; links are followed, as certificate managers swap
    them.
    """
    stores = (settings.own, settings.trust)
    return tuple(_state(store.location) for store in stores if store.location is not None)


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
