"""TLS contexts of listeners; those of clients are made in `tls`. Must not accept connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.store_contexts import StoreContexts
from moldau.runtime.authentication.tls import (
    StoreContext,
    TlsSettings,
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


@dataclass(frozen=True, slots=True)
class ListenerTlsSettings(TlsSettings):
    """What a listener shows its clients, and asks of them; `client_auth` is `ssl.client.auth`."""

    client_auth: str = "none"
    protocol: str = "TLSv1.3"


def listener_context(settings: ListenerTlsSettings) -> StoreContext:
    """A context for the server's side. Blocks: reads each store once.

    Raises:
        SecuritySettingError: there is no key store, a file cannot be read, a password is wrong, or
            a type, version or cipher suite is not served.
    """
    context = StoreContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
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
    if context.verify_mode is not ssl.CERT_NONE:
        load_trust(context, settings.trust, ssl.Purpose.CLIENT_AUTH)
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


class ListenerContexts(StoreContexts):
    """The context of one listener at a time.

    Attributes:
        settings: that it is made by.
    """

    def __init__(self, settings: ListenerTlsSettings, listener_name: str) -> None:
        """Reads the stores. Raises: SecuritySettingError."""
        self.settings = settings
        make = partial(listener_context, settings)
        super().__init__(make, (settings.own, settings.trust), f"listener {listener_name}")

    async def change(
        self, settings: ListenerTlsSettings, check: Callable[[StoreContext], None]
    ) -> None:
        """Have other settings for new connections; those that cannot be used are logged, and the
        present ones stay.

        Args:
            check: of what was made by them, before it is used; blocks, raises SecuritySettingError.
        """
        if settings == self.settings:
            return

        def checked() -> StoreContext:
            made = listener_context(settings)
            check(made)
            return made

        make = partial(listener_context, settings)
        if await self.replace(make, (settings.own, settings.trust), first=checked):
            self.settings = settings
