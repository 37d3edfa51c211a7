"""Simulated consumers: they read from leaders and from followers, and compare with the ledger.

Owns: a position per partition and what it rests on. Must not: commit offsets.
Invariant: a consumer moves on only by what it was shown, batch by batch without a gap; after a
change of leader it asks where its epoch ends before it reads on (KIP-320).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.messages import p02_list_offsets as listing
from moldau.protocol.messages import p23_offset_for_leader_epoch as epochs
from moldau.protocol.types import ZERO_UUID
from tests.kit.seeds import Violation
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink, PartitionView
from tests.simulation.replication.mirror import Batch, batches_in
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import PartitionTruth
    from tests.simulation.replication.world import ReplicationWorld

EARLIEST = -2
CONSUMER = -1
MAX_WAIT_MS = 300
UNEXPECTED = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST, ErrorCode.CORRUPT_MESSAGE}
)


class Cursor:
    """Where a consumer stands in one partition."""

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.topic_id: UUID | None = None
        """The topic that was read, which another of its name may have replaced since."""
        self.position = 0
        self.read_epoch = -1
        """The leader epoch of the last batch that was read."""
        self.validated_epoch = -1
        """The current leader epoch for which the position has been validated."""
        self.replica_id = -1
        """Whom to read from instead of the leader."""


class SimulatedConsumer:
    """One client that reads a few partitions."""

    def __init__(
        self,
        world: ReplicationWorld,
        number: int,
        random: Random,
        places: list[tuple[str, int]],
    ) -> None:
        self.world = world
        self.random = random
        self.host = f"consumer-{number}"
        self.process = Process(world.loop, self.host)
        self.rack = f"rack-{random.randint(1, 3)}"
        self.follower_share = random.choice((0.0, 0.3, 0.8))
        self.link = ClusterLink(
            world.loop,
            self.process,
            world.fabric.port_of(self.process, self.host),
            random,
            world.broker_addresses,
        )
        for topic, index in places:
            self.process.spawn(self._run(Cursor(topic, index)))

    async def _run(self, cursor: Cursor) -> None:
        while True:
            await self.world.loop.elapse(self.random.uniform(5.0, 200.0))
            if self.random.random() < 0.02:
                # Once more from the beginning: nothing may have changed.
                cursor.position, cursor.read_epoch = 0, -1
            try:
                await self._step(cursor)
            except NO_ANSWER:
                await self._look_again(cursor)

    async def read_all(self, topic: str, index: int) -> list[Batch]:
        """Everything from the beginning to the high watermark of now. Raises Violation."""
        topic_id = self.world.ledger.image.topics.topics_by_name[topic].topic_id
        truth = self.world.data.truth((topic_id, index))
        cursor = Cursor(topic, index)
        read: list[Batch] = []
        wanted = truth.committed.end_offset
        deadline = self.world.loop.time() + 20
        while cursor.position < wanted:
            if self.world.loop.time() > deadline:
                raise Violation(
                    "unreadable", f"{truth.name} ends at {cursor.position}, not at {wanted}"
                )
            try:
                read.extend(await self._step(cursor, may_follow=False))
            except NO_ANSWER:
                await self._look_again(cursor)
        return read

    async def _step(self, cursor: Cursor, *, may_follow: bool = True) -> list[Batch]:
        """One fetch. Raises OSError, TimeoutError."""
        view = await self.link.leader(cursor.topic, cursor.index)
        if view is None or cursor.topic not in self.link.topic_ids:
            await self._look_again(cursor)
            return []
        if cursor.topic_id != self.link.topic_ids[cursor.topic]:
            cursor.topic_id = self.link.topic_ids[cursor.topic]
            cursor.position, cursor.read_epoch, cursor.validated_epoch = 0, -1, -1
        if not await self._validate(cursor, view):
            await self._look_again(cursor)
            return []
        source = self._source(cursor, view) if may_follow else view.leader_id
        response = await self.link.ask(
            source, self._request(cursor, view, self.rack if may_follow else "")
        )
        if response.error_code != ErrorCode.NONE or not response.responses:
            await self._look_again(cursor)
            return []
        return await self._take(cursor, source, view, response.responses[0].partitions[0])

    def _source(self, cursor: Cursor, view: PartitionView) -> int:
        """A follower that the leader named, or some follower, or the leader."""
        if cursor.replica_id >= 0:
            named, cursor.replica_id = cursor.replica_id, -1
            return named
        if self.random.random() < self.follower_share:
            return self.random.choice(sorted(view.replicas))
        return view.leader_id

    def _request(self, cursor: Cursor, view: PartitionView, rack: str) -> fetch.FetchRequest:
        return fetch.FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self.random.choice((1, 2_000, 1_000_000)),
            isolation_level=self.random.choice((0, 1)),
            session_epoch=-1,
            topics=[
                fetch.FetchTopic(
                    topic=cursor.topic,
                    topic_id=cursor.topic_id or ZERO_UUID,
                    partitions=[
                        fetch.FetchPartition(
                            partition=cursor.index,
                            current_leader_epoch=view.leader_epoch,
                            fetch_offset=cursor.position,
                            partition_max_bytes=100_000,
                        )
                    ],
                )
            ],
            rack_id=rack,
        )

    async def _take(
        self, cursor: Cursor, source: int, view: PartitionView, data: Any
    ) -> list[Batch]:
        error = ErrorCode.of(data.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE and source == view.leader_id:
            await self._out_of_range(cursor, view)
            return []
        if error is not ErrorCode.NONE:
            self._expect(error)
            await self._look_again(cursor)
            return []
        if data.preferred_read_replica >= 0:
            self.world.counts["preferred_replicas"] += 1
            cursor.replica_id = data.preferred_read_replica
            return []
        if source != view.leader_id and data.records:
            self.world.counts["reads_from_followers"] += 1
        return self._read(cursor, source, data.records or b"")

    def _read(self, cursor: Cursor, source: int, records: Any) -> list[Batch]:
        read = []
        who = f"{self.host} from broker {source}"
        assert cursor.topic_id is not None, "fetched"
        key = (cursor.topic_id, cursor.index)
        for batch in batches_in(records, check=True):
            self.world.guard(self.world.data.consumed, key, batch, who)
            first = batch.base_offset <= cursor.position <= batch.last_offset
            if not first and batch.base_offset != cursor.position:
                raise Violation(
                    "consumer-gap", f"{who}: {batch} at {cursor.position} of {cursor.topic}"
                )
            cursor.position = batch.last_offset + 1
            cursor.read_epoch = batch.leader_epoch
            read.append(batch)
        return read

    async def _validate(self, cursor: Cursor, view: PartitionView) -> bool:
        """Whether the leader of a new epoch has what was read. Raises OSError, TimeoutError."""
        if cursor.read_epoch < 0 or cursor.validated_epoch == view.leader_epoch:
            return True
        knew = self.world.topic_id_at(view.leader_id, cursor.topic)
        response = await self.link.ask(
            view.leader_id,
            epochs.OffsetForLeaderEpochRequest(
                replica_id=CONSUMER,
                topics=[
                    epochs.OffsetForLeaderTopic(
                        topic=cursor.topic,
                        partitions=[
                            epochs.OffsetForLeaderPartition(
                                partition=cursor.index,
                                current_leader_epoch=view.leader_epoch,
                                leader_epoch=cursor.read_epoch,
                            )
                        ],
                    )
                ],
            ),
        )
        result = response.topics[0].partitions[0]
        error = ErrorCode.of(result.error_code)
        if error is not ErrorCode.NONE:
            self._expect(error)
            return False
        if {knew, self.world.topic_id_at(view.leader_id, cursor.topic)} != {cursor.topic_id}:
            return False  # asked by name: it may have spoken of another topic
        cursor.validated_epoch = view.leader_epoch
        if 0 <= result.end_offset < cursor.position:
            truth = self._truth(cursor)
            # What was deleted and then lost with the unflushed tail leaves no trace of its epoch.
            is_deleted = cursor.position <= truth.deleted_to
            if not (truth.lost or truth.allows_unclean or is_deleted):
                raise Violation(
                    "consumer-truncated",
                    f"{self.host} has read {truth.name} up to {cursor.position} of epoch "
                    f"{cursor.read_epoch}, broker {view.leader_id} of epoch {view.leader_epoch} "
                    f"ends it at {result.end_offset}",
                )
            cursor.position, cursor.read_epoch = result.end_offset, -1
        return True

    async def _out_of_range(self, cursor: Cursor, view: PartitionView) -> None:
        """The leader has nothing at the position: deleted, lawfully lost, or a broken promise."""
        truth = self._truth(cursor)
        lawful = truth.lost or truth.allows_unclean or cursor.position < truth.deleted_to
        if not lawful:
            raise Violation(
                "offset-lost",
                f"{self.host}: {cursor.position} of {truth.name} is out of the range of broker "
                f"{view.leader_id}, epoch {view.leader_epoch}",
            )
        knew = self.world.topic_id_at(view.leader_id, cursor.topic)
        response = await self.link.ask(
            view.leader_id,
            listing.ListOffsetsRequest(
                replica_id=CONSUMER,
                topics=[
                    listing.ListOffsetsTopic(
                        name=cursor.topic,
                        partitions=[
                            listing.ListOffsetsPartition(
                                partition_index=cursor.index,
                                current_leader_epoch=view.leader_epoch,
                                timestamp=EARLIEST,
                            )
                        ],
                    )
                ],
            ),
        )
        result = response.topics[0].partitions[0]
        self._expect(ErrorCode.of(result.error_code))
        if {knew, self.world.topic_id_at(view.leader_id, cursor.topic)} != {cursor.topic_id}:
            return
        if result.error_code == ErrorCode.NONE:
            cursor.position, cursor.read_epoch = max(result.offset, 0), -1

    def _truth(self, cursor: Cursor) -> PartitionTruth:
        assert cursor.topic_id is not None, "read"
        return self.world.data.truth((cursor.topic_id, cursor.index))

    def _expect(self, error: ErrorCode) -> None:
        if error in UNEXPECTED:
            raise Violation("unexpected-error", f"{self.host}: {error.name}")
        if error is not ErrorCode.NONE:
            self.world.counts[f"fetch {error.name}"] += 1

    async def _look_again(self, cursor: Cursor) -> None:
        await self.link.pause()
        await self.link.refresh(cursor.topic)
