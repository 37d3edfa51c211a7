"""What one listener asks of its clients, from the node's configuration.

Owns the meaning of the keys, and the making of TLS contexts, principals and sessions out of them.
Must not read from connections. Invariant: settings that cannot work are a `ConfigError` when the
node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError, Password
from moldau.config.listeners import Endpoint, SecurityProtocol
from moldau.config.principals import ANONYMOUS_USER, reserved
from moldau.config.table import LISTENER_PREFIX
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.listener_tls import ListenerContexts
from moldau.runtime.clock import Clock, SystemClock
from moldau.sasl.jaas import JaasEntry
from moldau.sasl.mechanism import FindKeys, MechanismConfig, Offer, login_module_of, offer
from moldau.server.authentication.certificates import (
    MappingRuleError,
    NoMatchingRule,
    PrincipalMapping,
)
from moldau.server.authentication.core.session import SaslSession
from moldau.server.authentication.gate import SaslGate
from moldau.server.authentication.own_names import own_names
from moldau.server.authentication.tls_settings import NO_VALUES, tls_settings_of
from moldau.x509 import subject_name

if TYPE_CHECKING:
    from moldau.sasl.oauthbearer.jwks import KeySource
    from moldau.server.connection_group import ConnectionGroup, GroupMember


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL on one listener."""

    mechanisms: Mapping[str, Offer]
    max_receive_bytes: int
    refusal_delay_ms: float


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """One listener that is not PLAINTEXT.

    Attributes:
        contexts: None without TLS.
        mapping: makes user names of certificates' subjects.
        sasl: None without SASL.
        is_refused: whether no client may come by this name.
    """

    contexts: ListenerContexts | None
    mapping: PrincipalMapping
    sasl: SaslSettings | None
    is_refused: Callable[[str], bool]

    @classmethod
    def of(
        cls,
        config: NodeConfig,
        endpoint: Endpoint,
        find_keys: FindKeys,
        dynamic: Mapping[str, Any] = NO_VALUES,
        clock: Clock | None = None,
    ) -> ListenerSecurity | None:
        """None for a PLAINTEXT listener. Blocks: reads key stores.

        Args:
            find_keys: the users of SCRAM.
            dynamic: values of stores by `listener.name.LISTENER.KEY`, before the configuration's.

        Raises:
            ConfigError: the settings cannot work.
        """
        protocol, name = endpoint.security_protocol, endpoint.listener_name
        if protocol is SecurityProtocol.PLAINTEXT:
            return None
        contexts = _contexts(config, endpoint, dynamic) if protocol.has_tls else None
        rules: str = config.listener_value(name, "ssl.principal.mapping.rules")
        try:
            mapping = PrincipalMapping(rules)
        except MappingRuleError as error:
            raise ConfigError(
                "ssl.principal.mapping.rules", rules, f"listener {name}: {error}"
            ) from None
        sasl = None
        if protocol.has_sasl:
            sasl = _sasl_settings(config, name, find_keys, clock)
        is_refused = ANONYMOUS_USER.__eq__
        if not config.is_between_nodes(name):
            is_refused = partial(config.principals.is_reserved, own=own_names(config))
        return cls(contexts, mapping, sasl, is_refused)

    async def start(self) -> None:
        """Begin to keep up to date what is fetched, before the first client comes.

        Raises:
            ConfigError: what should be fetched is not there.
        """
        for keys in self._token_keys():
            await keys.start()

    async def close(self) -> None:
        """End what `start` began; idempotent."""
        for keys in self._token_keys():
            await keys.close()

    def provider_contexts(self) -> list[ssl.SSLContext]:
        """Those of TLS towards identity providers that have a trust store."""
        return [each.context for each in self._token_keys() if each.context is not None]

    def _token_keys(self) -> list[KeySource]:
        offers = () if self.sasl is None else self.sasl.mechanisms.values()
        return [each.keys for each in offers if each.keys is not None]

    def greet(self, connection: GroupMember, group: ConnectionGroup) -> str | None:
        """Give a new connection its principal, or the gate that will; returns why it cannot stay,
        else None.
        """
        if self.sasl is not None:
            connection.gate = SaslGate(
                SaslSession(self.sasl.mechanisms, self.is_refused),
                connection,
                group,
                max_receive_bytes=self.sasl.max_receive_bytes,
                refusal_delay_ms=self.sasl.refusal_delay_ms,
            )
            return None
        tls = connection.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate is not None:
            try:
                user = self.mapping.user_name(subject_name(certificate))
            except NoMatchingRule as error:
                return str(error)
            if self.is_refused(user):
                return reserved(user)
            connection.authenticate(f"User:{user}")
        return None


def _contexts(
    config: NodeConfig, endpoint: Endpoint, dynamic: Mapping[str, Any]
) -> ListenerContexts:
    name = endpoint.listener_name
    try:
        return ListenerContexts(tls_settings_of(config, endpoint, dynamic), name)
    except SecuritySettingError as error:
        raise ConfigError(f"listener {name}", None, str(error)) from None


def _sasl_settings(
    config: NodeConfig, listener_name: str, find_keys: FindKeys, clock: Clock | None
) -> SaslSettings:
    return SaslSettings(
        {
            each: offer(mechanism_config(config, listener_name, each, clock, find_keys))
            for each in config.listener_value(listener_name, "sasl.enabled.mechanisms")
        },
        config.listener_value(listener_name, "sasl.server.max.receive.size"),
        float(config.get_int("connection.failed.authentication.delay.ms")),
    )


def mechanism_config(
    config: NodeConfig,
    listener_name: str,
    mechanism: str,
    clock: Clock | None = None,
    find_keys: FindKeys | None = None,
) -> MechanismConfig:
    """How a mechanism is configured on a listener of this node's, or of other nodes'. Raises:
    ConfigError.
    """

    def value(key: str) -> Any:
        found = config.listener_value(listener_name, key, mechanism) if key in config else None
        return found.value if isinstance(found, Password) else found

    jaas_key = f"{LISTENER_PREFIX}{listener_name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    return MechanismConfig(
        mechanism,
        value,
        checked_login_module(jaas_key, value("sasl.jaas.config"), mechanism),
        clock or SystemClock(),
        f"listener {listener_name}",
        jaas_key,
        find_keys=find_keys,
    )


def checked_login_module(key: str, text: str | None, mechanism: str) -> JaasEntry | None:
    """The login module that a key names; it must be the mechanism's. Raises: ConfigError."""
    try:
        return login_module_of(text, mechanism)
    except SecuritySettingError as error:
        raise ConfigError(key, None, str(error)) from None
