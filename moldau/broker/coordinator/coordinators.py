"""The coordinators of a broker: made, told of metadata and ended together.

Owns their order. Invariants: they learn of an image after the replica manager; the verifier, which
asks coordinators on behalf of partitions, ends first; the transaction coordinator ends before the
group coordinator, whose partitions get its markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.coordinator.group.coordinator import GroupCoordinator
from moldau.broker.coordinator.replica_partitions import replica_ports
from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transaction.verification import TransactionVerifier

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.metadata.image import MetadataDelta, MetadataImage


class Coordinators:
    """A metadata publisher; puts the coordinators into the services.

    Args:
        services: complete but for the coordinators.
    """

    def __init__(self, services: BrokerServices) -> None:
        ports = replica_ports(
            services.replica_manager,
            timers=services.timers,
            clock=services.clock,
            registry=services.registry,
            start=services.start,
        )
        self._groups = services.group_coordinator = GroupCoordinator(services, ports)
        self._transactions = services.transaction_coordinator = TransactionCoordinator(
            services, ports
        )
        self._verifier = services.transaction_verifier = TransactionVerifier(services)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load the partitions that this broker leads now, unload the others."""
        self._groups.on_metadata_update(delta, image)
        self._transactions.on_metadata_update(delta, image)

    async def close(self) -> None:
        """Send all waiting clients to another coordinator."""
        await self._verifier.close()
        await self._transactions.close()
        await self._groups.close()
