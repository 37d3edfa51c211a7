"""What a node is called by others, to whom it shows its certificate."""

from __future__ import annotations

from contextlib import suppress

from moldau.config import NodeConfig
from moldau.config.listeners import SecurityProtocol
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.tls import contents
from moldau.server.authentication.certificates import (
    MappingRuleError,
    NoMatchingRule,
    PrincipalMapping,
    first_certificate,
)
from moldau.server.authentication.tls_settings import NO_VALUES, peer_tls_settings
from moldau.x509 import subject_name


def own_names(config: NodeConfig) -> frozenset[str]:
    """The node's user names on listeners between nodes where certificates say who comes. Blocks:
    reads key stores. What is wrong with one is for the listener to say.
    """
    listener_names = {*config.controller_listener_names[:1]}
    if config.is_broker:
        listener_names.add(config.inter_broker_listener_name)
    found = set()
    for name in listener_names:
        protocol = config.listener_security_protocols.get(name)
        if protocol is not SecurityProtocol.SSL:
            continue
        if config.listener_value(name, "ssl.client.auth") == "none":
            continue
        with suppress(SecuritySettingError, MappingRuleError, NoMatchingRule):
            mapping = PrincipalMapping(config.listener_value(name, "ssl.principal.mapping.rules"))
            chain, _ = contents(peer_tls_settings(config, name, NO_VALUES).own)
            if chain is not None:
                found.add(mapping.user_name(subject_name(first_certificate(chain))))
    return frozenset(found)
