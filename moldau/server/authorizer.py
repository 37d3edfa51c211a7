"""Who may do what: the question that handlers ask, and the answer without rules
(`standard_authorizer` has them). An answer depends on the arguments and the rules in force alone,
so asking twice does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.access_control import Operation, ResourceType

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.metadata.image.security import EntryChanges
    from moldau.server.audit_log import DecisionLog, Rule


class Authorizer:
    """Decides about one operation of one principal on one resource. This one has no rules: every
    principal may do everything, as in Kafka without `authorizer.class.name`.
    """

    __slots__ = ()

    log: DecisionLog | None = None
    """Where decisions are logged; None where there is nothing to decide."""

    def authorize(
        self,
        principal: str,
        client_host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> bool:
        """True when `principal`, coming from `client_host` (an address in its canonical form), may
        do this.
        """
        return True

    def rule(
        self,
        principal: str,
        client_host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> Rule:
        """Why `authorize` answers as it does."""
        raise NotImplementedError("there is no rule, and no log to tell it")

    def change(self, entries: EntryChanges) -> None:
        """Decide by these entries, too, from now on; None takes one away."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Decide by the entries of `image`, which are those before it with the delta's changes."""
        self.change(delta.acls_delta.changes)

    def authorize_by_resource_type(
        self, principal: str, client_host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """True when the principal may do this to at least one resource of that type (KIP-679)."""
        return True
