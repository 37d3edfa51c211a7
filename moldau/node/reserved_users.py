"""Warns of users that hold a name which no client may have, from before it was reserved."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from moldau.config import NodeConfig
from moldau.config.principals import USER
from moldau.metadata.image import MetadataImage
from moldau.node.listeners import names_of_node

MAX_TOLD: Final = 20

logger = logging.getLogger(__name__)


def warn_of_reserved_users(config: NodeConfig, image: MetadataImage) -> None:
    """Name them in one line: they cannot log in. Blocks: reads key stores."""
    found = _reserved_users(config, image)
    told = list(dict.fromkeys(islice(found, MAX_TOLD)))
    if told:
        logger.warning(
            "users with reserved names, which cannot log in as clients: %s%s; give them other "
            "names (`moldau users delete` removes one of SCRAM)",
            ", ".join(told),
            ", …" if next(found, None) else "",
        )


def _reserved_users(config: NodeConfig, image: MetadataImage) -> Iterator[str]:
    own, principals = names_of_node(config), config.principals
    for user in sorted({key.user for key in image.scram.credentials}):
        if not principals.may_have_password(user, own):
            yield f"{user!r} of SCRAM"
    for endpoint in config.broker_listeners:
        name = endpoint.listener_name
        if endpoint.security_protocol.has_sasl and not config.is_between_nodes(name):
            from moldau.sasl.plain import plain_users
            from moldau.server.authentication.listener_security import mechanism_config

            for user in plain_users(mechanism_config(config, name, "PLAIN").options):
                if principals.is_reserved(user, own):
                    yield f"{user!r} of PLAIN on listener {name}"
    for owner in sorted({each.owner for each in image.delegation_tokens.tokens_by_id.values()}):
        if principals.is_reserved(owner.removeprefix(USER), own):
            yield f"{owner.removeprefix(USER)!r} of delegation tokens"
