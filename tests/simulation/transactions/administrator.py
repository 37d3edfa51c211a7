"""The administrator of this simulation: moves leaders, and what upheavals ask of it.

Owns: requests about topics, partitions and feature levels, repeated until their outcome is known.
Must not: choose when. Invariants: one topic is deleted and created again at a time; a level that
was changed can be changed back.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from moldau.broker.api.forwarding import FORWARD_SLACK_MS
from moldau.client import FeatureUpdate, NewPartitions, UpgradeType
from moldau.client.admin.calls import OPERATION_TIMEOUT_MS
from moldau.client.cluster.coordinators import Coordinators, KeyType
from moldau.client.errors import KafkaError, NoBrokerAvailable, RequestTimeout
from moldau.metadata.features import GROUP_VERSION, TRANSACTION_VERSION
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from tests.kit.seeds import Violation
from tests.simulation.replication.administrator import Administrator

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

RETRY_MS = 200.0

LATEST_MS = 5_000.0 + OPERATION_TIMEOUT_MS + FORWARD_SLACK_MS
"""Without faults, how long what it was asked for may still be done: it tries for so long, and a
broker forwards a request that its client has given up, as Apache Kafka's do, once a controller
leads again."""


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
        coordinators = Coordinators(self.brokers._client)
        for kind in KeyType:
            while isinstance((await coordinators.find(kind, ["any"]))["any"], KafkaError):
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
        """Ask for one partition more; None when it may have been granted or not."""
        before = self.world.partition_count(topic)
        asked = NewPartitions(before + 1)
        error = await self._outcome(self.brokers.create_partitions({topic: asked}))
        if error is not None:
            self.world.counts[f"grow {error.name}"] += 1
        if error is ErrorCode.NONE and 0 < self.world.partition_count(topic) <= before:
            raise Violation("answered-uncommitted", f"{topic} has {before} partitions still")
        return error

    async def _outcome(self, call: Awaitable[None]) -> ErrorCode | None:
        """The outcome of a call; None when it may have been granted or not."""
        try:
            await call
        except (RequestTimeout, NoBrokerAvailable):
            self.world.counts["undecided"] += 1
            return None
        except KafkaError as error:
            self._expect(error.code)
            return error.code
        return ErrorCode.NONE

    async def change_level(self, feature: str, level: int) -> bool:
        """Ask for a level of a feature; whether the answer says that it is finalized."""
        current = self.world.level_of(feature)
        if level == current:
            return True
        kind = UpgradeType.UPGRADE if level > current else UpgradeType.SAFE_DOWNGRADE
        update = FeatureUpdate(level, kind)
        error = await self._outcome(self.brokers.update_features({feature: update}))
        if error is ErrorCode.NONE:
            self.world.note(f"{feature} is at level {level}")
            self.world.counts["level_changes"] += 1
        elif error not in (None, ErrorCode.INVALID_UPDATE_VERSION):  # another change is ahead
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

    async def keep_levels(self) -> None:
        """Restore them again when a change is made late, after faults have ended."""
        until = self.world.loop.time() + LATEST_MS / 1000
        while self.world.loop.time() < until:
            await self.restore_levels()
            await self.world.loop.elapse(RETRY_MS)
