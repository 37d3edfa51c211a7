"""What a handler knows about the request it answers, and the one way to answer it.

Owns the view of a request that handlers get: its sender, its version, and the throttle time that
goes into its response. Must not know any API. Invariants: every context is answered exactly once,
by `respond`, `respond_nothing` or `close`; the sender of a forwarded request is its client, never
the broker that forwarded it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.server.authorizer import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    Authorizer,
    Operation,
    ResourceType,
)

if TYPE_CHECKING:
    from moldau.protocol.schema import Message
    from moldau.server.request import Request


class Sender:
    """The client behind a request, and the questions to the authorizer about it.

    Args:
        api_version: of the response; None when the response is not encoded (in process).
        timeout_ms: how long the answer may take; None for the request's own limit.
        listener_name: the listener that the request came in by.
    """

    __slots__ = (
        "api_version",
        "authorizer",
        "client_host",
        "client_id",
        "listener_name",
        "principal",
        "timeout_ms",
    )

    def __init__(
        self,
        principal: str,
        authorizer: Authorizer,
        client_id: str | None = None,
        *,
        client_host: str = "127.0.0.1",
        api_version: int | None = None,
        listener_name: str = "",
        timeout_ms: float | None = None,
    ) -> None:
        self.principal = principal
        self.authorizer = authorizer
        self.client_id = client_id
        self.client_host = client_host
        self.api_version = api_version
        self.listener_name = listener_name
        self.timeout_ms = timeout_ms

    def authorized(
        self, operation: Operation, resource_type: ResourceType, resource_name: str
    ) -> bool:
        return self.authorizer.authorize(
            self.principal, self.client_host, operation, resource_type, resource_name
        )

    def authorized_topic(self, operation: Operation, topic_name: str) -> bool:
        return self.authorizer.authorize(
            self.principal, self.client_host, operation, ResourceType.TOPIC, topic_name
        )

    def authorized_cluster(self, operation: Operation) -> bool:
        return self.authorized(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def authorized_by_resource_type(
        self, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of that type the sender may do this to (KIP-679)."""
        return self.authorizer.authorize_by_resource_type(
            self.principal, self.client_host, operation, resource_type
        )

    def authorized_operations_on(self, resource_type: ResourceType, resource_name: str) -> int:
        """What the sender may do there (KIP-430): bit n stands for the operation numbered n."""
        allowed = 0
        for operation in SUPPORTED_OPERATIONS[resource_type]:
            if self.authorized(operation, resource_type, resource_name):
                allowed |= 1 << operation
        return allowed

    def authorized_topic_operations(self, topic_name: str) -> int:
        return self.authorized_operations_on(ResourceType.TOPIC, topic_name)

    def authorized_cluster_operations(self) -> int:
        return self.authorized_operations_on(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)


class RequestContext(Sender):
    """One request in a handler's hands; outlives the handler's call when the answer comes later."""

    __slots__ = ("api_key", "received_ms", "request", "throttle_time_ms")

    api_version: int

    def __init__(self, request: Request, authorizer: Authorizer) -> None:
        connection = request.connection
        self.request = request
        self.authorizer = authorizer
        self.api_key = request.api_key
        self.api_version = request.api_version
        self.client_id = request.client_id
        self.received_ms = request.received_ms
        self.listener_name = connection.listener_name
        self.principal = connection.principal
        self.client_host = connection.client_host
        self.timeout_ms = None
        self.throttle_time_ms = 0

    @property
    def is_answered(self) -> bool:
        """Whether the request has its answer, or never gets one."""
        return self.request.is_answered

    def throttle(self, throttle_time_ms: int) -> None:
        """Ask for a pause; the longest one asked for wins."""
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)

    def throttle_at_once(self, throttle_time_ms: int) -> None:
        """Ask for a pause that begins before the answer."""
        if throttle_time_ms:
            self.throttle(throttle_time_ms)
            self.request.connection.throttle(throttle_time_ms)

    def hold_if_waiting(self) -> None:
        """Unless it is answered: give the request's bytes back, and count it among those of its
        connection that wait for a commit.
        """
        if not self.is_answered:
            self.request.release_body()
            self.request.connection.hold(self.request)

    def respond(self, message: Message) -> None:
        """Send the response in its turn on the connection; dropped when the client has gone."""
        assert not self.is_answered, "a request is answered once"
        if self.throttle_time_ms:
            message.throttle_time_ms = self.throttle_time_ms  # type: ignore[attr-defined]
            self.request.connection.throttle(self.throttle_time_ms)
        try:
            self.request.respond(message)
        finally:
            if not self.is_answered:
                # Left open, everything behind it on the connection would wait for ever.
                self.close("an answer failed inside the node")

    def respond_nothing(self) -> None:
        """Finish a request whose sender expects no response (acks=0)."""
        assert not self.is_answered, "a request is answered once"
        self.request.respond_nothing()

    def close(self, reason: str) -> None:
        """Close the connection instead of answering; `reason` goes to the log."""
        self.request.close(reason)
