"""TLS contexts of clients; for both sides the stores, PEM and PKCS12, on disk or inline (KIP-651).

Owns the reading of stores and the wording of what TLS does not accept. Invariant: private keys
never lie on disk on Linux, where Python's `ssl` reads them from memory; elsewhere it reads a file
that only this user can read, and that is removed as soon as it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.config.small_files import read_small_file
from moldau.runtime.authentication import (
    PLAINTEXT_ADVICE,
    SecuritySettingError,
    StoreUnreadable,
    TlsError,
)
from moldau.runtime.authentication.store_directories import StoreDirectories

PEM_MARK: Final = b"-----BEGIN "
MAX_STORE_BYTES: Final = 16 * 1024 * 1024
"""The authorities of the whole web take a fortieth of it."""
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
MOST_FLIGHTS: Final = 10
"""A handshake takes three in each direction at most."""
_TOO_WEAK: Final = re.compile(r"too[ _](weak|small)", re.IGNORECASE)
_WEAK_ADVICE: Final = (
    "OpenSSL's security level refuses such signatures (SHA-1) and short keys (RSA below 2048 "
    "bits); let the certificate, and its authority's, be issued again with stronger ones, or lower "
    "the level: ssl.cipher.suites=DEFAULT@SECLEVEL=0,TLS_AES_256_GCM_SHA384"
)
_EXPIRED: Final = "has expired"
_EXPIRED_ADVICE: Final = (
    "it, or an authority's in its chain or in ssl.truststore, has to be renewed "
    "(`moldau certificates renew` does so where --secure has made the cluster)"
)
_KEY_BITS: Final = re.compile(r"(AES|CAMELLIA|ARIA)_(\d+)")
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
"""Labels of certificates; the last one is OpenSSL's, with what it is trusted for behind it."""
_DESCRIPTORS: Final = "/proc/self/fd"
"""Where Linux has a path for each open file of this process."""
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Store:
    """Where certificates or a key are: a file, or text in the settings.

    Attributes:
        prefix: the keys' own, for errors: "ssl.truststore".
        type: PEM, PKCS12 or JKS; None to look at the file.
        directories: where the file may be; None for one that the node's or client's own
            configuration names.
        certificates, key: PEM text (inline).
    """

    prefix: str
    location: str | None = None
    type: str | None = None
    password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    directories: StoreDirectories | None = None

    @property
    def is_given(self) -> bool:
        """Whether the settings name a store at all, good or bad."""
        return not (self.location is None and self.certificates is None and self.key is None)


def store_of(
    prefix: str, value: Callable[[str], str | None], directories: StoreDirectories | None = None
) -> Store:
    """The store of the keys that begin with `prefix`, from their values."""
    is_own = prefix.endswith(".keystore")
    return Store(
        prefix,
        location=value(f"{prefix}.location"),
        type=value(f"{prefix}.type"),
        password=value(f"{prefix}.password"),
        certificates=value(f"{prefix}.{'certificate.chain' if is_own else 'certificates'}"),
        key=value(f"{prefix}.key") if is_own else None,
        directories=directories,
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates, key and rules of TLS connections.

    Attributes:
        key_password: of a PEM key.
        checks_hostname: of a client, whether the server's certificate has to name it.
    """

    trust: Store = field(default_factory=lambda: Store("ssl.truststore"))
    own: Store = field(default_factory=lambda: Store("ssl.keystore"))
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()


class LoadedStore(NamedTuple):
    """A store as it was when a context was made of it.

    Attributes:
        certificates: as PEM; those of a key store begin with the one that is shown.
    """

    store: Store
    certificates: str


class StoreContext(ssl.SSLContext):
    """A TLS context that knows what it was made of, whatever becomes of the files.

    Attributes:
        own: what it shows; None for nothing.
        trust: what it trusts; None for the system's authorities, and where no peer is asked.
    """

    own: LoadedStore | None = None
    trust: LoadedStore | None = None

    @property
    def chain(self) -> str:
        """The certificates that it shows, as PEM; "" for none."""
        return "" if self.own is None else self.own.certificates


def client_context(settings: TlsSettings) -> StoreContext:
    """A context that trusts what the settings say: the system's authorities without a truststore.

    Raises:
        SecuritySettingError: a file that is not there or cannot be read, a wrong password, a type
            that is not served.
    """
    context = StoreContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
    set_versions(context, settings.enabled_protocols)
    set_ciphers(context, settings.cipher_suites)
    load_trust(context, settings.trust, ssl.Purpose.SERVER_AUTH)
    chain, key = contents(settings.own)
    if chain is None and key is None:
        return context
    if chain is None or key is None:
        missing = "key" if key is None else "certificate.chain"
        raise SecuritySettingError(f"{settings.own.prefix}: a {missing} is missing")
    load_key(context, chain, key, settings.own, settings.key_password)
    return context


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Have two contexts of one node shake hands, whatever the names in the certificate.

    Raises: SecuritySettingError: one does not accept the other.
    """
    checks_hostname, client.check_hostname = client.check_hostname, False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = {
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    }
    try:
        for _ in range(MOST_FLIGHTS):
            for side in tuple(sides):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                sides.remove(side)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or error
        advice = "is the authority of ssl.keystore in ssl.truststore?"
        if _TOO_WEAK.search(str(reason)):
            advice = _WEAK_ADVICE
        elif _EXPIRED in str(reason):
            advice = _EXPIRED_ADVICE
        raise SecuritySettingError(
            f"nodes with these settings refuse one another ({reason}): {advice}"
        ) from None
    finally:
        client.check_hostname = checks_hostname


def load_trust(context: StoreContext, store: Store, purpose: ssl.Purpose) -> None:
    """Let the context trust a store's certificates, each by itself, as in Java, also one that
    another authority has signed; or else the system's for a purpose. Raises: SecuritySettingError.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not store.is_given:
        context.load_default_certs(purpose)
        return
    authorities, _no_key = contents(store)
    where = f"{store.prefix}.location: {store.location}" if store.location else store.prefix
    certificates = certificates_of(authorities or "")
    if not certificates:
        raise SecuritySettingError(
            f"{where}: no certificates in it: at least one -----BEGIN CERTIFICATE----- (or TRUSTED "
            "CERTIFICATE) is needed; without a truststore the system's authorities are trusted"
        )
    text = "\n".join(certificates)
    data = _ascii(text, where)
    try:
        # From a file OpenSSL reads blocks of all kinds, and what the trusted ones are trusted for.
        with _private_file(data) as path:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = error.reason or error
        raise SecuritySettingError(f"{where}: a certificate in it is damaged ({reason})") from None
    except OSError as error:
        raise _unreadable(where, error) from None
    context.trust = LoadedStore(store, text)


def load_key(
    context: StoreContext, chain: str, key: str, store: Store, key_password: str | None
) -> None:
    """Let the context show a certificate chain. Raises: SecuritySettingError."""
    # A PEM key is protected by ssl.key.password; without one OpenSSL would ask the terminal.
    password = key_password or ""
    data = _ascii(f"{key}\n{chain}\n", store.prefix)
    try:
        with _private_file(data) as path:
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if _TOO_WEAK.search(str(reason)):
            raise SecuritySettingError(
                f"{store.prefix}: the certificate is too weak ({reason}): {_WEAK_ADVICE}"
            ) from None
        raise SecuritySettingError(
            f"{store.prefix}: the key cannot be used ({reason}): does ssl.key.password "
            "open it, and does it belong to the first certificate?"
        ) from None
    except OSError as error:
        raise _unreadable(store.prefix, error) from None
    context.own = LoadedStore(store, chain)


def set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Offer the TLS versions named, and none older or newer. Raises: SecuritySettingError."""
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown or not names:
        raise SecuritySettingError(
            f"ssl.enabled.protocols: {', '.join(unknown) or 'none'}; served: {', '.join(_VERSIONS)}"
        )
    versions = [_VERSIONS[name] for name in names]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def is_tls_1_3_suite(name: str) -> bool:
    """Whether a cipher suite is one of TLS 1.3."""
    return name.startswith("TLS_AES_") or name == "TLS_CHACHA20_POLY1305_SHA256"


def openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2 that has the IANA's, as Java writes it: of
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 it is ECDHE-RSA-AES256-GCM-SHA384. Other names stay.
    """
    exchange, is_iana, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not is_iana or not name.startswith("TLS_"):
        return name
    cipher = _KEY_BITS.sub(r"\1\2", cipher).replace("_CBC_", "_")
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20_POLY1305"
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Suites by OpenSSL's or the IANA's names; those of TLS 1.3 are always on and need no naming.

    Raises: SecuritySettingError.
    """
    names = tuple(openssl_name(name) for name in names if not is_tls_1_3_suite(name))
    if not names:
        return
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        raise SecuritySettingError(
            f"ssl.cipher.suites: {', '.join(names)}: OpenSSL knows none of these; it has names of "
            "its own, such as ECDHE-RSA-AES256-GCM-SHA384"
        ) from None


def contents(store: Store) -> tuple[str | None, str | None]:
    """Certificates and key of a store as PEM text, each None where there is none.

    Raises: SecuritySettingError.
    """
    inline = store.certificates is not None or store.key is not None
    if inline:
        if store.location is not None:
            raise SecuritySettingError(f"{store.prefix}.location and inline PEM exclude each other")
        if store.type not in (None, "PEM"):
            raise SecuritySettingError(f"{store.prefix}.type: inline text is PEM")
        return store.certificates, store.key
    if store.location is None:
        return None, None
    where, location = f"{store.prefix}.location: {store.location}", store.location
    if store.directories is not None:
        location = store.directories.resolved(location, f"{store.prefix}.location")
    try:
        data = read_small_file(location, MAX_STORE_BYTES)
    except OSError as error:
        raise _unreadable(where, error) from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise SecuritySettingError(
            f"{store.prefix}.location: {store.location!r}: no file can have this name"
        ) from None
    kind = store.type or _kind_of(data)
    if kind == "JKS" and _kind_of(data) != "JKS":
        # Java's "JKS" keystores read PKCS12 files too, which all newer ones are.
        kind = _kind_of(data)
    if kind == "JKS":
        raise SecuritySettingError(
            f"{where} is a JKS store, which only Java reads; `keytool -importkeystore "
            f"-srckeystore {store.location} -destkeystore {store.location}.p12 -deststoretype "
            "pkcs12` turns it into PKCS12"
        )
    if kind == "PKCS12":
        return _read_pkcs12(data, store.password, where)
    if PEM_MARK not in data and not data.isascii():
        raise SecuritySettingError(f"{where}: neither PEM nor PKCS12")
    # Comments between the blocks are in any encoding: names of authorities, a key's friendly name.
    return _split_pem(data.decode("latin-1"), where)


def _kind_of(data: bytes) -> str:
    if data.startswith((_JKS_MAGIC, _JCEKS_MAGIC)):
        return "JKS"
    if PEM_MARK in data:
        return "PEM"
    return "PKCS12" if data[:1] == b"\x30" else "PEM"


def _read_pkcs12(data: bytes, password: str | None, where: str) -> tuple[str | None, str | None]:
    """As `_contents`; `cryptography` (the extra `tls`) is loaded only when a store is read."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise SecuritySettingError(
            f"{where} is a PKCS12 store, which needs the package cryptography: install "
            "moldau[tls], or turn it into PEM with openssl pkcs12 -nodes"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        reason = getattr(error, "reason", None) or error  # all of a UnicodeError shows a character
        raise SecuritySettingError(
            f"{where}: the PKCS12 store cannot be opened ({reason}); is the password right?"
        ) from None
    encoding = serialization.Encoding.PEM
    own = [] if store.cert is None else [store.cert]
    certificates = [each.certificate for each in (*own, *store.additional_certs)]
    chain = "".join(each.public_bytes(encoding).decode() for each in certificates)
    key: str | None = None
    if store.key is not None:
        key = store.key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
    return chain or None, key


def _split_pem(text: str, where: str) -> tuple[str | None, str | None]:
    keys = [found[0] for found in _BLOCK.finditer(text) if found[1].endswith("PRIVATE KEY")]
    if not keys and _BLOCK.search(text) is None:
        raise SecuritySettingError(f"{where}: no PEM in it (-----BEGIN …)")
    return "\n".join(certificates_of(text)) or None, keys[0] if keys else None


def certificates_of(text: str) -> list[str]:
    """The certificates in PEM text, each with its two lines around it."""
    return [found.group(0) for found in _BLOCK.finditer(text) if found.group(1) in _CERTIFICATES]


def _ascii(text: str, where: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise SecuritySettingError(f"{where}: a character in it is not ASCII, as PEM is") from None


def _unreadable(where: str, error: OSError) -> StoreUnreadable:
    return StoreUnreadable(f"{where}: {error.strerror or error}")


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """A path from which OpenSSL, which takes keys and chains from files alone, reads the data.

    Raises: OSError.
    """
    if hasattr(os, "memfd_create") and os.path.isdir(_DESCRIPTORS):
        descriptor = os.memfd_create("moldau-store", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", buffering=0) as memory:
            memory.write(data)
            yield f"{_DESCRIPTORS}/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp(prefix="moldau-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
        yield path
    finally:
        os.unlink(path)


def tls_error(peer: str, error: ssl.SSLError) -> TlsError:
    """What a failed handshake means, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if "ostname" in error.verify_message or "IP address" in error.verify_message:
            advice = (
                "connect by a name in the certificate, or set "
                "ssl.endpoint.identification.algorithm to nothing"
            )
        elif _EXPIRED in error.verify_message:
            advice = _EXPIRED_ADVICE
        elif _TOO_WEAK.search(error.verify_message):
            advice = _WEAK_ADVICE
        else:
            advice = "is its authority in ssl.truststore.location (or .certificates)?"
        return TlsError(f"{peer}: its certificate is refused: {error.verify_message}; {advice}")
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        return TlsError(f"{peer} does not speak TLS; {PLAINTEXT_ADVICE}")
    if "CERTIFICATE_REQUIRED" in reason:
        return TlsError(
            f"{peer} wants a certificate, and none was shown ({reason}): set ssl.keystore.location "
            "(or .certificate.chain and .key)"
        )
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason:
        return TlsError(
            f"{peer} refuses our certificate ({reason}); it wants one that it trusts in "
            "ssl.keystore.location (or .certificate.chain and .key)"
        )
    return TlsError(
        f"{peer}: no TLS connection ({reason}); ssl.enabled.protocols and ssl.cipher.suites must "
        "have something in common with the broker's"
    )
