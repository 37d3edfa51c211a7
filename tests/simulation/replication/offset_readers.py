"""Clients that ask where partitions begin and end, across changes of leader, topic and directory.

Owns: the questions (ListOffsets at both isolation levels), and what each answer must agree with:
the ledger, and what was told before. Must not: retry within a question. Invariants: what is told is
committed; the latest offset never goes back, whichever leader of the same or a later epoch tells it
(KIP-207). `tests/simulation/transactions/offset_readers.py` asks where transactions are open.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as listing
from tests.kit.seeds import Violation
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import PartitionTruth
    from tests.simulation.replication.world import ReplicationWorld

CONSUMER = -1
LATEST, EARLIEST = -1, -2
ISOLATION_LEVELS = (0, 1)
ANSWER_LIMIT_S = 20.0
UNEXPECTED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST})

Place = tuple[str, int]


class OffsetReader:
    """One client that looks at its partitions again and again."""

    def __init__(
        self, world: ReplicationWorld, number: int, random: Random, places: list[Place]
    ) -> None:
        self.world = world
        self.random = random
        self.host = f"offset-reader-{number}"
        self.process = Process(world.loop, self.host)
        network = world.fabric.port_of(self.process, self.host)
        self.link = ClusterLink(world.loop, self.process, network, random, world.broker_addresses)
        self._told: dict[tuple[UUID, int], tuple[int, int]] = {}
        """By partition: the latest offset that was told, and the leader epoch it was told under."""
        for place in places:
            self.process.spawn(self._run(place))

    async def _run(self, place: Place) -> None:
        while True:
            await self.world.loop.elapse(self.random.uniform(50.0, 800.0))
            timestamp = self.random.choice(
                (LATEST, LATEST, EARLIEST, self.world.clock.now_ms() - self.random.randrange(5_000))
            )
            if not await self._look(place, timestamp, self.random.choice(ISOLATION_LEVELS)):
                await self._look_again(place)

    async def name_both_ends(self, place: Place) -> None:
        """When nothing is wrong any more every question has its answer. Raises Violation."""
        deadline = self.world.loop.time() + ANSWER_LIMIT_S
        for timestamp in (EARLIEST, LATEST, self.world.clock.now_ms() - 5_000):
            for isolation_level in ISOLATION_LEVELS:
                while not await self._look(place, timestamp, isolation_level):
                    if self.world.loop.time() > deadline:
                        raise Violation("unlistable", f"{place} at {timestamp}, {isolation_level}")
                    await self._look_again(place)

    async def _look_again(self, place: Place) -> None:
        await self.link.pause()
        await self.link.refresh(place[0])

    async def _look(self, place: Place, timestamp: int, isolation_level: int) -> bool:
        """One question; whether it was answered. Raises Violation."""
        topic, index = place
        view = await self.link.leader(topic, index)
        topic_id = self.link.topic_ids.get(topic)
        if view is None or topic_id is None:
            return False
        before = self._told.get((topic_id, index), (0, -1))
        knew = self.world.topic_id_at(view.leader_id, topic)
        request = listing.ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=isolation_level,
            topics=[
                listing.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        listing.ListOffsetsPartition(
                            partition_index=index,
                            current_leader_epoch=view.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        try:
            response = await self.link.ask(view.leader_id, request)
        except NO_ANSWER:
            return False
        answer = response.topics[0].partitions[0]
        error = ErrorCode.of(answer.error_code)
        if error is not ErrorCode.NONE:
            self.world.counts[f"list {error.name}"] += 1
            if error in UNEXPECTED:
                raise Violation("unexpected-error", f"{self.host}: {error.name}")
            return False
        if {knew, self.world.topic_id_at(view.leader_id, topic)} != {topic_id}:
            return False  # asked by name: it may have spoken of another topic
        self.world.counts["offsets_listed"] += 1
        self.world.guard(self._check, (topic_id, index), timestamp, answer, before)
        return True

    def _check(
        self, key: tuple[UUID, int], timestamp: int, answer: Any, before: tuple[int, int]
    ) -> None:
        truth = self.world.data.truth(key)
        if truth.lost or truth.allows_unclean:
            return
        if timestamp == EARLIEST:
            if answer.offset > truth.deleted_to:
                raise Violation("earliest-ahead", f"{truth.name}: {answer}, {truth.deleted_to}")
            return
        end_offset = answer.offset + (timestamp != LATEST)
        if end_offset > max(truth.committed.end_offset, truth.deleted_to):
            raise Violation(
                "listed-uncommitted",
                f"{self.host}: {answer} of {truth.name} at {timestamp}, committed up to "
                f"{truth.committed.end_offset}",
            )
        if timestamp == LATEST:
            self._check_progress(key, truth, answer, before)
        elif 0 <= answer.timestamp < timestamp:
            raise Violation("found-early", f"{self.host}: {answer} of {truth.name} at {timestamp}")

    def _check_progress(
        self, key: tuple[UUID, int], truth: PartitionTruth, answer: Any, before: tuple[int, int]
    ) -> None:
        """A leader of an older epoch may still tell what it knew."""
        offset, leader_epoch = before
        if answer.leader_epoch >= leader_epoch and answer.offset < offset:
            raise Violation(
                "listed-back", f"{self.host}: {answer} of {truth.name}, told before: {before}"
            )
        if answer.leader_epoch >= leader_epoch:
            known = self._told.get(key, (0, -1))
            self._told[key] = max(known, (answer.offset, answer.leader_epoch))
