"""When certificates of this node expire, and what else with an end it logs in to other nodes with.

Owns the lines in the log: a WARNING a day from `moldau.certificate.warning.days` before the end on,
an ERROR a day behind it. Must not read key and trust stores: what counts is what the next
connection gets. So every context is asked on its own loop, and reads its stores again if they have
changed. Invariant: a store that cannot be used any more leaves the expiration of what is still in
use.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.runtime.clock import Clock
from moldau.runtime.loop_thread import run_on
from moldau.runtime.restarts import RestartedTask
from moldau.runtime.signal import Signal

if TYPE_CHECKING:
    from moldau.runtime.authentication import LoginExpiration
    from moldau.runtime.authentication.store_contexts import StoreContexts
    from moldau.runtime.authentication.tls import Store
    from moldau.runtime.connection import Login

LOOK_EVERY_MS: Final = 60_000.0
"""How soon a store that is renewed is known where neither a connection nor a question comes."""
LOG_EVERY_MS: Final = 86_400_000.0
DAY_MS: Final = 86_400_000.0
LOGIN_SHARE: Final = 0.1
"""What is left of the life of a token when its renewal is overdue: programs renew earlier."""

KEY_STORE, TRUST_STORE = "keystore", "truststore"

_RENEW: Final = (
    "put a renewed one in its place, and new connections get it without a restart "
    "(`moldau certificates renew` does so where --secure has made the cluster)"
)
_TRUST_NEXT: Final = (
    "have its successor beside it in that store before certificates are signed by that, "
    "and take this one out when none needs it"
)

logger = logging.getLogger(__name__)


class WatchedStores(NamedTuple):
    """The stores of a listener, or of connections to it.

    Attributes:
        contexts: those that follow their files, or one that the node has made when it started.
        loop: where they live.
    """

    listener: str
    contexts: StoreContexts | ssl.SSLContext
    loop: asyncio.AbstractEventLoop

    async def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        if isinstance(self.contexts, ssl.SSLContext):
            return self.contexts
        return await run_on(self.loop, self.contexts.current())


class WatchedLogin(NamedTuple):
    """What this node logs in to a listener of other nodes with."""

    listener: str
    login: Login


class CertificateExpiration(NamedTuple):
    """The certificate of a store that expires first.

    Attributes:
        store: KEY_STORE or TRUST_STORE.
        location: the store's file; "" for text in the configuration.
        key: of the configuration, that names the store.
        is_own: whether it is the listener's own, not an authority's.
        is_read_once: whether the store is read when the node starts alone: that of an identity
            provider.
        certificate_count: of the whole store.
    """

    listener: str
    store: str
    location: str
    key: str
    subject: str
    expires_at_ms: float
    is_own: bool
    is_read_once: bool
    certificate_count: int


class _First(NamedTuple):
    """The certificate in PEM text that expires first: at which place of how many it is."""

    subject: str
    expires_at_ms: float
    position: int
    certificate_count: int


class _Subject(NamedTuple):
    """What a line of the log is about: one, however many listeners have it in common."""

    text: str
    place: str
    consequence: str
    advice: str


class _Due(NamedTuple):
    """What is to be logged of a subject."""

    listeners: list[str]
    expires_at_ms: float


class Expirations:
    """States: made → `start` → looking once a minute → `stop`.

    Args:
        stores, logins: what the node has now.
        warning_days: `moldau.certificate.warning.days`.
    """

    def __init__(
        self,
        clock: Clock,
        stores: Callable[[], Iterable[WatchedStores]],
        logins: Callable[[], Iterable[WatchedLogin]],
        warning_days: int,
    ) -> None:
        self.warning_days = warning_days
        #: What the last look has found.
        self.certificates: tuple[CertificateExpiration, ...] = ()
        self.logins: tuple[tuple[WatchedLogin, LoginExpiration], ...] = ()
        self._clock = clock
        self._stores = stores
        self._logins = logins
        self._task = RestartedTask("looking at expirations", self._run)
        #: When a line was written of what is about to expire, or has expired (True).
        self._logged_ms: dict[tuple[_Subject, bool], float] = {}
        #: By the text of the stores that are in use.
        self._read: dict[str, _First | None] = {}

    def start(self) -> None:
        """Look now and from time to time, on the loop that runs."""
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        while True:
            await self.look()
            if not any(self._stores()) and not any(self._logins()):
                return  # no later setting brings TLS or SASL to a listener
            await Signal(self._clock).wait(LOOK_EVERY_MS)

    async def look(self) -> None:
        """Find out what expires when, and log what is due; on the loop of `start`."""
        stores, logins = tuple(self._stores()), tuple(self._logins())
        contexts = [(each, await each.context()) for each in stores]
        if stores:
            found = await asyncio.to_thread(_certificates, contexts, self._read)
            self.certificates, self._read = found
        if logins:
            self.logins = await asyncio.to_thread(_expiring, logins)
        self._log()

    def seconds_left(self, expires_at_ms: float) -> float:
        """From now on; negative once it has expired."""
        return (expires_at_ms - self._clock.now_ms()) / 1000

    # -- the log ---------------------------------------------------------------------------------

    def _log(self) -> None:
        now_ms = self._clock.now_ms()
        due: dict[tuple[_Subject, bool], _Due] = {}
        for subject, listener, expires_at_ms, warns_before_ms in self._subjects():
            if expires_at_ms <= now_ms + warns_before_ms:
                key = subject, expires_at_ms <= now_ms
                due.setdefault(key, _Due([], expires_at_ms)).listeners.append(listener)
        logged_ms = {key: at_ms for key, at_ms in self._logged_ms.items() if key in due}
        monotonic_ms = self._clock.monotonic_ms()
        for key, found in due.items():
            if key not in logged_ms or monotonic_ms - logged_ms[key] >= LOG_EVERY_MS:
                logged_ms[key] = monotonic_ms
                _log_line(*key, found, now_ms)
        self._logged_ms = logged_ms

    def _subjects(self) -> Iterator[tuple[_Subject, str, float, float]]:
        """What expires, the listener that it is for, when, and how long before it is logged."""
        for each in self.certificates:
            place = f"{each.key}: {each.location}" if each.location else each.key
            if each.store == TRUST_STORE:
                text, advice = f"the trusted certificate {each.subject}", _TRUST_NEXT
                consequence = "certificates that it has signed are refused"
                if each.is_read_once:
                    advice += "; the node reads it when it starts"
            else:
                kind = "certificate" if each.is_own else "authority in the chain,"
                text, advice = f"the {kind} {each.subject}", _RENEW
                consequence = "new connections fail"
            about = _Subject(text, place, consequence, advice)
            yield about, each.listener, each.expires_at_ms, self.warning_days * DAY_MS
        for watched, login in self.logins:
            lifetime_ms = login.lifetime_ms
            yield (
                _Subject(
                    f"what this node logs in with by {watched.login.mechanism}",
                    login.source,
                    "this node cannot log in to other nodes",
                    "the program that keeps it up to date has not done so",
                ),
                watched.listener,
                login.expires_at_ms,
                min(self.warning_days * DAY_MS, (lifetime_ms or 0.0) * LOGIN_SHARE),
            )


def _log_line(subject: _Subject, is_expired: bool, due: _Due, now_ms: float) -> None:
    at = datetime.datetime.fromtimestamp(due.expires_at_ms / 1000, datetime.UTC)
    names = list(dict.fromkeys(due.listeners))
    logger.log(
        logging.ERROR if is_expired else logging.WARNING,
        "listener%s %s: %s %s %s, on %s UTC (%s)%s: %s",
        "s" if len(names) > 1 else "",
        ", ".join(names),
        subject.text,
        "expired" if is_expired else "expires",
        span(abs(due.expires_at_ms - now_ms), is_past=is_expired),
        f"{at:%Y-%m-%d %H:%M}",
        subject.place,
        f", {subject.consequence}" if is_expired else "",
        subject.advice,
    )


def span(duration_ms: float, *, is_past: bool = False) -> str:
    """A duration in the largest unit of which there are two, as `in 10 days` or `3 hours ago`."""
    for unit, unit_ms in (("days", DAY_MS), ("hours", 3_600_000.0), ("minutes", 60_000.0)):
        count = round(duration_ms / unit_ms)
        if count >= 2:
            return f"{count} {unit} ago" if is_past else f"in {count} {unit}"
    return "just now" if is_past else "in a minute"


# -- what there is ---------------------------------------------------------------------------------


def _certificates(
    contexts: Iterable[tuple[WatchedStores, ssl.SSLContext]], known: Mapping[str, _First | None]
) -> tuple[tuple[CertificateExpiration, ...], dict[str, _First | None]]:
    """Blocks. What expires first of each listener and store: its own connections to other nodes
    have the stores that it has. And what was read of each text, `known` or not.
    """
    from moldau.runtime.authentication.tls import StoreContext

    found: dict[tuple[str, str, str], CertificateExpiration] = {}
    read: dict[str, _First | None] = {}
    for watched, context in contexts:
        if not isinstance(context, StoreContext):
            continue  # the system's authorities
        for store, loaded in ((KEY_STORE, context.own), (TRUST_STORE, context.trust)):
            if loaded is None:
                continue
            text = loaded.certificates
            if text not in read:
                read[text] = known[text] if text in known else _first_to_expire(text)
            first = read[text]
            if first is None:
                continue
            each = _expiration(watched, store, loaded.store, first)
            place = each.listener, each.store, each.location
            if place not in found or each.expires_at_ms < found[place].expires_at_ms:
                found[place] = each
    return tuple(found.values()), read


def _first_to_expire(text: str) -> _First | None:
    """The certificate in PEM text that expires first; None without any."""
    from moldau.runtime.authentication.tls import certificates_of
    from moldau.server.authentication.certificates import first_certificate
    from moldau.x509 import end_of, subject_name

    texts, found = certificates_of(text), []
    for position, each in enumerate(texts):
        # OpenSSL takes some more than is certificates' form. What cannot be read is left out.
        with contextlib.suppress(ValueError):
            certificate = first_certificate(each)
            end_ms = end_of(certificate).timestamp() * 1000
            found.append((end_ms, position, subject_name(certificate)))
    if not found:
        return None
    end_ms, position, subject = min(found)
    return _First(subject or "without a name", end_ms, position, len(texts))


def _expiration(
    watched: WatchedStores, store: str, source: Store, first: _First
) -> CertificateExpiration:
    in_text = "certificate.chain" if store == KEY_STORE else "certificates"
    return CertificateExpiration(
        watched.listener,
        store,
        source.location or "",
        f"{source.prefix}.{'location' if source.location else in_text}",
        first.subject,
        first.expires_at_ms,
        is_own=store == KEY_STORE and first.position == 0,
        is_read_once=isinstance(watched.contexts, ssl.SSLContext),
        certificate_count=first.certificate_count,
    )


def _expiring(
    logins: Iterable[WatchedLogin],
) -> tuple[tuple[WatchedLogin, LoginExpiration], ...]:
    """Blocks: reads files."""
    return tuple((each, found) for each in logins for found in each.login.expirations())
