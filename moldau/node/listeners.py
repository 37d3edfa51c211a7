"""Both sides of a node's listeners, from its configuration (parsed by `config.listeners`): what it
binds, and how it connects to the same listeners of other nodes. What the keys mean is in
`server/authentication`, which is loaded only by a node that has a listener which is not PLAINTEXT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.config import ConfigError, Endpoint, NodeConfig
from moldau.config.listeners import SecurityProtocol
from moldau.runtime.authentication import AuthenticationError, LoginRefused
from moldau.runtime.clock import Clock
from moldau.runtime.connector import Connector, PeerSecurity, ToldProblems
from moldau.runtime.network import Network
from moldau.server.server import ListenerSpec

if TYPE_CHECKING:
    from moldau.server.authentication.listener_security import ListenerSecurity

LOGIN_PATIENCE_S: Final = 10.0
"""How long a start waits for the first token."""

logger = logging.getLogger(__name__)


def listener_specs(
    endpoints: Iterable[Endpoint], security_of: Callable[[Endpoint], ListenerSecurity | None]
) -> list[ListenerSpec]:
    """What to bind. Blocks: reads key stores.

    Args:
        security_of: what a listener that is not PLAINTEXT asks of its clients.

    Raises:
        ConfigError: the settings of a secured listener cannot work.
    """
    specs: list[ListenerSpec] = []
    for endpoint in endpoints:
        is_open = endpoint.security_protocol is SecurityProtocol.PLAINTEXT
        security = None if is_open else security_of(endpoint)
        specs.append(ListenerSpec(*endpoint[:3], security))
    return specs


def controller_connector(config: NodeConfig, clock: Clock, told: ToldProblems) -> Connector:
    """Opens connections to controllers, by the first of `controller.listener.names`. Blocks: reads
    key stores. Raises: ConfigError: the settings cannot work.

    Args:
        told: shared by all connectors to controllers.
    """
    name, mechanism_key = config.controller_listener_names[0], "sasl.mechanism.controller.protocol"
    return Connector(None, clock, _security(config, name, mechanism_key, clock, {}), told)


async def log_in(connector: Connector) -> None:
    """Get this node's first token for a listener of other nodes, where it logs in with tokens.

    Refused, it does not start, as Apache Kafka. Where the identity provider only cannot be reached,
    it does, and goes on asking: a cluster and its provider may start at the same time.

    Raises:
        ConfigError: the identity provider refuses.
    """
    security = connector.security
    if security is None or security.login is None:
        return
    try:
        async with asyncio.timeout(LOGIN_PATIENCE_S):
            await security.login.prepare()
        return
    except LoginRefused as error:
        place = f"listener {security.listener_name}"
        raise ConfigError(place, None, f"this node gets no token to log in with: {error}") from None
    except AuthenticationError as error:
        reason = str(error)
    except TimeoutError:
        reason = f"no answer within {LOGIN_PATIENCE_S:.0f} s"
    logger.warning(
        "this node has no token for listener %s, it starts without one and asks on: %s",
        security.listener_name,
        reason,
    )


def inter_broker_connector(
    config: NodeConfig,
    own: Iterable[ListenerSpec],
    clock: Clock,
    network: Network | None = None,
    dynamic: Mapping[str, Any] | None = None,
) -> Connector:
    """Opens connections to other brokers. Blocks: reads key stores.

    Args:
        own: this broker's listeners.
        dynamic: typed values of stores by `listener.name.LISTENER.KEY`.
        network: the machine's without one.

    Raises:
        ConfigError: the settings cannot work, or this broker would refuse one like itself.
    """
    name = config.inter_broker_listener_name
    mechanism_key = "sasl.mechanism.inter.broker.protocol"
    security = _security(config, name, mechanism_key, clock, dynamic or {})
    if security is not None:
        from moldau.server.authentication.peer_security import check_own_certificate

        [own_security] = [each.security for each in own if each.name == name]
        check_own_certificate(own_security, security)
    return Connector(network, clock, security)


def _security(
    config: NodeConfig,
    listener_name: str,
    mechanism_key: str,
    clock: Clock,
    dynamic: Mapping[str, Any],
) -> PeerSecurity | None:
    if config.listener_security_protocols[listener_name] is SecurityProtocol.PLAINTEXT:
        return None
    from moldau.server.authentication.peer_security import peer_security

    return peer_security(config, listener_name, mechanism_key, dynamic, clock)


def names_of_node(config: NodeConfig) -> frozenset[str]:
    """What this node is called by others, to whom it shows a certificate. Blocks."""
    if SecurityProtocol.SSL not in config.listener_security_protocols.values():
        return frozenset()
    from moldau.server.authentication.own_names import own_names

    return own_names(config)
