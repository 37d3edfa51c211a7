"""Who sends the controller a request, from where, and what they may do.

Owns: the questions to the authorizer in the words of the controller's APIs. Must not: know
connections. Invariant: a forwarded request's context is its client's, never the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.server.authorizer import (
    CLUSTER_RESOURCE_NAME,
    AllowAllAuthorizer,
    Authorizer,
    Operation,
    ResourceType,
    authorized_operations,
)


@dataclass(frozen=True, slots=True)
class ControllerRequestContext:
    """One request's sender.

    `timeout_ms` None takes the request's own; `api_version` None means that the response is not
    encoded (in process); `listener_name` is the one the request came in by.
    """

    principal: str
    client_id: str | None = None
    timeout_ms: float | None = None
    client_host: str = "127.0.0.1"
    api_version: int | None = None
    listener_name: str = ""
    authorizer: Authorizer = field(default_factory=AllowAllAuthorizer)

    def authorized(
        self, operation: Operation, resource_type: ResourceType, resource_name: str
    ) -> bool:
        """Whether whoever sent the request may do this."""
        return self.authorizer.authorize(
            self.principal, self.client_host, operation, resource_type, resource_name
        )

    def authorized_cluster(self, operation: Operation) -> bool:
        """`authorized` for the cluster."""
        return self.authorized(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def authorized_topic(self, operation: Operation, topic_name: str) -> bool:
        """`authorized` for a topic."""
        return self.authorized(operation, ResourceType.TOPIC, topic_name)

    def authorized_cluster_operations(self) -> int:
        """The bit field of what the sender may do to the cluster (KIP-430)."""
        return authorized_operations(
            self.authorizer,
            self.principal,
            self.client_host,
            ResourceType.CLUSTER,
            CLUSTER_RESOURCE_NAME,
        )
