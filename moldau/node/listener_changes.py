"""What changes while a node runs (KIP-226): certificates, the key and trust stores of its listeners
(KIP-978), when their configuration changes, and when it renews its Kerberos tickets.

Owns which settings each listener with TLS has now; `runtime.authentication.store_contexts` looks
for changed files. Must not accept connections. Invariants: what a broker is asked for is tried
before it is stored; stored settings that cannot be used are logged, and the listener keeps what it
has; what is tried is what is used, whatever becomes of the files; connections that exist stay as
they are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.config import Endpoint, NodeConfig, dynamic_listener_values, effective_broker_config
from moldau.config.definition import ConfigError
from moldau.metadata.image import ConfigResource, ConfigResourceType, MetadataDelta, MetadataImage
from moldau.metadata.scram_users import ScramUsers
from moldau.node.listeners import inter_broker_connector
from moldau.runtime.clock import Clock
from moldau.runtime.connector import Connector, PeerSecurity
from moldau.runtime.network import Network
from moldau.server.server import ListenerSpec

if TYPE_CHECKING:
    from moldau.runtime.authentication.listener_tls import ListenerContexts
    from moldau.runtime.authentication.store_contexts import StoreContexts
    from moldau.server.authentication.listener_security import ListenerSecurity

logger = logging.getLogger(__name__)


def contexts_of(peers: PeerSecurity) -> Iterator[tuple[str, StoreContexts | ssl.SSLContext]]:
    """Those of connections to other nodes, and to the provider of this node's tokens."""
    if peers.contexts is not None:
        yield peers.listener_name, peers.contexts
    if peers.login is not None and peers.login.context is not None:
        yield peers.listener_name, peers.login.context


class ListenerChanges:
    """Those of a broker, as a metadata publisher, or those of a controller, by `take`."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._own = ConfigResource(ConfigResourceType.BROKER, str(config.node_id))
        self._contexts: dict[Endpoint, ListenerContexts] = {}
        #: What listeners trust identity providers by.
        self._providers: list[tuple[str, ssl.SSLContext]] = []
        #: Of connections to other brokers, None with PLAINTEXT.
        self.peers: PeerSecurity | None = None
        #: The values that connections to other brokers are made with.
        self._values: Mapping[str, Any] = {}
        self._running: set[asyncio.Task[object]] = set()

    def security_of(
        self,
        endpoint: Endpoint,
        image: MetadataImage,
        users: ScramUsers,
        clock: Clock | None = None,
    ) -> ListenerSecurity | None:
        """What a listener asks of its clients as the node starts. Blocks: reads key stores.

        Raises:
            ConfigError: the settings of the node's configuration cannot work.
        """
        from moldau.server.authentication.listener_security import ListenerSecurity

        dynamic = dynamic_listener_values(image.configs.get(*self._own))
        make = partial(ListenerSecurity.of, self._config, endpoint, users, clock=clock)
        try:
            security = make(dynamic)
            if endpoint.listener_name == self._config.inter_broker_listener_name:
                if dynamic and security is not None and security.contexts is not None:
                    from moldau.server.authentication.tls_changes import check_between_brokers

                    check_between_brokers(self._config, security.contexts.last, dynamic)
                self._values = dynamic
        except ConfigError as error:
            if not dynamic:
                raise
            logger.error("dynamic configuration is left out at this start: %s", error)
            security = make({})
        if security is not None and security.contexts is not None:
            self._contexts[endpoint] = security.contexts
        for context in () if security is None else security.provider_contexts():
            self._providers.append((endpoint.listener_name, context))
        return security

    def connector(
        self, own: Iterable[ListenerSpec], clock: Clock, network: Network | None
    ) -> Connector:
        """Opens connections to other brokers, with the stores of the inter-broker listener as they
        are now. Blocks: reads key stores. Raises: ConfigError: as `inter_broker_connector`.
        """
        made = inter_broker_connector(self._config, own, clock, network, self._values)
        self.peers = made.security
        return made

    def contexts(self) -> Iterator[tuple[str, StoreContexts | ssl.SSLContext]]:
        """Those of the listeners with TLS by name, of connections to other brokers, and to identity
        providers.
        """
        for endpoint, contexts in [*self._contexts.items()]:  # another thread may be starting it
            yield endpoint.listener_name, contexts
        yield from [*self._providers]
        if self.peers is not None:
            yield from contexts_of(self.peers)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._own not in delta.configs_delta.changes:
            return
        own, peers = image.configs.get(*self._own), self.peers
        if peers is not None:
            from moldau.server.authentication.peer_security import change_login

            change_login(self._config, peers, effective_broker_config(self._config, {}, own))
        if self._contexts:
            self._change_stores(dynamic_listener_values(own), peers)

    def _change_stores(self, dynamic: Mapping[str, Any], peers: PeerSecurity | None) -> None:
        from moldau.runtime.authentication.tls import client_context
        from moldau.server.authentication.tls_settings import peer_tls_settings

        for endpoint, contexts in self._contexts.items():
            self._start(self._change(endpoint, contexts, dynamic))
        if peers is not None and peers.contexts is not None:
            name = self._config.inter_broker_listener_name
            settings = peer_tls_settings(self._config, name, dynamic)
            if settings != peer_tls_settings(self._config, name, self._values):
                stores = (settings.own, settings.trust)
                self._start(peers.contexts.replace(partial(client_context, settings), stores))
        self._values = dynamic

    def check(self, wanted: Mapping[str, str]) -> None:
        """Try what this broker's dynamic configuration shall be. Blocks: reads key stores.

        Raises:
            ConfigError: a listener cannot work with it, or must not have such a certificate.
        """
        if not self._contexts:
            return
        from moldau.server.authentication.tls_changes import check_change

        dynamic = dynamic_listener_values(wanted)
        for endpoint, contexts in self._contexts.items():
            check_change(self._config, endpoint, contexts, dynamic)

    async def take(self, dynamic: Mapping[str, Any]) -> None:
        """Try other settings and have them, or log why the listeners keep theirs: for a node that
        learns of them when they are stored, as Apache Kafka's controllers do.

        Args:
            dynamic: typed values by `listener.name.LISTENER.KEY`.
        """
        for endpoint, contexts in self._contexts.items():
            await self._change(endpoint, contexts, dynamic)

    async def _change(
        self, endpoint: Endpoint, contexts: ListenerContexts, dynamic: Mapping[str, Any]
    ) -> None:
        from moldau.server.authentication.tls_changes import check_made
        from moldau.server.authentication.tls_settings import tls_settings_of

        await contexts.change(
            tls_settings_of(self._config, endpoint, dynamic),
            partial(check_made, self._config, endpoint, contexts, dynamic),
        )

    def _start(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
