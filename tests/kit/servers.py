"""Where a cluster is, and what lets a client in.

Owns nothing. Invariant: a plain address needs nothing more than itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self


class Servers(str):
    """`bootstrap.servers` of a secured cluster.

    Attributes:
        plain: addresses where the test itself, which no client of a user is, needs no login.
        settings: what a client needs now, by librdkafka's names; it may be another user next time.
    """

    plain: str
    settings: Callable[[], Mapping[str, str]]

    @classmethod
    def of(cls, servers: str, plain: str, settings: Callable[[], Mapping[str, str]]) -> Self:
        made = cls(servers)
        made.plain, made.settings = plain, settings
        return made


def connecting(servers: str) -> dict[str, Any]:
    """The settings with which a client of librdkafka connects."""
    own = servers.settings() if isinstance(servers, Servers) else {}
    return {"bootstrap.servers": str(servers), **own}


def plain_of(servers: str) -> str:
    """Where no login is needed."""
    return servers.plain if isinstance(servers, Servers) else servers
