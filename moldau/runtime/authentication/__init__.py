"""TLS contexts of both sides; here what can be wrong with an identity, by TLS or by SASL.

None of these errors is a passing fault. The modules of this package read settings; connections are
opened by their callers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PLAINTEXT_ADVICE: Final = (
    "set security.protocol to PLAINTEXT or SASL_PLAINTEXT (between nodes it is in "
    "listener.security.protocol.map), or use the port of a TLS listener"
)
TLS_ADVICE: Final = (
    "set security.protocol to SSL or SASL_SSL (between nodes it is in "
    "listener.security.protocol.map), or use the port of a plaintext listener"
)

_PASSING_STATUSES: Final = frozenset({408, 425, 429})
_LASTING_STATUSES: Final = frozenset({501, 505})


class AuthenticationError(Exception):
    """The peer refuses our credentials or mechanism, or could not prove its own identity."""


class LoginRefused(AuthenticationError):
    """An identity provider refuses what it is shown, or is none: the same again does not help."""


def is_lasting_status(status: int) -> bool:
    """Whether an HTTP request that is answered with this status is of no use a second time: as for
    Apache Kafka after most of 4xx, and after a redirection, which is not followed.
    """
    is_of_client = 300 <= status < 500 and status not in _PASSING_STATUSES
    return is_of_client or status in _LASTING_STATUSES


class LoginExpiration(NamedTuple):
    """The end of something that this process logs in with and that others keep up to date.

    Attributes:
        source: which it is, as `token file /run/token`.
        lifetime_ms: from its beginning to its end; None when that is not known.
    """

    source: str
    expires_at_ms: float
    lifetime_ms: float | None = None


class TlsError(Exception):
    """No TLS connection came about, for a reason that trying again does not change."""


class SecuritySettingError(ValueError):
    """Keys, certificates or credentials that cannot be used; the text says which and why."""


class StoreUnreadable(SecuritySettingError):
    """A store that the machine does not let us read at this moment; a later attempt may succeed."""
