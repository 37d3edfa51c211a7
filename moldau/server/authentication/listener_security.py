"""What one listener asks of its clients, from the node's configuration.

Owns the meaning of the keys, and the making of TLS contexts, principals and sessions out of them.
Must not read from connections. Invariant: settings that cannot work are a `ConfigError` when the
node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError, Password
from moldau.config.listeners import Endpoint, SecurityProtocol
from moldau.config.principals import ANONYMOUS_USER, reserved
from moldau.config.table import LISTENER_PREFIX
from moldau.protocol.scram import HASH_NAMES, ScramKeys
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.jaas import JaasEntry, parse_jaas
from moldau.runtime.authentication.jwks import KeySource
from moldau.runtime.authentication.listener_tls import ListenerContexts
from moldau.runtime.clock import Clock, SystemClock
from moldau.server.authentication.certificates import (
    MappingRuleError,
    NoMatchingRule,
    PrincipalMapping,
    subject_name,
)
from moldau.server.authentication.core.mechanism import Mechanism, Plain
from moldau.server.authentication.core.oauthbearer import OAuthBearer
from moldau.server.authentication.core.scram import KeysOf, KnownKeys, Scram
from moldau.server.authentication.core.session import MechanismSettings, SaslSession
from moldau.server.authentication.gate import SaslGate
from moldau.server.authentication.invented_users import InventedUsers
from moldau.server.authentication.own_names import own_names
from moldau.server.authentication.tls_settings import NO_VALUES, tls_settings_of

if TYPE_CHECKING:
    from moldau.server.connection_group import ConnectionGroup, GroupMember

USER_PREFIX: Final = "user_"
NONCE_BYTES: Final = 24

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "GSSAPI": "Krb5LoginModule",
}

FindToken: TypeAlias = Callable[[str, str], KnownKeys | None]
"""The keys of a delegation token (second) for a mechanism (first); None for one that is not."""

FindKeys: TypeAlias = Callable[[str, str], ScramKeys | None]
"""The SCRAM keys of a user (second) for a mechanism (first); None for a user that has none."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL on one listener.

    Attributes:
        token_keys: the keys of OAUTHBEARER's signed tokens; None without any.
    """

    mechanisms: Mapping[str, MechanismSettings]
    max_receive_bytes: int
    refusal_delay_ms: float
    token_keys: KeySource | None = None


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
        find_token: FindToken = lambda mechanism, token_id: None,
        invented: InventedUsers | None = None,
    ) -> ListenerSecurity | None:
        """None for a PLAINTEXT listener. Blocks: reads key stores.

        Args:
            dynamic: values of stores by `listener.name.LISTENER.KEY`, before the configuration's.
            invented: keys of users of SCRAM that do not exist; those of this process without any.

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
            keys_of = partial(_keys_of, find_keys, find_token, invented or InventedUsers())
            sasl = _sasl_settings(config, name, keys_of, clock or SystemClock())
        is_refused = ANONYMOUS_USER.__eq__
        if not config.is_between_nodes(name):
            is_refused = partial(config.principals.is_reserved, own=own_names(config))
        return cls(contexts, mapping, sasl, is_refused)

    async def start(self) -> None:
        """Begin to keep up to date what is fetched, before the first client comes.

        Raises:
            ConfigError: what should be fetched is not there.
        """
        if self.sasl is not None and self.sasl.token_keys is not None:
            try:
                await self.sasl.token_keys.start()
            except SecuritySettingError as error:
                raise ConfigError("sasl.oauthbearer.jwks.endpoint.url", None, str(error)) from None

    async def close(self) -> None:
        """End what `start` began; idempotent."""
        if self.sasl is not None and self.sasl.token_keys is not None:
            await self.sasl.token_keys.close()

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
    config: NodeConfig, listener_name: str, keys_of: Callable[[str], KeysOf], clock: Clock
) -> SaslSettings:
    mechanisms: dict[str, MechanismSettings] = {}
    token_keys: KeySource | None = None
    for mechanism in config.listener_value(listener_name, "sasl.enabled.mechanisms"):
        begin: Callable[[], Mechanism]
        entry = jaas_entry(config, listener_name, mechanism)
        if mechanism == "OAUTHBEARER":
            from moldau.server.authentication.bearer_tokens import token_check

            options = {} if entry is None else entry.options
            check = token_check(config, listener_name, options, clock)
            token_keys = check.keys
            begin = partial(OAuthBearer, check)
        elif mechanism == "GSSAPI":
            from moldau.server.authentication.kerberos_listener import kerberos_beginner

            key = jaas_key(listener_name, mechanism)
            begin = kerberos_beginner(config, listener_name, key, entry)
        else:
            begin = _beginner(config, listener_name, mechanism, entry, keys_of)
        mechanisms[mechanism] = MechanismSettings(
            begin,
            float(config.listener_value(listener_name, "connections.max.reauth.ms", mechanism)),
        )
    return SaslSettings(
        mechanisms,
        config.listener_value(listener_name, "sasl.server.max.receive.size"),
        float(config.get_int("connection.failed.authentication.delay.ms")),
        token_keys,
    )


def _beginner(
    config: NodeConfig,
    listener_name: str,
    mechanism: str,
    entry: JaasEntry | None,
    keys_of: Callable[[str], KeysOf],
) -> Callable[[], Mechanism]:
    handler_key = "sasl.server.callback.handler.class"
    handler = config.listener_value(listener_name, handler_key, mechanism)
    if handler is not None:
        reason = f"listener {listener_name}: server-side plug-ins are not served for {mechanism}"
        raise ConfigError(handler_key, handler, reason)
    if mechanism == "PLAIN":
        if entry is None:
            key = jaas_key(listener_name, mechanism)
            raise ConfigError(
                key, None, 'is needed: PlainLoginModule required user_NAME="PASSWORD" …;'
            )
        return partial(Plain, plain_users(entry))
    hash_name, of_mechanism = HASH_NAMES[mechanism], keys_of(mechanism)
    return lambda: Scram(hash_name, of_mechanism, secrets.token_urlsafe(NONCE_BYTES))


def _keys_of(
    find_keys: FindKeys, find_token: FindToken, invented: InventedUsers, mechanism: str
) -> KeysOf:
    """Keys for every user and token: a client cannot tell what does not exist from a wrong
    password.
    """

    def keys_of(name: str, is_token: bool) -> KnownKeys:
        # Also where the name is known: that must not take another time.
        if is_token:
            unknown = KnownKeys(invented.token_keys(mechanism, name), None)
            return find_token(mechanism, name) or unknown
        unknown = KnownKeys(invented.keys(mechanism, name), None)
        found = find_keys(mechanism, name)
        return unknown if found is None else KnownKeys(found, name)

    return keys_of


def plain_users(entry: JaasEntry) -> dict[str, str]:
    """The users of PLAIN, and their passwords."""
    return {
        name.removeprefix(USER_PREFIX): password
        for name, password in entry.options.items()
        if name.startswith(USER_PREFIX)
    }


def jaas_key(listener_name: str, mechanism: str) -> str:
    """The whole name of `sasl.jaas.config` for a mechanism on a listener."""
    return f"{LISTENER_PREFIX}{listener_name.lower()}.{mechanism.lower()}.sasl.jaas.config"


def jaas_entry(config: NodeConfig, listener_name: str, mechanism: str) -> JaasEntry | None:
    """The login module of a mechanism on a listener. A listener of SCRAM needs none: its users are
    in the metadata. Raises: ConfigError.
    """
    key = jaas_key(listener_name, mechanism)
    value = config.listener_value(listener_name, "sasl.jaas.config", mechanism)
    return jaas_entry_of(key, value, mechanism)


def jaas_entry_of(key: str, value: Password | None, mechanism: str) -> JaasEntry | None:
    """The login module that a key names; it must be the mechanism's. Raises: ConfigError."""
    if value is None:
        return None
    try:
        entry = parse_jaas(value.value)
    except SecuritySettingError as error:
        raise ConfigError(key, None, str(error)) from None
    if entry.module != _MODULES[mechanism]:
        raise ConfigError(key, None, f"{mechanism} needs {_MODULES[mechanism]}")
    return entry
