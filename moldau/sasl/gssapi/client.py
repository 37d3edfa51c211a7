"""The client's side of GSSAPI: tickets, and a login with them, of clients and nodes alike.

Owns the tickets that this process gets with keytabs. Must not know Kafka's requests. Invariant: a
ticket that is used up is not used.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from moldau.config.settings import KeyedSettings, of_key
from moldau.runtime.aside import Aside
from moldau.runtime.authentication import (
    AuthenticationError,
    LoginExpiration,
    SecuritySettingError,
)
from moldau.runtime.clock import Clock
from moldau.sasl.gssapi.core import NO_LAYER, OFFER
from moldau.sasl.gssapi.library import (
    EXAMPLE,
    MECHANISM,
    MODULE,
    NEW_TICKET,
    SERVICE_NAME_KEY,
    KerberosError,
    acquired,
    call,
    file_name,
    is_true,
    library,
    service_name_of,
)
from moldau.sasl.login import SaslLogin, Value
from moldau.sasl.mechanism import MechanismConfig

T = TypeVar("T")

DEFAULT_KEYTAB: Final = "FILE:/etc/krb5.keytab"

TIMEOUT_MS: Final = 30_000.0
"""How long one step of a login may take: the library asks each KDC more than once."""

_LOG = logging.getLogger(__name__)

_asides: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Aside]] = WeakKeyDictionary()


def aside() -> Aside:
    """Where steps of logins are taken for the running event loop."""
    loop = asyncio.get_running_loop()
    found = _asides.get(loop)
    if found is None:
        found = _asides[loop] = Aside("moldau-kerberos", TIMEOUT_MS)
    return found


@dataclass(frozen=True, slots=True)
class RenewalRules(KeyedSettings):
    """`sasl.kerberos.ticket.renew.*` and `sasl.kerberos.min.time.before.relogin`."""

    window_factor: float = of_key("sasl.kerberos.ticket.renew.window.factor")
    window_jitter: float = of_key("sasl.kerberos.ticket.renew.jitter")
    min_pause_ms: float = of_key("sasl.kerberos.min.time.before.relogin", made=float)


@dataclass(slots=True)
class _Login:
    """Credentials from a keytab, and until when."""

    credentials: Any
    expires_at_ms: float
    renew_at_ms: float


_numbers: Final = itertools.count()
"""The numbers of the caches in this process."""


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
        self._has_failed = False
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
                self._has_failed = False
            except KerberosError as error:
                if login is None or now_ms >= login.expires_at_ms:
                    raise
                login.renew_at_ms = now_ms + rules.min_pause_ms
                if not self._has_failed:
                    self._has_failed = True
                    left_s = (login.expires_at_ms - now_ms) / 1000
                    text = "no new ticket of %s, the last one is good for %d s more: %s"
                    _LOG.warning(text, self._principal, left_s, error)
            return login.credentials

    def forget(self) -> None:
        """Log in again at the next call: what the last login gave has ended too early, as where
        this machine's clock has been set.
        """
        with self._lock:
            self._login = None

    def _log_in(self, now_ms: float, rules: RenewalRules) -> _Login:
        cache = f"{self._cache}-{self._generation % 2}".encode()
        keytab = self._keytab or os.environ.get("KRB5_KTNAME") or DEFAULT_KEYTAB
        file = file_name(keytab)
        # What is wrong with the keytab, the second call would call a missing ticket.
        try:
            acquired({b"keytab": file}, self._principal, "accept")
        except KerberosError as error:
            raise KerberosError(f"keytab {keytab}: {error}") from None
        store = {b"ccache": cache, b"client_keytab": file}
        got = acquired(store, self._principal, "initiate")
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


@dataclass(frozen=True, slots=True)
class KerberosLogin(SaslLogin):
    """The credentials with which this process logs in to brokers.

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
    rules: RenewalRules = field(default_factory=RenewalRules)

    mechanism = MECHANISM

    async def exchange(self, host: str) -> GssapiClient:
        return GssapiClient(self, host)

    async def step(self, step: Callable[..., T], *args: bytes) -> T:
        """Take a step off the event loop: it may wait for a KDC."""
        try:
            return await aside()(step, *args)
        except TimeoutError:
            raise AuthenticationError(
                "Kerberos does not come to an end: is a KDC reachable from here?"
            ) from None

    def credentials(self) -> Any:
        """What a security context begins with. Raises: KerberosError."""
        tickets = self._own_tickets
        if tickets is not None:
            return tickets.current(self.clock, self.rules)
        got = self._in_cache()
        if got.lifetime is not None and got.lifetime <= 0:
            raise KerberosError(f"the ticket in the cache has expired ({NEW_TICKET})")
        return got.creds

    def _in_cache(self) -> Any:
        """What kinit has put into the cache. The library looks there for each login: a renewal
        notifies no process. Raises: KerberosError.
        """
        store = None if self.ticket_cache is None else {b"ccache": file_name(self.ticket_cache)}
        return acquired(store, self.principal, "initiate")

    def expirations(self) -> Sequence[LoginExpiration]:
        """The ticket in the cache: those got with a keytab this process renews itself, and a keytab
        has no end.
        """
        if self.uses_keytab:
            return ()
        try:
            got = self._in_cache()
        except KerberosError:
            return ()
        if got.lifetime is None:
            return ()
        source = f"ticket cache {self.ticket_cache or 'of KRB5CCNAME'}"
        return [LoginExpiration(source, self.clock.now_ms() + got.lifetime * 1000.0)]

    def change(self, value: Value) -> None:
        """Renew tickets by other rules from now on; no effect without a keytab."""
        tickets = self._own_tickets
        if tickets is not None:
            tickets.change_rules(RenewalRules.of(value))

    def forget(self) -> None:
        """A ticket was used up when it came to use."""
        tickets = self._own_tickets
        if tickets is not None:
            tickets.forget()

    @property
    def _own_tickets(self) -> KeytabTickets | None:
        """Those that all logins of this process with the key share; None with a ticket cache."""
        if not self.uses_keytab:
            return None
        assert self.principal is not None, "checked with the settings"
        place = self.keytab, self.principal
        with _tickets_lock:
            return _tickets.setdefault(place, KeytabTickets(*place))


def login(config: MechanismConfig) -> KerberosLogin:
    """A login with a keytab, or a ticket cache: that of kinit where nothing is said. Raises:
    SecuritySettingError: the options do not fit together, or the package is missing.
    """
    options = config.options if config.place else _client_options(config)
    if config.place and config.login_module is None:
        raise SecuritySettingError(f"is needed, for this node to log in to the others: {EXAMPLE}")
    name = service_name_of(options, config.value(SERVICE_NAME_KEY))
    library()
    principal, keytab = options.get("principal") or None, options.get("keyTab")
    has_key, has_cache = is_true(options, "useKeyTab"), is_true(options, "useTicketCache")
    if has_key and has_cache:
        raise SecuritySettingError(
            f"{MODULE}: useKeyTab=true and useTicketCache=true exclude each other here; a keytab "
            "alone is enough"
        )
    if has_key and principal is None:
        raise SecuritySettingError(f"useKeyTab=true of {MODULE} needs principal")
    if keytab and not has_key:
        raise SecuritySettingError(f"keyTab of {MODULE} needs useKeyTab=true")
    rules, cache = RenewalRules.of(config.value), None if has_key else options.get("ticketCache")
    return KerberosLogin(name, config.clock, principal, has_key, keytab or None, cache, rules)


def _client_options(config: MechanismConfig) -> Mapping[str, str]:
    """Those of the login module, or as keys of a client say the same. Raises:
    SecuritySettingError.
    """
    value = config.value
    has_password = value("sasl.username") is not None or value("sasl.password") is not None
    if has_password or not (value(SERVICE_NAME_KEY) or config.options.get("serviceName")):
        default = "" if config.is_named else ", Kafka's default,"
        problem = (
            "takes no sasl.username and sasl.password"
            if has_password
            else "needs sasl.kerberos.service.name: kafka, as a rule"
        )
        raise SecuritySettingError(
            f"sasl.mechanism=GSSAPI{default} {problem}; for users with passwords set it to the "
            "mechanism of the listener, SCRAM-SHA-512 or PLAIN as a rule"
        )
    principal, keytab = value("sasl.kerberos.principal"), value("sasl.kerberos.keytab")
    if principal is None and keytab is None:
        return config.options
    if config.login_module is not None:
        raise SecuritySettingError(
            "sasl.jaas.config excludes sasl.kerberos.principal and sasl.kerberos.keytab: give one "
            "or the other"
        )
    if principal is None:
        raise SecuritySettingError("sasl.kerberos.keytab needs sasl.kerberos.principal")
    options = {"principal": principal}
    return options if keytab is None else {**options, "useKeyTab": "true", "keyTab": keytab}


class GssapiClient:
    """One exchange (RFC 4752): context tokens → the broker's offer → our choice.

    The only security layer chosen is none: TLS is what protects a connection. The broker has to
    prove its own identity.
    """

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
            raw = library()
            self._credentials = self._login.credentials()
            self._name = call(
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
        raw = library()
        wanted = {
            raw.RequirementFlag.mutual_authentication,
            raw.RequirementFlag.integrity,
            raw.RequirementFlag.replay_detection,
        }
        step = call(
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
        raw = library()
        offer = call(raw.unwrap, self._context, offer_token).message
        if len(offer) < len(OFFER) or not offer[0] & NO_LAYER:
            raise KerberosError("the broker insists on a security layer, and Kafka has none")
        self._has_chosen = True
        # Without an authorization id: the broker shall take the one that is proved.
        return bytes(call(raw.wrap, self._context, OFFER, False, None).message)
