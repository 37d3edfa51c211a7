"""Kerberos 5 by the system's GSSAPI library: tickets, both sides of a security context, errors.

Owns every call of the `gssapi` package, which is optional and imported where Kerberos is used, and
the tickets that this process gets with keytabs. Must not know Kafka's requests. Its functions
block, and may wait for a KDC: they are called beside the event loop. Invariants: errors say what is
wrong in the library's own words, with what to do where that is known, and never show a key; a
ticket that is used up is not used.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from moldau.config.small_files import check_small
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.aside import Aside
from moldau.runtime.clock import Clock

T = TypeVar("T")

MECHANISM: Final = "GSSAPI"
MODULE: Final = "Krb5LoginModule"
EXAMPLE: Final = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
    'keyTab="FILE" principal="kafka/HOST@REALM";'
)
SERVICE_NAME_KEY: Final = "sasl.kerberos.service.name"

DEFAULT_KEYTAB: Final = "FILE:/etc/krb5.keytab"

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Of a keytab or a ticket cache."""

TIMEOUT_MS: Final = 30_000.0
"""How long one step of a login may take: the library asks each KDC more than once."""

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

_NEW_TICKET: Final = "get a ticket with kinit"
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
    _TICKET_EXPIRED: _NEW_TICKET,
    37: _CLOCKS,
    141: _NEW_TICKET,
    154: "krb5.conf names no KDC of this realm",
    156: "is a KDC of that realm running, and reachable from here?",
    181: "is this the right keytab, and the right principal?",
    195: _NEW_TICKET,
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


def check_package() -> None:
    """Raises: SecuritySettingError, when there is no usable GSSAPI library."""
    _library()


def _library() -> Any:
    try:
        import gssapi.raw
    except (ImportError, OSError) as error:
        raise SecuritySettingError(
            f"{MECHANISM} needs the package gssapi and the system's Kerberos library: pip install "
            "'moldau[gssapi]', which compiles it with the headers of libkrb5-dev (Debian) or "
            f"krb5-devel (Fedora): {error}"
        ) from None
    return gssapi.raw


def _call(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call the library. Raises: KerberosError."""
    raw = _library()
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
    raw = _library()
    try:
        name = raw.import_name(b"x", raw.NameType.kerberos_principal)
        whole = raw.display_name(raw.canonicalize_name(name, raw.MechType.kerberos), False).name
    except raw.GSSError:
        return ""
    return str(whole.decode(errors="replace")).partition("@")[2]


_asides: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Aside]] = WeakKeyDictionary()


def aside() -> Aside:
    """Where this module's functions are called for the running event loop."""
    loop = asyncio.get_running_loop()
    found = _asides.get(loop)
    if found is None:
        found = _asides[loop] = Aside("moldau-kerberos", TIMEOUT_MS)
    return found


# -- what logins are configured with --------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class RenewalRules:
    """`sasl.kerberos.ticket.renew.*` and `sasl.kerberos.min.time.before.relogin`."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_pause_ms: float = 60_000.0


def _file(name: str) -> bytes:
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


# -- tickets --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Login:
    """Credentials from a keytab, and until when."""

    credentials: Any
    expires_at_ms: float
    renew_at_ms: float


_numbers: Final = itertools.count()
"""Of the caches in this process."""


class KeytabTickets:
    """The tickets that this process gets with one key, renewed when most of their life is over.

    Tickets are kept in memory, in turn in one of two caches: a login that is renewed leaves alone
    what the last one uses. Threads may share it.
    """

    def __init__(self, keytab: str | None, principal: str) -> None:
        self._keytab = keytab
        self._principal = principal
        self._rules: RenewalRules | None = None
        self._lock = threading.Lock()
        self._login: _Login | None = None
        self._generation = 0
        self._cache = f"MEMORY:moldau-{os.getpid()}-{next(_numbers)}"

    def change_rules(self, rules: RenewalRules) -> None:
        """From the next login on these hold for all who share the key, in place of their own."""
        self._rules = rules

    def current(self, clock: Clock, rules: RenewalRules) -> Any:
        """Credentials that are good. Raises: KerberosError."""
        rules = self._rules or rules
        with self._lock:
            now_ms = clock.now_ms()
            login = self._login
            if login is not None and now_ms < login.renew_at_ms:
                return login.credentials
            try:
                self._login = login = self._log_in(now_ms, rules)
            except KerberosError:
                if login is None or now_ms >= login.expires_at_ms:
                    raise
                login.renew_at_ms = now_ms + rules.min_pause_ms
            return login.credentials

    def forget(self) -> None:
        """Log in again at the next call: what the last login gave has ended too early, as where
        this machine's clock has been set.
        """
        with self._lock:
            self._login = None

    def _log_in(self, now_ms: float, rules: RenewalRules) -> _Login:
        raw = _library()
        store = {b"ccache": f"{self._cache}-{self._generation % 2}".encode()}
        keytab = self._keytab or os.environ.get("KRB5_KTNAME") or DEFAULT_KEYTAB
        store[b"client_keytab"] = _file(keytab)
        name = _call(raw.import_name, self._principal.encode(), raw.NameType.kerberos_principal)
        kerberos = {raw.MechType.kerberos}
        # What is wrong with the keytab, the second call would call a missing ticket.
        held = {b"keytab": store[b"client_keytab"]}
        try:
            _call(raw.acquire_cred_from, held, name, mechs=kerberos, usage="accept")
        except KerberosError as error:
            raise KerberosError(f"keytab {keytab}: {error}") from None
        got = _call(raw.acquire_cred_from, store, name, mechs=kerberos, usage="initiate")
        self._generation += 1
        life_ms = float(got.lifetime or 0) * 1000
        if life_ms <= 0:
            raise KerberosError("the KDC gives no new ticket, and the last one has expired")
        share = rules.window_factor + random.uniform(0, rules.window_jitter)
        renew_at_ms = now_ms + life_ms * min(share, 1.0)
        earliest_ms = now_ms + rules.min_pause_ms
        if earliest_ms < now_ms + life_ms:
            renew_at_ms = max(renew_at_ms, earliest_ms)
        return _Login(got.creds, now_ms + life_ms, renew_at_ms)


_tickets: Final[dict[tuple[str | None, str], KeytabTickets]] = {}
_tickets_lock: Final = threading.Lock()


def _tickets_of(keytab: str | None, principal: str) -> KeytabTickets:
    """Those that all clients of this process with that key share."""
    place = (keytab, principal)
    with _tickets_lock:
        tickets = _tickets.get(place)
        if tickets is None:
            tickets = _tickets[place] = KeytabTickets(keytab, principal)
        return tickets


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """With what this process logs in to brokers.

    Attributes:
        service_name: the first part of the brokers' principals.
        principal: its own; needed with a keytab.
        uses_keytab: whether tickets are got with a key; else they are those of a ticket cache,
            which kinit fills and renews.
        keytab: a file; None for the default one.
        ticket_cache: a file or a name that the library knows; None for the default one, which
            KRB5CCNAME may name.
    """

    service_name: str
    clock: Clock = field(repr=False)
    principal: str | None = None
    uses_keytab: bool = False
    keytab: str | None = None
    ticket_cache: str | None = None
    rules: RenewalRules = RenewalRules()

    def credentials(self) -> Any:
        """What a security context begins with. Raises: KerberosError."""
        if self.uses_keytab:
            assert self.principal is not None, "checked with the settings"
            return _tickets_of(self.keytab, self.principal).current(self.clock, self.rules)
        raw = _library()
        name = None
        if self.principal is not None:
            name = _call(raw.import_name, self.principal.encode(), raw.NameType.kerberos_principal)
        store = None if self.ticket_cache is None else {b"ccache": _file(self.ticket_cache)}
        # The library looks into the cache for each login: who renews a ticket tells no process.
        got = _call(
            raw.acquire_cred_from, store, name, mechs={raw.MechType.kerberos}, usage="initiate"
        )
        if got.lifetime is not None and got.lifetime <= 0:
            raise KerberosError(f"the ticket in the cache has expired ({_NEW_TICKET})")
        return got.creds

    def change_rules(self, rules: RenewalRules) -> None:
        """Renew tickets by other rules from now on; no effect without a keytab."""
        if self.uses_keytab and self.principal is not None:
            _tickets_of(self.keytab, self.principal).change_rules(rules)

    def forget(self) -> None:
        """A ticket was used up when it came to use."""
        if self.uses_keytab and self.principal is not None:
            _tickets_of(self.keytab, self.principal).forget()


def login_of(
    options: Mapping[str, str],
    service_name: str | None,
    clock: Clock,
    rules: RenewalRules,
) -> KerberosLogin:
    """What the options of Krb5LoginModule say of a client.

    Raises:
        SecuritySettingError: they do not fit together, or the package is missing.
    """
    name = service_name_of(options, service_name)
    check_package()
    principal = options.get("principal") or None
    has_key, has_cache = is_true(options, "useKeyTab"), is_true(options, "useTicketCache")
    if has_key and not has_cache:
        if principal is None:
            raise SecuritySettingError(f"useKeyTab=true of {MODULE} needs principal")
        return KerberosLogin(
            name, clock, principal, uses_keytab=True, keytab=options.get("keyTab"), rules=rules
        )
    if has_key:
        raise SecuritySettingError(
            f"{MODULE}: useKeyTab=true and useTicketCache=true exclude each other here; a keytab "
            "alone is enough"
        )
    if options.get("keyTab"):
        raise SecuritySettingError(f"keyTab of {MODULE} needs useKeyTab=true")
    return KerberosLogin(
        name, clock, principal, ticket_cache=options.get("ticketCache"), rules=rules
    )


# -- the client's side of a security context ------------------------------------------------------


class GssapiExchange:
    """The client's side of GSSAPI (RFC 4752): context tokens → the broker's offer → our choice.

    The only security layer chosen is none: TLS is what protects a connection. The broker has to
    prove its own identity.
    """

    is_slow: ClassVar[bool] = True

    def __init__(self, login: KerberosLogin, host: str) -> None:
        self._login = login
        self._target = f"{login.service_name}@{host}"
        self._credentials: Any = None
        self._name: Any = None
        self._context: Any = None
        self._is_established = False
        self._has_chosen = False

    @property
    def is_complete(self) -> bool:
        return self._has_chosen

    def first(self) -> bytes:
        try:
            raw = _library()
            self._credentials = self._login.credentials()
            self._name = _call(
                raw.import_name, self._target.encode(), raw.NameType.hostbased_service
            )
            return self._initiated(None)
        except KerberosError as error:
            if error.is_expired:
                self._login.forget()
            raise self._failure(str(error), error) from None

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            if not self._is_established:
                return self._initiated(challenge)
            if self._has_chosen:
                return None
            return self._choice(challenge)
        except KerberosError as error:
            raise self._failure(f"the broker's answer is refused: {error}", error) from None

    def _failure(self, text: str, error: KerberosError) -> Exception:
        kind = ConnectionError if error.is_passing else AuthenticationError
        return kind(f"{MECHANISM}: {self._target}: {text}")

    def _initiated(self, token: bytes | None) -> bytes:
        raw = _library()
        wanted = {
            raw.RequirementFlag.mutual_authentication,
            raw.RequirementFlag.integrity,
            raw.RequirementFlag.replay_detection,
        }
        step = _call(
            raw.init_sec_context,
            self._name,
            self._credentials,
            self._context,
            raw.MechType.kerberos,
            wanted,
            input_token=token,
        )
        self._context = step.context
        if not step.more_steps:
            if raw.RequirementFlag.mutual_authentication not in step.flags:
                raise KerberosError("the broker has not proved its identity")
            self._is_established = True
        return bytes(step.token or b"")

    def _choice(self, offer_token: bytes) -> bytes:
        raw = _library()
        offer = _call(raw.unwrap, self._context, offer_token).message
        if len(offer) < 4 or not offer[0] & 1:
            raise KerberosError("the broker insists on a security layer, and Kafka has none")
        self._has_chosen = True
        # Without an authorization id: the broker shall take the one that is proved.
        return bytes(_call(raw.wrap, self._context, bytes((1, 0, 0, 0)), False, None).message)


# -- the broker's side ----------------------------------------------------------------------------


class Acceptor:
    """The key of one listener, which contexts of its clients are accepted with.

    The library reads the keytab for each client: a new key is in use as soon as it is in there.
    """

    def __init__(self, keytab: str | None, principal: str) -> None:
        """Raises: KerberosError, when the keytab has no key of the principal."""
        raw = _library()
        # Without one the library's own: KRB5_KTNAME, or what krb5.conf says.
        store = {} if keytab is None else {b"keytab": _file(keytab)}
        name = _call(raw.import_name, principal.encode(), raw.NameType.kerberos_principal)
        self._credentials = _call(
            raw.acquire_cred_from, store, name, mechs={raw.MechType.kerberos}, usage="accept"
        ).creds

    def context(self) -> AcceptedContext:
        """A security context for one client."""
        return AcceptedContext(self._credentials)


class AcceptedContext:
    """The broker's side of one security context. Its methods raise KerberosError."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._context: Any = None
        self._initiator: Any = None
        self.is_established = False

    def accept(self, token: bytes) -> bytes:
        """The answer to a token, which may be empty."""
        raw = _library()
        step = _call(raw.accept_sec_context, token, self._credentials, self._context)
        self._context = step.context
        if not step.more_steps:
            if step.mech != raw.MechType.kerberos:
                raise KerberosError("the client's mechanism is not Kerberos 5")
            self._initiator = step.initiator_name
            self.is_established = True
        return bytes(step.token or b"")

    def principal(self) -> str:
        """The client's name, as in `alice@EXAMPLE.COM`."""
        raw = _library()
        name: bytes = _call(raw.display_name, self._initiator, False).name
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise KerberosError("the client's principal is not UTF-8") from None

    def wrap(self, message: bytes) -> bytes:
        return bytes(_call(_library().wrap, self._context, message, False, None).message)

    def unwrap(self, token: bytes) -> bytes:
        return bytes(_call(_library().unwrap, self._context, token).message)
