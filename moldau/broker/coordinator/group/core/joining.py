"""The classic protocol's requests and errors, as groups of both kinds have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import Answerable, CoordinatorResult, Reply
from moldau.broker.coordinator.group.core.consumer_protocol import read_subscription
from moldau.broker.coordinator.group.core.context import MEMBER_BYTES, protocols_bytes, refused
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p11_join_group import JoinGroupResponse
from moldau.protocol.messages.p12_heartbeat import HeartbeatResponse
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.context import ClientInfo
    from moldau.metadata.steps import Steps
    from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest

MAX_READ_AT_ONCE: Final = 100
"""As many subscriptions are read only when a consumer group asks for them."""

UNKNOWN_MEMBER: Final = ""
FIRST_KNOWN_MEMBER_VERSION: Final = 4
"""From this version of JoinGroup on a member first gets an id, and joins with it (KIP-394)."""
NULLABLE_PROTOCOL_VERSION: Final = 7
FIRST_SKIP_ASSIGNMENT_VERSION: Final = 9
"""From this version of JoinGroup on the answer can ask the leader not to assign (KIP-814)."""

Protocols = Sequence[tuple[str, bytes]]
"""Names and metadata, in the member's order of preference."""


def join_error(error: ErrorCode, member_id: str, api_version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error,
        protocol_name=None if api_version >= NULLABLE_PROTOCOL_VERSION else "",
        member_id=member_id,
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def heartbeat_error(error: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def is_of_another_protocol(
    request: SyncGroupRequest, protocol_type: str | None, protocol_name: str | None
) -> bool:
    """Whether a SyncGroup contradicts its group; it may leave out what it does not know."""
    return any(
        told is not None and known is not None and told != known
        for told, known in (
            (request.protocol_type, protocol_type),
            (request.protocol_name, protocol_name),
        )
    )


@dataclass(slots=True, eq=False)
class Joining:
    """The request with its sender.

    Invariant: a request with very many protocols is read in steps; the operation finds the outcome.
    """

    request: JoinGroupRequest
    api_version: int
    client: ClientInfo
    reply_to: Answerable
    protocols: list[tuple[str, bytes]] = field(default_factory=list)
    _read: ConsumerProtocolSubscription | str | None = None
    """The first subscription, or the error of the first one that cannot be read."""

    @classmethod
    def read(
        cls, request: JoinGroupRequest, api_version: int, client: ClientInfo, reply_to: Answerable
    ) -> Steps[Joining]:
        """Read a request; a step for each protocol."""
        joining = cls(request, api_version, client, reply_to)
        is_many = len(request.protocols) > MAX_READ_AT_ONCE
        for each in request.protocols:
            metadata = bytes(each.metadata)
            joining.protocols.append((each.name, metadata))
            if is_many:
                joining._look_at(metadata)
            yield
        return joining

    @property
    def size_bytes(self) -> int:
        """What the member takes in memory, about."""
        instance_id = self.request.group_instance_id or ""
        names_bytes = len(instance_id) + len(self.client.client_id)
        return MEMBER_BYTES + names_bytes + protocols_bytes(self.protocols)

    @property
    def subscription(self) -> ConsumerProtocolSubscription:
        """What the member wants, by its first protocol. All of them have to be readable: the group
        may become a classic one with any of them. Raises: RemoteProtocolError.
        """
        if self._read is None:
            for _, metadata in self.protocols:
                self._look_at(metadata)
        assert self._read is not None, "a JoinGroup that goes on has protocols"
        if isinstance(self._read, str):
            raise RemoteProtocolError(self._read)
        return self._read

    def _look_at(self, metadata: bytes) -> None:
        if isinstance(self._read, str):
            return
        try:
            subscription = read_subscription(metadata)
        except RemoteProtocolError as error:
            self._read = str(error)  # the error itself would hold this object, and be held by it
            return
        if self._read is None:
            self._read = subscription

    def refusal(self, error: ErrorCode, member_id: str | None = None) -> Reply:
        """An answer with an error; it has `member_id` instead of the one in the request."""
        told = self.request.member_id if member_id is None else member_id
        return refused(
            self.reply_to, error, lambda error: join_error(error, told, self.api_version)
        )

    def refused(self, error: ErrorCode, member_id: str | None = None) -> CoordinatorResult:
        return CoordinatorResult(replies=[self.refusal(error, member_id)])
