"""One fetch: read its partitions, wait until there is enough, answer.

Owns the reading order, the byte budget and the decision that a fetch has what it asked for
(`fetch.min.bytes`). Must not decode or encode. Invariants: a fetch that waits holds no record bytes
and no request frame; it looks only at partitions that changed since it last looked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from moldau.broker.replica.core.partition_core import UNKNOWN_BROKER_EPOCH, FollowerFetch
from moldau.broker.replica.fetch_read import FetchRead
from moldau.broker.replica.fetch_sessions import FetchSession
from moldau.broker.replica.partition import NO_REPLICA
from moldau.broker.replica.purgatory import DelayedOperation
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.runtime.slices import in_slices

if TYPE_CHECKING:
    from moldau.broker.replica.partition import FetchPartition, Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.server.request import RequestContext

PENDING_WAIT_MS: Final = 5_000
"""How long a fetch with `max_wait_ms` 0 waits for bytes that are being verified off the loop."""

MAX_READ_AT_ONCE: Final = 500
"""More partitions are read and answered in steps, `STEP_COUNT` in each."""

STEP_COUNT: Final = 50

READ_ALL_UP_TO: Final = 8
"""A fetch of so few partitions reads all again when one changed; a larger one reads that one."""

Outcome = tuple["FetchPartition", FetchRead]


class FetchAnswer(Protocol):
    """The response while it is built."""

    def is_throttled(self, outcomes: list[Outcome]) -> bool:
        """Whether a quota of the client keeps `outcomes` from it: then the request has been
        answered without them, and nothing else is to be added or sent.
        """

    def add(self, outcomes: list[Outcome]) -> None:
        """Add partitions and what was read of them."""

    def send(self, outcomes: list[Outcome]) -> None:
        """Send the response, to which all of `outcomes` have been added."""


class FetchParameters(NamedTuple):
    """What a fetch asks for, apart from its partitions. Sizes in bytes.

    `replica_id` and `replica_epoch` (its broker epoch) are a follower's, -1 otherwise. `rack_id` is
    that of a consumer that may be sent to a nearer replica, empty otherwise. `awaits_commits` is
    set for followers that consumers read from: a new high watermark is worth an answer (KIP-392).
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    leader_only: bool
    replica_id: int
    uses_topic_ids: bool
    replica_epoch: int = UNKNOWN_BROKER_EPOCH
    rack_id: str = ""
    awaits_commits: bool = False

    @property
    def is_from_follower(self) -> bool:
        return self.replica_id != NO_REPLICA


class DelayedFetch(DelayedOperation):
    """A fetch from its first look until it is answered.

    Args:
        partitions: of a fetch without an earlier session, in the order they are read.
        session: whose changed partitions are read; None for a fetch without one.
        is_incremental: the response names only what is new to the client.
        new_answer: begins a response.
    """

    __slots__ = (
        "_arrived_ms",
        "_authorized",
        "_changed",
        "_new_answer",
        "_partitions",
        "_sizes",
        "_total_bytes",
        "changed_in_steps",
        "context",
        "is_incremental",
        "manager",
        "parameters",
        "session",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        context: RequestContext,
        parameters: FetchParameters,
        *,
        partitions: list[FetchPartition],
        session: FetchSession | None,
        is_incremental: bool,
        new_answer: Callable[[DelayedFetch], FetchAnswer],
    ) -> None:
        super().__init__()
        self.context = context
        self.parameters = parameters
        self.session = session
        self.is_incremental = is_incremental
        self._new_answer = new_answer
        self.manager = manager
        self._partitions = partitions
        self._arrived_ms = self._follower_asks() if parameters.is_from_follower else 0.0
        self._authorized: dict[str, bool] = {}
        self._changed: dict[FetchPartition, None] = {}
        self._sizes: dict[FetchPartition, int] = {}
        self._total_bytes = 0
        self.changed_in_steps: dict[FetchPartition, None] | None = None
        """What has changed since it was read, while this is read or answered in steps."""

    def _follower_asks(self) -> float:
        """Note when the follower fetched, for all that it follows; returns that time."""
        replication = self.manager.replication.context
        now_ms = replication.now_ms()
        replica_id, broker_epoch = self.parameters.replica_id, self.parameters.replica_epoch
        registration = self.manager.image.cluster.brokers.get(replica_id)
        if registration is not None and (
            broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch >= registration.broker_epoch
        ):
            replication.last_fetch_ms[replica_id] = now_ms
        return now_ms

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> Iterator[None] | None:
        """Answer at once if there is enough, else wait; with very many partitions, returns the
        steps of that.
        """
        if self._is_large:
            return self._start_in_steps()
        outcomes = self.read_all()
        if not self._begin_waiting(outcomes):
            self._finish(outcomes)
        return None

    def _start_in_steps(self) -> Iterator[None]:
        changed = self.changed_in_steps = {}
        session = self.session
        if session is not None:
            session.waiting.append(self)
        outcomes: list[Outcome] = []
        yield from self._read_in_steps(outcomes)
        if not self._begin_waiting(outcomes):
            yield from self._finish_in_steps(outcomes)
            return
        self.changed_in_steps = None
        for fetched in changed:
            self.partition_changed(fetched)

    @property
    def _is_large(self) -> bool:
        """Whether there is so much to read that other requests must have their turn in between."""
        to_read = self.session.dirty if self.is_incremental and self.session else self._partitions
        return len(to_read) > MAX_READ_AT_ONCE

    def _begin_waiting(self, outcomes: list[Outcome]) -> bool:
        """Wait unless there is enough, or nothing to wait for; returns whether it waits."""
        parameters = self.parameters
        enough, pending = self._judge(outcomes)
        timeout_ms = parameters.max_wait_ms
        if not enough and timeout_ms <= 0 and pending:
            timeout_ms = PENDING_WAIT_MS
        nothing_to_wait_for = not self.is_incremental and not self._partitions
        if enough or timeout_ms <= 0 or nothing_to_wait_for:
            return False
        if self.session is not None and self not in self.session.waiting:
            self.session.waiting.append(self)
        if not self.manager.fetch_purgatory.add_request(self, self.context, timeout_ms):
            return False
        self._sizes = {fetched: read.size_bytes for fetched, read in outcomes if read.size_bytes}
        self._total_bytes = sum(self._sizes.values())
        return True

    def partition_changed(self, fetched: FetchPartition) -> None:
        """A partition has something new: look at it when the change is complete."""
        if self.changed_in_steps is not None:
            self.changed_in_steps[fetched] = None
        elif not self.is_ended:
            if not self._changed:
                self.manager.fetch_changed(self)
            self._changed[fetched] = None

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        """A follower learns it with the next answer, unless the fetch awaits commits."""
        parameters = self.parameters
        if (
            not parameters.is_from_follower
            or parameters.awaits_commits
            or self.changed_in_steps is not None
        ):
            self.partition_changed(fetched)

    def complete_if_ready(self) -> None:
        """Look at the partitions that changed; answer if there is enough now."""
        changed, self._changed = self._changed, {}
        if self.is_ended:
            return
        parameters = self.parameters
        if self.is_incremental and self._is_large:
            self._finish(None)
            return
        if parameters.min_bytes <= 1 and (
            self.is_incremental or len(self._partitions) <= READ_ALL_UP_TO
        ):
            outcomes = self.read_all()
            if self._judge(outcomes)[0]:
                self._finish(outcomes)
            return
        pending = False
        for fetched in changed:
            read = self._read(fetched, parameters.max_bytes, min_one_batch=True)
            if self._ends_waiting(fetched, read):
                self._finish(None)
                return
            pending = pending or read.pending
            self._total_bytes += read.size_bytes - self._sizes.get(fetched, 0)
            self._sizes[fetched] = read.size_bytes
        gave_up_waiting = parameters.max_wait_ms <= 0 and not pending
        if self._total_bytes >= max(1, parameters.min_bytes) or gave_up_waiting:
            self._finish(None)

    def on_timeout(self) -> None:
        self._finish(None)

    def on_dropped(self) -> None:
        self._let_go()
        self.context.respond_nothing()

    def _finish(self, outcomes: list[Outcome] | None) -> None:
        """Answer; without outcomes, with what there is now."""
        if self._is_large:
            work = in_slices(self.manager.clock, self._finish_in_steps(outcomes))
            if work is not None:
                self.manager.start(work)
            return
        self.manager.fetch_purgatory.remove_request(self, self.context)
        try:
            found = self.read_all() if outcomes is None else outcomes
            answer = self._new_answer(self)
            if not answer.is_throttled(found):
                answer.add(found)
                answer.send(found)
        finally:
            self._ended()

    def _finish_in_steps(self, outcomes: list[Outcome] | None) -> Iterator[None]:
        """As `_finish`; changes from now on are still news to the client after the answer."""
        self.manager.fetch_purgatory.remove_request(self, self.context)
        if self.changed_in_steps is None:
            self.changed_in_steps = {}
        try:
            if outcomes is None:
                outcomes = []
                yield from self._read_in_steps(outcomes)
            answer = self._new_answer(self)
            if answer.is_throttled(outcomes):
                return
            for begin in range(0, len(outcomes), STEP_COUNT):
                answer.add(outcomes[begin : begin + STEP_COUNT])
                yield
            answer.send(outcomes)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._let_go()
        if not self.context.is_answered:
            # Nothing else would: the fetch is in no purgatory any more.
            self.context.close("a fetch failed inside the broker")

    def _let_go(self) -> None:
        self.changed_in_steps = None
        if self.session is None:
            # They do not refer to each other any more: no cycle waits for the collector, which
            # hardly ever looks at what has waited.
            for fetched in self._partitions:
                fetched.unwatch()
            self._partitions = []
        elif self in self.session.waiting:
            self.session.waiting.remove(self)
        self._changed.clear()
        self._sizes.clear()

    def _judge(self, outcomes: list[Outcome]) -> tuple[bool, bool]:
        """Whether this is enough to answer, and whether bytes are being verified off the loop."""
        total_bytes = 0
        pending = False
        for fetched, read in outcomes:
            if self._ends_waiting(fetched, read):
                return True, pending
            pending = pending or read.pending
            total_bytes += read.size_bytes
        parameters = self.parameters
        if parameters.max_wait_ms <= 0:
            return total_bytes > 0 or not pending, pending
        if pending and not total_bytes:
            return False, True
        return total_bytes >= parameters.min_bytes, pending

    def _ends_waiting(self, fetched: FetchPartition, read: FetchRead) -> bool:
        """Errors, diverging logs and nearer replicas are answered at once; to some, commits too."""
        if (
            read.error is not ErrorCode.NONE
            or read.is_diverging
            or read.preferred_read_replica >= 0
        ):
            return True
        return (
            self.parameters.awaits_commits
            and self.session is not None
            and read.high_watermark > fetched.reported_high_watermark
        )

    # -- reading ---------------------------------------------------------------------------------

    def read_all(self) -> list[Outcome]:
        """Read every partition that may have something, within the response's byte budget."""
        outcomes: list[Outcome] = []
        if self.is_incremental:
            assert self.session is not None
            dirty = list(self.session.dirty)
            self._read_dirty(self.session, dirty, outcomes, self.parameters.max_bytes)
        else:
            self._read_listed(self._partitions, outcomes, self.parameters.max_bytes)
        return outcomes

    def _read_in_steps(self, outcomes: list[Outcome]) -> Iterator[None]:
        """As `read_all`. A session's partitions may be forgotten in between."""
        remaining_bytes = self.parameters.max_bytes
        session = self.session
        partitions = self._partitions
        if self.is_incremental:
            assert session is not None
            partitions = list(session.dirty)
        for begin in range(0, len(partitions), STEP_COUNT):
            some = partitions[begin : begin + STEP_COUNT]
            if self.is_incremental and session is not None:
                some = [each for each in some if session.partitions.get(each.key) is each]
                remaining_bytes = self._read_dirty(session, some, outcomes, remaining_bytes)
            else:
                remaining_bytes = self._read_listed(some, outcomes, remaining_bytes)
            yield

    def _read_listed(
        self, partitions: list[FetchPartition], outcomes: list[Outcome], remaining_bytes: int
    ) -> int:
        """Read these; returns the bytes that are left for others."""
        is_empty = remaining_bytes == self.parameters.max_bytes
        for fetched in partitions:
            read = self._read(fetched, max(0, remaining_bytes), min_one_batch=is_empty)
            outcomes.append((fetched, read))
            if read.size_bytes:
                remaining_bytes -= read.size_bytes
                is_empty = False
        return remaining_bytes

    def _read_dirty(
        self,
        session: FetchSession,
        dirty: list[FetchPartition],
        outcomes: list[Outcome],
        remaining_bytes: int,
    ) -> int:
        """As `_read_listed`, for a session's dirty partitions; those that turn out to have nothing
        new are clean from now on.
        """
        is_empty = remaining_bytes == self.parameters.max_bytes
        for fetched in dirty:
            if remaining_bytes <= 0 and not is_empty:
                if not self.parameters.is_from_follower:
                    break
                if not fetched.is_position_news:
                    continue
                # Without any bytes: the position of the follower must not wait for its turn.
            read = self._read(fetched, max(0, remaining_bytes), min_one_batch=is_empty)
            if read.pending or is_news(fetched, read):
                outcomes.append((fetched, read))
            elif not read.is_starved:
                session.dirty.pop(fetched, None)
            if read.size_bytes:
                remaining_bytes -= read.size_bytes
                is_empty = False
        return remaining_bytes

    def _read(self, fetched: FetchPartition, max_bytes: int, *, min_one_batch: bool) -> FetchRead:
        parameters = self.parameters
        partition = fetched.partition
        if partition is None or partition.is_deleted:
            found = self._find(fetched)
            if isinstance(found, ErrorCode):
                return FetchRead(found)
            partition = found
            fetched.is_follower = parameters.is_from_follower
            fetched.replica_id = parameters.replica_id
            fetched.watch(partition)
        topic = partition.topic_partition.topic
        if not self._is_authorized(topic):
            return FetchRead(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if parameters.is_from_follower:
            error = partition.core.check_follower(
                parameters.replica_id, parameters.replica_epoch, fetched.current_leader_epoch
            )
            if (
                error is ErrorCode.NONE
                and not fetched.is_position_news
                and partition.core.needs_position(parameters.replica_id)
            ):
                # With this error the follower names the partition again.
                error = ErrorCode.UNKNOWN_LEADER_EPOCH
            if error is ErrorCode.NONE and self._is_blank_beyond_start(fetched, partition):
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            if error is not ErrorCode.NONE:
                return FetchRead(error)
        preferred_read_replica = self._preferred_read_replica(fetched, partition)
        read = partition.read(
            fetched,
            max_bytes=min(max_bytes, fetched.partition_max_bytes),
            min_one_batch=min_one_batch,
            read_committed=parameters.read_committed,
            leader_only=parameters.leader_only,
            for_replica=parameters.is_from_follower,
            without_records=preferred_read_replica >= 0 or self._is_throttled(partition),
        )
        if read.error is ErrorCode.NONE and not read.is_diverging:
            read.preferred_read_replica = preferred_read_replica
        if read.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._may_be_behind(fetched, partition):
            return FetchRead(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if (
            parameters.is_from_follower
            and fetched.is_position_news
            and read.error is ErrorCode.NONE
            and not read.is_diverging
        ):
            self._note_position(fetched, partition)
            read.high_watermark = partition.core.high_watermark
        return read

    def _may_be_behind(self, fetched: FetchPartition, partition: Partition) -> bool:
        """Whether a consumer asks for more than there is here because there may be more elsewhere:

        1. this broker stands still for longer than its session; another leads in its place;
        2. a group consumes what is new there, and commits its offset;
        3. a member gets the partition and does not know the new leader; it asks here for that
           offset just when this broker goes on, which does not know the new leader either.

        With OFFSET_OUT_OF_RANGE the consumer would go where `auto.offset.reset` says, and consume
        everything again, or skip what lies between.
        """
        log = partition.log
        return (
            not self.parameters.is_from_follower
            and partition.is_leader
            and log is not None
            and fetched.fetch_offset > log.log_end_offset
            and not self.manager.is_confirmed()
        )

    def _preferred_read_replica(self, fetched: FetchPartition, partition: Partition) -> int:
        """The replica that a consumer with a rack should read from, -1 for this one (KIP-392)."""
        rack_id = self.parameters.rack_id
        if not rack_id or not partition.is_leader:
            return NO_REPLICA
        return self.manager.replication.read_replicas.preferred(
            partition, rack_id, fetched.fetch_offset, self.context.listener_name
        )

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether the quota keeps records from a follower that is not in sync; its fetch then waits
        as for new records, and looks again when its time is over (KIP-73).
        """
        parameters = self.parameters
        return parameters.is_from_follower and not self.manager.replication.throttles.leader.allows(
            partition.topic_partition, parameters.replica_id in partition.core.isr
        )

    def _note_position(self, fetched: FetchPartition, partition: Partition) -> None:
        """Note the follower's position, once for each request that names the partition and as of
        its arrival: looking again later proves nothing about the follower.
        """
        fetched.is_position_news = False
        parameters = self.parameters
        progress = partition.core.followers.get(parameters.replica_id)
        if progress is not None and fetched.fetch_offset < progress.log_end_offset:
            self._repeat_positions(fetched, partition)
        partition.follower_fetched(
            FollowerFetch(
                parameters.replica_id,
                fetched.fetch_offset,
                fetched.log_start_offset,
                parameters.replica_epoch,
                self._arrived_ms,
            )
        )

    def _repeat_positions(self, fetched: FetchPartition, partition: Partition) -> None:
        """A follower went back; or this fetch comes late, from a connection that the follower has
        given up:

        1. a fetch with its position is on its way; the follower gives up and connects again;
        2. there it founds a session, reports its new position, and then does not name the partition
           again, since nothing happens to it;
        3. the fetch on the first connection is read: the follower seems to be far behind, for ever.

        So every other session of the follower repeats its position with the next fetch.
        """
        for other in partition.fetch_watchers:
            if other is not fetched and other.replica_id == fetched.replica_id:
                owner = other.owner
                if isinstance(owner, FetchSession):
                    owner.repeat_position(other)

    def _find(self, fetched: FetchPartition) -> Partition | ErrorCode:
        fetched.unwatch()
        manager = self.manager
        index = fetched.partition_index
        if not self.parameters.uses_topic_ids:
            if not self._is_authorized(fetched.topic):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partition = manager.get(fetched.topic, index)
            return partition or manager.missing_error(fetched.topic, index)
        partition = manager.topic_by_id(fetched.topic_id).get(index)
        if partition is None:
            topic = manager.topic_name(fetched.topic_id)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            # Which partitions it has, and where they are, is for those who may read it.
            if not self._is_authorized(topic):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return manager.missing_error(topic, index)
        log = partition.log
        if log is not None and log.topic_id != fetched.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return partition

    def _is_blank_beyond_start(self, fetched: FetchPartition, partition: Partition) -> bool:
        """Whether a follower without a single record fetches from behind this log's first one.

        There is no leader epoch to compare, and the follower would count as having all that lies
        before: after an unclean election it would join the ISR without that.
        """
        log = partition.log
        return (
            self.parameters.uses_topic_ids  # before v12 requests have no epochs
            and fetched.last_fetched_epoch < 0
            and log is not None
            and fetched.fetch_offset > log.log_start_offset
        )

    def _is_authorized(self, topic: str) -> bool:
        if self.parameters.is_from_follower:
            return True  # by CLUSTER_ACTION, for all topics
        allowed = self._authorized.get(topic)
        if allowed is None:
            allowed = self.context.authorized_topic(Operation.READ, topic)
            self._authorized[topic] = allowed
        return allowed


def is_news(fetched: FetchPartition, read: FetchRead) -> bool:
    """Whether an incremental response has to mention the partition (KIP-227)."""
    return (
        read.size_bytes > 0
        or read.error is not ErrorCode.NONE
        or read.is_diverging
        or read.preferred_read_replica >= 0
        or read.high_watermark != fetched.reported_high_watermark
        or read.log_start_offset != fetched.reported_log_start_offset
    )


def total_bytes(outcomes: Iterable[Outcome]) -> int:
    return sum(read.size_bytes for _, read in outcomes)
