"""The SASL mechanisms that are served: one row each, and the only place that lists them.

Listeners, clients, nodes towards other nodes, the checks and the meanings of configuration keys all
go by this table. A row names the package below `moldau.sasl` that has both sides of the mechanism:
its functions `login` and `offer` (see `moldau.sasl.mechanism`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class MechanismRow(NamedTuple):
    """What is known of a mechanism without its code.

    Attributes:
        family: the package, or module, below `moldau.sasl`.
        login_module: what `sasl.jaas.config` must name for it, without the Java package.
    """

    family: str
    login_module: str


MECHANISMS: Final = MappingProxyType(
    {
        "PLAIN": MechanismRow("plain", "PlainLoginModule"),
        "SCRAM-SHA-256": MechanismRow("scram", "ScramLoginModule"),
        "SCRAM-SHA-512": MechanismRow("scram", "ScramLoginModule"),
        "OAUTHBEARER": MechanismRow("oauthbearer", "OAuthBearerLoginModule"),
        "GSSAPI": MechanismRow("gssapi", "Krb5LoginModule"),
    }
)
NAMES: Final = ", ".join(MECHANISMS)
