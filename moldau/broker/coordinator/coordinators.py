"""The coordinators of a broker: made, told of metadata and ended together.

Owns their order. Must not know what they do. Invariants: they hear of an image after the replica
manager has; whoever asks coordinators on behalf of partitions ends first; the coordinator of
transactions ends before that of groups, whose partitions get its markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.coordinator import CoordinatorRuntimes
from moldau.broker.coordinator.group.coordinator import GroupCoordinator
from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transaction.verification import TransactionVerifier

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.metadata.image import MetadataDelta, MetadataImage


class Coordinators:
    """A metadata publisher; puts the coordinators into the services.

    Args:
        services: complete but for the coordinators.
        runtimes: where their state machines run; on the broker's replicas without.
    """

    def __init__(
        self, services: BrokerServices, runtimes: CoordinatorRuntimes | None = None
    ) -> None:
        if runtimes is None:
            runtimes = CoordinatorRuntimes.on_replicas(
                services.replica_manager,
                timers=services.timers,
                clock=services.clock,
                registry=services.registry,
                start=services.start,
            )
        self._groups = services.group_coordinator = GroupCoordinator(services, runtimes)
        self._transactions = services.transaction_coordinator = TransactionCoordinator(
            services, runtimes
        )
        self._verifier = services.transaction_verifier = TransactionVerifier(services)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load what is led now, unload what is not any more."""
        self._groups.on_metadata_update(delta, image)
        self._transactions.on_metadata_update(delta, image)

    async def close(self) -> None:
        """Tell everybody who waits to look for another coordinator."""
        await self._verifier.close()
        await self._transactions.close()
        await self._groups.close()
