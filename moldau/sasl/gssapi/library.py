"""Kerberos 5 by the system's GSSAPI library: how it is called, and what its errors mean.

Owns the `gssapi` package, which is optional and imported where Kerberos is used. Must not know
Kafka's requests. Its functions block, and may wait for a KDC: they are called beside the event
loop. Invariant: errors say what is wrong in the library's own words, with what to do where that is
known, and never show a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from moldau.config.small_files import check_small
from moldau.runtime.authentication import SecuritySettingError

T = TypeVar("T")

MECHANISM: Final = "GSSAPI"
MODULE: Final = "Krb5LoginModule"
EXAMPLE: Final = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
    'keyTab="FILE" principal="kafka/HOST@REALM";'
)
SERVICE_NAME_KEY: Final = "sasl.kerberos.service.name"

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""The limit for a keytab or a ticket cache."""

_FIRST_CODE: Final = -1_765_328_384
"""The number of Kerberos' error 0 in MIT's table; its errors of the protocol (RFC 4120) follow."""

_CLIENT_UNKNOWN: Final = 6
_SERVER_UNKNOWN: Final = 7
_CLIENT_NOT_YET_VALID: Final = 21
_TICKET_EXPIRED: Final = 32
_TICKET_NOT_YET_VALID: Final = 33
_REPLAY: Final = 34
_PASSING: Final = frozenset({_CLIENT_NOT_YET_VALID, _TICKET_NOT_YET_VALID, _REPLAY})
"""What Apache Kafka takes for a fault of the moment, and not for a refusal."""

NEW_TICKET: Final = "get a ticket with kinit"
_KEYTAB_IS_OLD: Final = "the keytab does not have the present key of its principal: export it again"
_CLOCKS: Final = "the clocks of this machine, the broker's and the KDC's must agree to 5 minutes"
_ADVICE: Final[Mapping[int, str]] = {
    _CLIENT_UNKNOWN: "the KDC does not know the client's principal",
    _SERVER_UNKNOWN: (
        f"the KDC has no principal of that name; it is made of {SERVICE_NAME_KEY} and the host "
        "that bootstrap.servers or the broker's advertised.listeners name"
    ),
    24: _KEYTAB_IS_OLD,
    31: _KEYTAB_IS_OLD,
    _TICKET_EXPIRED: NEW_TICKET,
    37: _CLOCKS,
    141: NEW_TICKET,
    154: "krb5.conf names no KDC of this realm",
    156: "is a KDC of that realm running, and reachable from here?",
    181: "is this the right keytab, and the right principal?",
    195: NEW_TICKET,
}


class KerberosError(Exception):
    """What the library could not do.

    Attributes:
        is_passing: whether another attempt may succeed though nothing has been changed.
        is_expired: whether a ticket is used up.
    """

    def __init__(self, text: str, *, is_passing: bool = False, is_expired: bool = False) -> None:
        super().__init__(text)
        self.is_passing = is_passing
        self.is_expired = is_expired


def library() -> Any:
    """The package. Raises: SecuritySettingError, when there is no usable GSSAPI library."""
    try:
        import gssapi.raw
    except (ImportError, OSError) as error:
        raise SecuritySettingError(
            f"{MECHANISM} needs the package gssapi and the system's Kerberos library: pip install "
            "'moldau[gssapi]', which compiles it with the headers of libkrb5-dev (Debian) or "
            f"krb5-devel (Fedora): {error}"
        ) from None
    return gssapi.raw


def call(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call the library. Raises: KerberosError."""
    raw = library()
    try:
        return function(*args, **options)
    except raw.GSSError as error:
        # At once, and in this thread: the library keeps the texts of its errors for each thread.
        raise _kerberos_error(raw, error) from None


def _kerberos_error(raw: Any, error: Any) -> KerberosError:
    minor = int(error.min_code)
    number = (minor - 2**32 if minor >= 2**31 else minor) - _FIRST_CODE
    texts: list[str] = []
    for code, is_major in ((minor, False), (int(error.maj_code), True)):
        if code and not texts:
            texts = [each.strip() for each in error.get_all_statuses(code, is_major)]
    text = "; ".join(each for each in texts if each) or "an unknown error"
    advice = _ADVICE.get(number)
    if advice is not None:
        text = f"{text} ({advice})"
    is_expired = number == _TICKET_EXPIRED or isinstance(error, raw.ExpiredCredentialsError)
    return KerberosError(text, is_passing=number in _PASSING, is_expired=is_expired)


def default_realm() -> str:
    """The `default_realm` of krb5.conf; "" without one."""
    raw = library()
    try:
        name = raw.import_name(b"x", raw.NameType.kerberos_principal)
        whole = raw.display_name(raw.canonicalize_name(name, raw.MechType.kerberos), False).name
    except raw.GSSError:
        return ""
    return str(whole.decode(errors="replace")).partition("@")[2]


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Whether an option of a login module is on, as Java reads it."""
    return options.get(name, "").strip().lower() == "true"


def service_name_of(options: Mapping[str, str], configured: str | None) -> str:
    """The first part of the brokers' principals. Raises: SecuritySettingError."""
    in_module = options.get("serviceName")
    if in_module and configured and in_module != configured:
        raise SecuritySettingError(
            f"{SERVICE_NAME_KEY}={configured} and serviceName={in_module} of {MODULE} contradict "
            "each other"
        )
    name = in_module or configured
    if not name:
        raise SecuritySettingError(
            f"{MECHANISM} needs {SERVICE_NAME_KEY}: the first part of the brokers' principals, "
            "kafka as a rule"
        )
    return name


def file_name(name: str) -> bytes:
    """The name of a keytab or ticket cache for the library, which would wait for a pipe's writer.

    Raises: KerberosError.
    """
    kind, _, path = name.partition(":")
    path = path if kind in ("FILE", "WRFILE") else name
    try:
        check_small(path, os.stat(path), MAX_FILE_BYTES)
    except FileNotFoundError:  # also a name of another kind, as MEMORY:x
        return name.encode()
    except (OSError, ValueError) as error:
        raise KerberosError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    return name.encode()


def acquired(store: dict[bytes, bytes] | None, principal: str | None, usage: str) -> Any:
    """A principal's credentials from a store, or from the default one. Raises: KerberosError."""
    raw = library()
    name = None
    if principal is not None:
        name = call(raw.import_name, principal.encode(), raw.NameType.kerberos_principal)
    kerberos = {raw.MechType.kerberos}
    return call(raw.acquire_cred_from, store, name, mechs=kerberos, usage=usage)


def accepting(keytab: str | None, principal: str) -> Any:
    """The credentials that contexts of a listener's clients are accepted with. The library reads
    the keytab for each client: a new key is in use as soon as it is in there.

    Raises: KerberosError, when the keytab has no key of the principal.
    """
    # Without one the library's own: KRB5_KTNAME, or what krb5.conf says.
    store = {} if keytab is None else {b"keytab": file_name(keytab)}
    return acquired(store, principal, "accept").creds


class AcceptedContext:
    """The broker's side of one security context, whose methods raise KerberosError.

    Args:
        credentials: of `accepting`.
    """

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._context: Any = None
        self._initiator: Any = None
        self.is_established = False

    def accept(self, token: bytes) -> bytes:
        """The answer to a token, which may be empty."""
        raw = library()
        step = call(raw.accept_sec_context, token, self._credentials, self._context)
        self._context = step.context
        if not step.more_steps:
            if step.mech != raw.MechType.kerberos:
                raise KerberosError("the client's mechanism is not Kerberos 5")
            self._initiator = step.initiator_name
            self.is_established = True
        return bytes(step.token or b"")

    def principal(self) -> str:
        """The client's name, as in `alice@EXAMPLE.COM`."""
        raw = library()
        name: bytes = call(raw.display_name, self._initiator, False).name
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise KerberosError("the client's principal is not UTF-8") from None

    def wrap(self, message: bytes) -> bytes:
        return bytes(call(library().wrap, self._context, message, False, None).message)

    def unwrap(self, token: bytes) -> bytes:
        return bytes(call(library().unwrap, self._context, token).message)
