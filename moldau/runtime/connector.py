"""How one node opens connections to others: by TLS, SASL, both or neither.

Owns what the connections to one listener show and check, and the pause after a peer that refused
this node, or could not prove who it is. Must not know what the connections are for, nor keep them.
Invariants: a connection that is returned is authenticated; what is wrong with a peer, or with this
node's own token, is logged once, until another problem comes or a connection is made; no attempt at
a peer is made within the pause, however many callers ask.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack

from moldau.config.backoff import backoff_ms
from moldau.runtime.authentication import AuthenticationError, TlsError
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.connection import Connection, ConnectionOptions, Login, NothingHeard
from moldau.runtime.network import AsyncioNetwork, Network
from moldau.runtime.signal import Signal

if TYPE_CHECKING:
    from moldau.runtime.authentication.store_contexts import StoreContexts

FIRST_PAUSE_MS: Final = 100.0
MOST_PAUSE_MS: Final = 1_000.0
"""Kafka's default of `reconnect.backoff.max.ms`."""

MOST_KEPT_PROBLEMS: Final = 256
"""Peers whose problems are remembered; a cluster has fewer nodes that refuse this one."""

_LOG = logging.getLogger(__name__)


class PeerRefused(ConnectionError):
    """The peer refuses this node's identity, or has not proved its own. The connector has logged
    it; later attempts may succeed, when settings, certificates or credentials have changed.
    """


class ConnectorOptions(ConnectionOptions, total=False):
    """The arguments of `Connection.connect` that callers choose."""

    connect_timeout_ms: int


class PeerSecurity(NamedTuple):
    """What connections to one listener of other nodes show and check.

    Attributes:
        listener_name: for the log.
        contexts: None without TLS.
        login: None without SASL.
    """

    listener_name: str
    contexts: StoreContexts | None = None
    login: Login | None = None


class ToldProblems:
    """The problems of peers that are logged already. Connectors of several event loops may share
    it, so that a node with two ways to the same peers says once what is wrong with them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[tuple[str, int], str] = {}

    def is_new(self, host: str, port: int, text: str) -> bool:
        """Whether to log it: not if it is the peer's last one, or one of other peers: its text
        names no peer then, and it is this node's own.
        """
        with self._lock:
            is_new = text not in self._texts.values()
            self._texts.pop((host, port), None)
            if len(self._texts) >= MOST_KEPT_PROBLEMS:
                del self._texts[next(iter(self._texts))]
            self._texts[host, port] = text
            return is_new

    def forget(self, host: str, port: int) -> bool:
        """The peer is well again; returns whether a problem of it was logged."""
        with self._lock:
            return self._texts.pop((host, port), None) is not None


@dataclass(slots=True)
class _Problem:
    failure_count: int
    until_ms: float


class Connector:
    """Opens connections to one listener of other nodes, from one event loop.

    Args:
        network, clock: the simulation's, or None for the machine's.
        security: None for PLAINTEXT.
        told: shared by the connectors of a node to the same listener; one of its own without it.
    """

    def __init__(
        self,
        network: Network | None = None,
        clock: Clock | None = None,
        security: PeerSecurity | None = None,
        told: ToldProblems | None = None,
    ) -> None:
        self._network = network or AsyncioNetwork()
        self._clock = clock or SystemClock()
        self.security = security
        self._told = told or ToldProblems()
        self._problems: dict[tuple[str, int], _Problem] = {}

    async def connect(
        self, host: str, port: int, **options: Unpack[ConnectorOptions]
    ) -> Connection:
        """An open and authenticated connection; waits for the end of the pause first.

        Raises:
            OSError, TimeoutError, RemoteProtocolError: as `Connection.connect`.
            PeerRefused: an OSError: there is no trust between this node and the peer.
        """
        problem = self._problems.get((host, port))
        if problem is not None:
            pause_ms = problem.until_ms - self._clock.monotonic_ms()
            if pause_ms > 0:
                await Signal(self._clock).wait(pause_ms)
        try:
            connection = await self._open(host, port, options)
        except (TlsError, AuthenticationError) as error:
            raise PeerRefused(self._refused(host, port, str(error))) from None
        except NothingHeard as error:
            raise NothingHeard(
                f"{error} before it said a word; is listener.security.protocol.map right?"
            ) from None
        is_well_again = self._problems.pop((host, port), None) is not None
        if is_well_again and self._told.forget(host, port):
            _LOG.info("%s:%d takes connections of this node again", host, port)
        return connection

    async def _open(self, host: str, port: int, options: ConnectorOptions) -> Connection:
        security = self.security
        context: ssl.SSLContext | None = None
        if security is not None and security.contexts is not None:
            context = await security.contexts.current()
        login = None if security is None else security.login
        if login is not None:
            await login.prepare()
        return await Connection.connect(
            self._network,
            host,
            port,
            clock=self._clock,
            ssl_context=context,
            authenticator=None if login is None else login.authenticate,
            **options,
        )

    def _refused(self, host: str, port: int, text: str) -> str:
        """Remember a problem, and log it if it is new."""
        last = self._problems.pop((host, port), None)
        failure_count = 1 if last is None else last.failure_count + 1
        pause_ms = backoff_ms(failure_count, FIRST_PAUSE_MS, MOST_PAUSE_MS)
        if len(self._problems) >= MOST_KEPT_PROBLEMS:
            del self._problems[next(iter(self._problems))]
        until_ms = self._clock.monotonic_ms() + pause_ms
        self._problems[host, port] = _Problem(failure_count, until_ms)
        if self._told.is_new(host, port, text):
            name = "" if self.security is None else f" of listener {self.security.listener_name}"
            _LOG.error("no connection%s to another node: %s", name, text)
        return text
