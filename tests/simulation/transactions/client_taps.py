"""Holds clients down to transaction version 1, and watches what they are answered.

Owns: what is wrapped around the product's client. Must not: change what a client does with an
answer. Invariant: clients that are not held down run as without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moldau.client.consumer.fetcher import Fetcher
from moldau.client.producer.core.transaction_manager import TransactionManager
from moldau.metadata.features import TRANSACTION_VERSION
from moldau.runtime.connection import Connection
from tests.kit.injected_bugs import Patch
from tests.simulation.transactions.reads import check_fetched
from tests.simulation.transactions.transactional_producer import VERSION_1

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld


@contextmanager
def client_taps(world: TransactionWorld) -> Iterator[None]:
    """The taps are in force while the block runs."""
    negotiate, unanswered = Connection._negotiate, TransactionManager.unanswered
    take_partition = Fetcher._take_partition

    async def _negotiate(connection: Any) -> None:
        await negotiate(connection)
        if VERSION_1 in (connection.client_id or ""):
            for feature in connection.api_versions.finalized_features:
                if feature.name == TRANSACTION_VERSION:
                    feature.max_version_level = min(feature.max_version_level, 1)

    def _unanswered(manager: Any, ask: Any) -> Any:
        # Only version 2 distinguishes a request that arrives late from one of the next transaction.
        if not manager.is_version_2:
            world.data.excuse(manager.transactional_id)
        return unanswered(manager, ask)

    def _take_partition(fetcher: Any, state: Any, data: Any, *others: Any) -> None:
        is_committed = fetcher.is_read_committed
        world.guard(check_fetched, world, state.topic_partition, data, is_committed)
        take_partition(fetcher, state, data, *others)

    with Patch.context() as patch:
        patch.setattr(Connection, "_negotiate", _negotiate)
        patch.setattr(TransactionManager, "unanswered", _unanswered)
        patch.setattr(Fetcher, "_take_partition", _take_partition)
        yield
