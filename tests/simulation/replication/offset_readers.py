"""Clients that ask where partitions begin and end, across changes of leader, topic and directory.

Owns: the questions (the admin client's, at both isolation levels), and what each answer must agree
with: the ledger, and what was answered before. Must not: ask again within a question. Invariants:
what is answered is committed; the latest offset never goes back, whichever leader of the same or a
later epoch answers (KIP-207). `tests/simulation/transactions/offset_readers.py` asks where
transactions are open.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from moldau.client import Admin, OffsetSpec, PartitionOffset
from moldau.client.errors import KafkaError
from moldau.protocol.types import TopicPartition
from tests.kit.seeds import Violation
from tests.simulation.clients import ClientHost, is_passing

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import PartitionTruth
    from tests.simulation.replication.world import ReplicationWorld

LATEST, EARLIEST = OffsetSpec.LATEST, OffsetSpec.EARLIEST
ANSWER_LIMIT_S = 20.0

Place = tuple[str, int]


class OffsetClient(ClientHost):
    """A machine that looks at its partitions again and again."""

    def __init__(
        self, world: ReplicationWorld, number: int, random: Random, places: list[Place]
    ) -> None:
        super().__init__(world, f"offset-reader-{number}", random)
        self.world = world
        self.places = places
        self._told: dict[tuple[UUID, int], tuple[int, int]] = {}
        """The latest offset that was answered by partition, and the leader epoch of the answer."""
        self.start()

    def start(self) -> None:
        super().start()
        random = self.random
        self._admin = self.made(
            Admin(
                self.servers,
                ports=self.ports(),
                request_timeout_ms=random.choice((600, 2_500)),
                default_api_timeout_ms=random.choice((800, 4_000)),
                socket_connection_setup_timeout_ms=800,
                retries=2**31 - 1,
            )
        )

    async def live(self) -> None:
        for place in self.places:
            self.process.spawn(self._look_again_and_again(place))

    async def _look_again_and_again(self, place: Place) -> None:
        while True:
            await self.world.loop.elapse(self.random.uniform(50.0, 800.0))
            timestamp = self.random.choice(
                (LATEST, LATEST, EARLIEST, self.world.clock.now_ms() - self.random.randrange(5_000))
            )
            await self._look(place, timestamp, self.random.random() < 0.5)

    async def name_both_ends(self, place: Place) -> None:
        """When nothing is wrong any more every question has its answer. Raises Violation."""
        deadline = self.world.loop.time() + ANSWER_LIMIT_S
        for timestamp in (EARLIEST, LATEST, self.world.clock.now_ms() - 5_000):
            for read_committed in (False, True):
                while not await self._look(place, timestamp, read_committed):
                    if self.world.loop.time() > deadline:
                        raise Violation("unlistable", f"{place} at {timestamp}, {read_committed}")

    async def _look(self, place: Place, timestamp: int, read_committed: bool) -> bool:
        """One question; whether it was answered. Raises Violation."""
        topic, index = place
        known = self.world.ledger.image.topics.topics_by_name.get(topic)
        if known is None:
            return False
        key = (known.topic_id, index)
        before = self._told.get(key, (0, -1))
        knew = self.world.topic_ids(topic)
        try:
            found = await self._admin.list_offsets(
                {TopicPartition(*place): timestamp}, read_committed=read_committed
            )
        except KafkaError as error:
            self.world.counts[f"list {error.code.name}"] += 1
            if not is_passing(error):
                self.world.violated("unexpected-error", f"{self.host}: {error!r}")
            return False
        if knew | self.world.topic_ids(topic) != {known.topic_id}:
            return False  # asked by name: it may have spoken of another topic
        self.world.counts["offsets_listed"] += 1
        self.world.guard(self._check, key, timestamp, found[TopicPartition(*place)], before)
        return True

    def _check(
        self,
        key: tuple[UUID, int],
        timestamp: int,
        answer: PartitionOffset,
        before: tuple[int, int],
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
        elif answer.offset >= 0:
            self._check_time(key, truth, timestamp, answer)

    def _check_time(
        self, key: tuple[UUID, int], truth: PartitionTruth, timestamp: int, answer: PartitionOffset
    ) -> None:
        """The answer is a record of that time or later, and has the record's timestamp."""
        record = self.world.data.records.record_at(truth, key, answer.offset)
        is_gone = answer.offset < truth.deleted_to
        if answer.timestamp_ms < timestamp or (
            not is_gone and (record is None or record.timestamp_ms != answer.timestamp_ms)
        ):
            raise Violation(
                "found-early", f"{self.host}: {answer} of {truth.name} at {timestamp}: {record}"
            )

    def _check_progress(
        self,
        key: tuple[UUID, int],
        truth: PartitionTruth,
        answer: PartitionOffset,
        before: tuple[int, int],
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
