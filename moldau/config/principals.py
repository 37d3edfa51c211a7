"""Who the cluster's nodes are, and which names no client may have.

Must not decide what a node may do (`server.standard_authorizer` does). Invariants: a name that is
reserved is no client's, whichever way it is made; a pattern never names every principal.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from moldau.config.definition import ConfigError

KEY: Final = "moldau.node.principals"
USER: Final = "User:"
NODES_OF_OLD: Final = "User:nodes"
"""All nodes of a cluster that an earlier `--secure` has made; it is a super user there."""
ANONYMOUS_USER: Final = "ANONYMOUS"
RESERVED_NAMES: Final = frozenset({ANONYMOUS_USER, NODES_OF_OLD.removeprefix(USER)})
"""What clients without a name are called, and the name above."""


class NodePrincipals:
    """What `moldau.node.principals` says.

    Args:
        text: principals with semicolons between them; `*` stands for any characters but a comma.
        log_in_by_scram: whether nodes are users of SCRAM to one another.

    Raises:
        ConfigError: an entry that is not TYPE:NAME, or names every principal of its type.
    """

    __slots__ = ("_log_in_by_scram", "_pattern")

    def __init__(self, text: str, *, log_in_by_scram: bool = False) -> None:
        self._log_in_by_scram = log_in_by_scram
        entries = [each for each in (part.strip() for part in text.split(";")) if each]
        for entry in entries:
            kind, _, name = entry.partition(":")
            if not kind or not name.strip("*, "):
                raise ConfigError(KEY, text, f"{entry!r} is not TYPE:NAME, as User:CN=*,OU=nodes")
        patterns = ("[^,]+".join(map(re.escape, each.split("*"))) for each in entries)
        self._pattern = re.compile("|".join(patterns)) if entries else None

    def __bool__(self) -> bool:
        """Whether any principal is a node's."""
        return self._pattern is not None

    def is_node(self, principal: str) -> bool:
        """Whether this is a node's: `User:NAME`."""
        return self._pattern is not None and self._pattern.fullmatch(principal) is not None

    def is_reserved(self, user: str, own: Collection[str] = ()) -> bool:
        """Whether no client may have this name.

        Args:
            own: what this node is called by others.
        """
        return user in RESERVED_NAMES or user in own or self.is_node(USER + user)

    def may_have_password(self, user: str, own: Collection[str] = ()) -> bool:
        """Whether there may be a user of SCRAM with this name: a node's, where nodes log in so."""
        is_fixed = user in RESERVED_NAMES or user in own
        return not is_fixed and (self._log_in_by_scram or not self.is_node(USER + user))


def reserved(user: str) -> str:
    """Why a client with this name is refused."""
    return f"{user!r} is a reserved name, which no client may have"
