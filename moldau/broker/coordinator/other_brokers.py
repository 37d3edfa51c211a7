"""The way from a broker's coordinators to the other brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moldau.metadata.image import MetadataImage
from moldau.runtime.connector import Connector
from moldau.runtime.leader_link import LeaderAddress, LeaderLink


class OtherBrokers(NamedTuple):
    """The other brokers, by the listener for brokers that the newest image has of each.

    Attributes:
        request_timeout_ms: after which a broker that does not answer is given up.
    """

    image: Callable[[], MetadataImage]
    listener_name: str
    connector: Connector
    request_timeout_ms: int

    def address(self, broker_id: int) -> LeaderAddress | None:
        """Where an unfenced broker listens; None without such a broker or listener."""
        registration = self.image().cluster.brokers.get(broker_id)
        if registration is None or registration.fenced:
            return None
        listener = registration.listeners.get(self.listener_name)
        return None if listener is None else LeaderAddress(broker_id, listener.host, listener.port)

    def link(self, client_id: str) -> LeaderLink:
        """A connection to one of them, which is made when it is first needed."""
        timeout_ms = self.request_timeout_ms
        return LeaderLink(
            client_id=client_id, connector=self.connector, request_timeout_ms=timeout_ms
        )
