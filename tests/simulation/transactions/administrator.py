"""The administrator of this simulation: moves leaders, and what upheavals ask of it.

Owns: requests about topics, partitions and feature levels, repeated until their outcome is known.
Must not: choose when. Invariants: one topic is deleted and created again at a time; a level that
was changed can be changed back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.metadata.features import GROUP_VERSION, TRANSACTION_VERSION
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.kit.seeds import Violation
from tests.simulation.replication.administrator import Administrator
from tests.simulation.replication.cluster_link import NO_ANSWER
from tests.simulation.transactions.coordinator_link import GROUP, TRANSACTION, CoordinatorLink

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

UPGRADE, SAFE_DOWNGRADE = 1, 2
RETRY_MS = 200.0


class TransactionAdministrator(Administrator):
    """Moves partitions and leaders about, the coordinators' too, by itself; the rest when asked."""

    world: TransactionWorld

    _changes_under_way = 0

    def actions(self) -> Any:
        return (self._reassign, self._elect)

    @property
    def is_changing(self) -> bool:
        """Whether something that it was asked for is not done yet."""
        return self._changes_under_way > 0

    async def grow_internal_topic(self) -> None:
        """Ask for more partitions where keys are placed by their number. Raises Violation when it
        is granted.
        """
        topic = self.random.choice((CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic))
        error = await self._grow(topic)
        if error is ErrorCode.NONE:
            raise Violation("internal-topic-grew", topic)

    async def make_internal_topics(self) -> None:
        """As clients do: by asking for coordinators until there are some."""
        link = CoordinatorLink(
            self.world.loop,
            self.process,
            self.world.fabric.port_of(self.process, self.host),
            self.random,
            self.world.broker_addresses,
        )
        for kind in (GROUP, TRANSACTION):
            while await link.find(kind, "any") is None:
                await self.world.loop.elapse(100.0)

    # -- upheavals -------------------------------------------------------------------------------

    async def recreate(self) -> None:
        if self._changes_under_way:
            return
        self._changes_under_way += 1
        await super().recreate()
        self._changes_under_way -= 1

    async def grow_topic(self, topic: str) -> None:
        """One partition more, or whatever became of it."""
        if self._changes_under_way:
            return
        self._changes_under_way += 1
        if await self._grow(topic) is ErrorCode.NONE:
            self.world.counts["topics_grown"] += 1
        self._changes_under_way -= 1
        self.world.note_partitions()

    async def _grow(self, topic: str) -> ErrorCode | None:
        """Ask once; None without an answer."""
        count = self.world.partition_count(topic) + 1
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=1_500,
        )
        try:
            result = (await self._ask(request)).results[0]
        except (ControllerUnavailable, *NO_ANSWER):
            self.world.counts["undecided"] += 1
            return None
        self._expect(result.error_code)
        error = ErrorCode.of(result.error_code)
        self.world.counts[f"grow {error.name}"] += 1
        return error

    async def change_level(self, feature: str, level: int) -> bool:
        """Ask once for a level of a feature; whether the answer says that it is finalized."""
        current = self.world.level_of(feature)
        if level == current:
            return True
        update = FeatureUpdateKey(
            feature=feature,
            max_version_level=level,
            upgrade_type=UPGRADE if level > current else SAFE_DOWNGRADE,
        )
        try:
            response = await self._ask(
                UpdateFeaturesRequest(timeout_ms=1_500, feature_updates=[update])
            )
        except (ControllerUnavailable, *NO_ANSWER):
            self.world.counts["undecided"] += 1
            return False
        self._expect(response.error_code)
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.NONE:
            self.world.note(f"{feature} is at level {level}")
            self.world.counts["level_changes"] += 1
        elif error is not ErrorCode.INVALID_UPDATE_VERSION:  # which another change is ahead of
            self.world.counts[f"level {error.name}"] += 1
        return error is ErrorCode.NONE

    async def restore_levels(self) -> None:
        """The levels that the run began with, however long it takes."""
        for feature in (TRANSACTION_VERSION, GROUP_VERSION):
            wanted = self.world.first_levels.get(feature)
            while wanted is not None and self.world.level_of(feature) != wanted:
                if not await self.change_level(feature, wanted):
                    await self.world.loop.elapse(RETRY_MS)
                await self.world.loop.elapse(5.0)
