"""The protocols that a JoinGroup names, read before its operation.

Owns: how they are kept, and whether all of them can be read as consumers' subscriptions. Must not:
look at groups. Invariant: a request with very many of them is read in steps; the operation finds
the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.group.core.consumer_protocol import read_subscription
from moldau.protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from moldau.metadata.steps import Steps
    from moldau.protocol.messages.consumer_protocol import (
        ConsumerProtocolSubscription,
    )
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest

MAX_READ_AT_ONCE: Final = 100
"""As many subscriptions are read only when a consumer group asks for them."""


class JoiningProtocols:
    """Names and metadata, in the member's order of preference."""

    __slots__ = ("_read", "named")

    def __init__(self) -> None:
        self.named: list[tuple[str, bytes]] = []
        self._read: list[ConsumerProtocolSubscription | RemoteProtocolError] = []
        """The first subscription, if all that were looked at can be read, or else what is wrong."""

    @property
    def subscription(self) -> ConsumerProtocolSubscription:
        """What the member wants, by its first protocol. All of them have to be readable: the group
        may become a classic one with any of them.

        Raises:
            RemoteProtocolError: one cannot be read.
        """
        if not self._read:
            for _, metadata in self.named:
                self._look_at(metadata)
        (outcome,) = self._read
        if isinstance(outcome, RemoteProtocolError):
            raise outcome
        return outcome

    def _look_at(self, metadata: bytes) -> None:
        if self._read and isinstance(self._read[0], RemoteProtocolError):
            return
        try:
            subscription = read_subscription(metadata)
        except RemoteProtocolError as error:
            self._read = [error]
            return
        if not self._read:
            self._read.append(subscription)

    @classmethod
    def of(cls, request: JoinGroupRequest) -> Steps[JoiningProtocols]:
        """Those of a request; a step for each."""
        protocols = cls()
        is_many = len(request.protocols) > MAX_READ_AT_ONCE
        for each in request.protocols:
            metadata = bytes(each.metadata)
            protocols.named.append((each.name, metadata))
            if is_many:
                protocols._look_at(metadata)
            yield
        return protocols
