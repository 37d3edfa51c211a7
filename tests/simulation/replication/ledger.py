"""What replication has promised, partition by partition: which batches are committed, who had them.

Owns: a mirror of every replica's log, the committed batches as the first leader exposed them, and
the checks that tie them together. Must not: be asked by production code, or know why something
happened. Invariant: committed batches are only added; they go only where the loss was lawful.

Lawful is a loss when every replica that was in sync has lost its disk or its unflushed tail; and,
as with Apache Kafka, when no replica was left in ISR and ELR and the last leader was elected again
(KIP-966: the election is marked as recovering), or when the only one in sync has lost its tail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from moldau.metadata.image import PartitionRegistration
from moldau.metadata.image.values import LOST_DIRECTORY, RECOVERING
from moldau.protocol.records import increment_sequence
from tests.kit.seeds import Violation
from tests.simulation.replication.mirror import Batch, Mirror
from tests.simulation.replication.record_ledger import RecordLedger

Key = tuple[UUID, int]

END = 2**62


@dataclass(slots=True)
class PartitionTruth:
    """One partition, whichever brokers hold it."""

    name: str
    committed: Mirror = field(default_factory=Mirror)
    in_sync: dict[Batch, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """The leader epoch in which a batch was committed, and who was in sync then."""
    written: dict[tuple[int, int], tuple[Batch, Batch | None]] = field(default_factory=dict)
    """What the leader wrote by base offset and leader epoch, and behind what."""
    replicas: dict[int, Mirror] = field(default_factory=dict)
    assigned: frozenset[int] = frozenset()
    """The replicas of now."""
    stale: set[int] = field(default_factory=set)
    """Replicas whose disk was not looked at since they died of more than a kill."""
    offline: set[int] = field(default_factory=set)
    """Replicas whose log failed, until it is opened again."""
    unclean: set[int] = field(default_factory=set)
    """The brokers that have reported, or are reporting, an unclean start, and has not been in sync
    since.
    """
    targets: set[tuple[int, ...]] = field(default_factory=set)
    """The replicas that it had, or was to have."""
    losses: dict[int, int] = field(default_factory=dict)
    """The losses by broker: the last leader epoch there was when it lost something."""
    impaired: set[int] = field(default_factory=set)
    """Replicas that have lost something while they were in sync, until they are not any more."""
    writers: dict[int, int] = field(default_factory=dict)
    """Who wrote in a leader epoch."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Whom the controller made leader of an epoch."""
    last_isr: dict[int, frozenset[int]] = field(default_factory=dict)
    """The ISR of a leader epoch, the last one committed."""
    isr_sizes: dict[int, int] = field(default_factory=dict)
    """How many were in sync at a partition epoch."""
    drained: dict[int, str] = field(default_factory=dict)
    """Leader epochs that began with no replica left that was in sync, or with one who had lost."""
    last_of_producer: dict[int, Batch] = field(default_factory=dict)
    """The last batch committed of each idempotent producer."""
    high_watermarks: dict[tuple[str, int], int] = field(default_factory=dict)
    """The high watermarks by process and leader epoch."""
    checked_leaders: set[tuple[str, int]] = field(default_factory=set)
    lost: set[Batch] = field(default_factory=set)
    acknowledged: set[Batch] = field(default_factory=set)
    deleted_to: int = 0
    """Below it a client asked for deletion, or retention took what there was."""
    allows_unclean: bool = False
    """Nothing is promised: any replica may lead, or the topic is deleted."""

    def expected(self) -> list[Batch]:
        """Every committed batch that a replica in sync must have."""
        return self.committed.between(self.deleted_to, self.committed.end_offset)


class DataLedger:
    """See the module. Taps report by `on_*`, clients to `records`."""

    metadata: Any

    def __init__(self, counts: Counter[str], note: Callable[[str], None]) -> None:
        self.counts = counts
        self.note = note
        self.partitions: dict[Key, PartitionTruth] = {}
        self.records = RecordLedger(self, counts)
        self.incarnation_of: dict[int, UUID] = {}
        self.lost_tail: set[int] = set()
        """Brokers whose last death cost them something, until they are registered again."""
        self.telling: set[int] = set()
        """Brokers that tell of an unclean start, until they are registered."""
        self.found_less: set[int] = set()
        """Brokers that found less in a log, at this start, than they had had."""

    def truth(self, key: Key) -> PartitionTruth:
        """What is known of a partition."""
        known = self.partitions.get(key)
        if known is None:
            topic = self.metadata.image.topics.topics_by_id.get(key[0])
            name = f"{'?' if topic is None else topic.name}-{key[1]}"
            known = self.partitions[key] = PartitionTruth(name)
            known.allows_unclean = "unclean" in name
        return known

    # -- metadata --------------------------------------------------------------------------------

    def on_partition(
        self,
        topic_id: UUID,
        index: int,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
    ) -> None:
        """A change of a partition is committed."""
        truth = self.truth((topic_id, index))
        truth.isr_sizes[new.partition_epoch] = len(new.isr)
        truth.assigned = frozenset(new.replicas)
        truth.targets.add(tuple(each for each in new.replicas if each not in new.removing_replicas))
        truth.last_isr[new.leader_epoch] = frozenset(new.isr)
        if new.leader >= 0:
            truth.leaders[new.leader_epoch] = new.leader
        truth.impaired.intersection_update(new.isr)
        if old is None:
            truth.unclean.update(self.telling)
            return
        if new.leader != old.leader and new.leader >= 0:
            self._elected(truth, old, new)
        truth.unclean.difference_update(set(new.isr) - set(old.isr))
        if new.leader_recovery_state != RECOVERING:
            joined = set(new.isr) - set(old.isr) - set(old.elr) - truth.impaired
            for broker_id in sorted(joined):
                self._joins(truth, broker_id)

    def _elected(
        self, truth: PartitionTruth, old: PartitionRegistration, new: PartitionRegistration
    ) -> None:
        eligible = set(old.isr) | set(old.elr)
        if set(new.replicas) != set(old.replicas):
            # A reassignment ends with the change that takes its last replicas into the ISR.
            eligible |= set(new.isr) & set(old.replicas)
        out_of_use = truth.offline | truth.stale
        told_lost = {each for each in out_of_use & eligible if _is_lost(new, each)}
        trusted = eligible - truth.unclean - told_lost
        where = f"{truth.name}: {new} after {old}"
        is_recovering = new.leader_recovery_state == RECOVERING and (
            new.leader_epoch != old.leader_epoch and new.isr == (new.leader,)
        )
        if new.leader not in eligible:
            if trusted and not truth.allows_unclean:
                raise Violation("unclean-election", where)
            if not is_recovering:
                raise Violation("unclean-not-marked", where)
            truth.drained[new.leader_epoch] = "nobody was left in ISR and ELR"
            self.counts["recovering_elections"] += 1
        elif eligible == {new.leader} and new.leader in truth.impaired:
            truth.drained[new.leader_epoch] = "the only one in sync had lost its tail"

    def _joins(self, truth: PartitionTruth, broker_id: int) -> None:
        """A replica is in sync from now on: it has everything that is committed."""
        self.counts["isr_joins"] += 1
        if truth.allows_unclean:
            return
        if broker_id in self.lost_tail:
            # It has died since, and the controller does not know yet.
            truth.impaired.add(broker_id)
            return
        missing = truth.replicas.get(broker_id, Mirror()).lacks(truth.expected())
        if missing:
            raise Violation(
                "joined-behind", f"{broker_id} lacks {missing[0]} of {truth.name}: {truth.impaired}"
            )

    def on_topic_removed(self, topic_id: UUID) -> None:
        """A topic is deleted; brokers that have not heard of it go on for a while."""
        for key, truth in self.partitions.items():
            if key[0] == topic_id:
                truth.allows_unclean = True

    def on_unclean_start(self, broker_id: int) -> None:
        """A broker reports to the controller that it may have lost something."""
        self.telling.add(broker_id)
        for truth in self.partitions.values():
            truth.unclean.add(broker_id)

    def on_registration(self, broker_id: int, incarnation_id: UUID) -> None:
        """A broker is registered: the controller knows from now on what it lost."""
        if self.incarnation_of.get(broker_id) == incarnation_id:
            self.lost_tail.discard(broker_id)
            self.telling.discard(broker_id)

    # -- replicas --------------------------------------------------------------------------------

    def on_loss(self, broker_id: int) -> None:
        """A broker died in a way that costs it what it had not flushed, or everything."""
        self.lost_tail.add(broker_id)
        for key, truth in self.partitions.items():
            if broker_id in truth.replicas:
                self._impair(broker_id, key, truth)
                truth.stale.add(broker_id)

    def _impair(self, broker_id: int, key: Key, truth: PartitionTruth) -> None:
        registration = self.metadata.image.topics.partition(*key)
        if registration is not None:
            truth.losses[broker_id] = registration.leader_epoch
            if broker_id in registration.isr:
                truth.impaired.add(broker_id)

    def on_away(self, broker_id: int, key: Key) -> None:
        """The log directory of a replica has failed, or is configured no more."""
        truth = self.truth(key)
        if broker_id in truth.replicas:
            self._impair(broker_id, key, truth)
            truth.stale.add(broker_id)

    def on_begun_again(self, broker_id: int, key: Key, found: Mirror) -> None:
        """A broker makes a log for a replica whose log is out of its reach."""
        truth = self.truth(key)
        known = truth.replicas.get(broker_id, Mirror())
        registration = self.metadata.image.topics.partition(*key)
        if registration is None or truth.allows_unclean or not found.lacks(known.batches):
            return
        if registration.leader_epoch in truth.drained:
            return
        is_believed = broker_id in (*registration.isr, *registration.elr)
        if is_believed or registration.replicas == (broker_id,):
            raise Violation(
                "begun-while-believed",
                f"{broker_id} begins {truth.name} again, of which {known} is out of its reach: "
                f"{registration}",
            )

    def on_offline(self, broker_id: int, key: Key) -> None:
        """A replica cannot be used any more: its disk failed."""
        truth = self.truth(key)
        truth.offline.add(broker_id)
        self._impair(broker_id, key, truth)

    def on_removed(self, broker_id: int, key: Key) -> None:
        """A replica's log is put aside."""
        self.truth(key).replicas.pop(broker_id, None)

    def written_unseen(self, broker_id: int, key: Key, found: Mirror) -> list[Batch]:
        """Batches that a broker wrote as the leader when it died inside the very operation: in its
        log, and no producer has an answer. From now on they count as written.
        """
        truth = self.truth(key)
        unseen: list[Batch] = []
        before: Batch | None = None
        for batch in found.batches:
            place = (batch.base_offset, batch.leader_epoch)
            if place not in truth.written and truth.leaders.get(batch.leader_epoch) == broker_id:
                truth.written[place] = (batch, before)
                unseen.append(batch)
            before = batch
        self.counts["written_when_it_died"] += len(unseen)
        return unseen

    def on_opened(self, broker_id: int, key: Key, found: Mirror, *, was_killed: bool) -> None:
        """A log was opened: this is what is in it."""
        truth = self.truth(key)
        before = truth.replicas.get(broker_id)
        was_killed = was_killed and broker_id not in truth.stale
        truth.stale.discard(broker_id)
        truth.offline.discard(broker_id)
        if was_killed and before is not None and _differ(found, before):
            raise Violation("kill-lost-records", f"{broker_id}, {truth.name}: {found} was {before}")
        if before is not None and found.lacks(before.between(start_of(found, before), END)):
            self.found_less.add(broker_id)
        truth.replicas[broker_id] = found

    def on_contents(self, key: Key, batches: list[Batch], records: Any) -> None:
        """What a leader has written."""
        self.records.on_written(key, self.truth(key).name, records)

    def on_leader_append(
        self, broker_id: int, key: Key, leader_epoch: int, batches: list[Batch]
    ) -> None:
        """A leader wrote."""
        truth = self.truth(key)
        known = truth.writers.setdefault(leader_epoch, broker_id)
        appointed = truth.leaders.get(leader_epoch)
        if known != broker_id or appointed != broker_id:
            raise Violation(
                "two-leaders",
                f"{broker_id} writes in epoch {leader_epoch} of {truth.name}, "
                f"{known} did, the controller appointed {appointed}",
            )
        mirror = truth.replicas.setdefault(broker_id, Mirror())
        for batch in batches:
            truth.written[(batch.base_offset, batch.leader_epoch)] = (batch, mirror.last)
            mirror.append(batch)
        self.counts["appends"] += 1

    def on_follower_append(self, broker_id: int, key: Key, batches: list[Batch]) -> None:
        """A follower wrote: what a leader had written, behind the same batch."""
        truth = self.truth(key)
        mirror = truth.replicas.setdefault(broker_id, Mirror())
        for batch in batches:
            written = truth.written.get((batch.base_offset, batch.leader_epoch))
            who = f"{broker_id} appends {batch} to {truth.name} behind {mirror.last}"
            if written is None or written[0] != batch:
                raise Violation("appended-unwritten", f"{who}, written was {written}")
            # What lies before a leader's log was deleted; no replica knows its epochs any more.
            is_first = batch.base_offset <= truth.deleted_to
            if None not in (mirror.last, written[1]) and mirror.last != written[1] and not is_first:
                raise Violation("log-mismatch", f"{who}, the leader wrote it behind {written[1]}")
            mirror.append(batch)
        self.counts["follower_appends"] += 1

    def on_cut(self, broker_id: int, key: Key, end_offset: int, start_offset: int) -> None:
        """A log was truncated: it ends there now."""
        truth = self.truth(key)
        mirror = truth.replicas.setdefault(broker_id, Mirror())
        dropped = mirror.cut(end_offset)
        mirror.start_offset = start_offset
        self.counts["truncations"] += bool(dropped)
        registration = self.metadata.image.topics.partition(*key)
        if registration is None or broker_id not in registration.isr or truth.allows_unclean:
            return
        if broker_id in truth.impaired:
            return
        # What is above the new end; a log that begins again above everything has lost it as well.
        expected = set(truth.expected())
        harmed = [batch for batch in dropped if batch in expected]
        if harmed:
            raise Violation(
                "committed-truncated",
                f"{broker_id}, in sync, cuts {harmed} off {truth.name}: ends at {end_offset}",
            )

    def on_start_moved(
        self, broker_id: int, key: Key, start_offset: int, *, is_asked: bool
    ) -> None:
        """Records below an offset are gone from a replica's log."""
        truth = self.truth(key)
        mirror = truth.replicas.setdefault(broker_id, Mirror())
        mirror.start_offset = max(mirror.start_offset, start_offset)
        if is_asked:
            truth.deleted_to = max(truth.deleted_to, start_offset)
        elif start_offset > truth.deleted_to and not truth.allows_unclean:
            raise Violation(
                "deleted-unasked",
                f"{broker_id} starts {truth.name} at {start_offset}, not {truth.deleted_to}",
            )

    # -- leaders ---------------------------------------------------------------------------------

    def on_leads(self, who: str, broker_id: int, key: Key, leader_epoch: int) -> None:
        """A broker begins to lead: it must have everything that is committed (idempotent)."""
        truth = self.truth(key)
        if (who, leader_epoch) in truth.checked_leaders:
            return
        truth.checked_leaders.add((who, leader_epoch))
        self.counts["leader_starts"] += 1
        self.note(f"{who} leads {truth.name} in epoch {leader_epoch}")
        if truth.allows_unclean:
            return
        mirror = truth.replicas.setdefault(broker_id, Mirror())
        missing = mirror.lacks(truth.expected())
        if not missing:
            # Where everything was deleted a log can still have lost where it ended.
            missing = truth.committed.between(mirror.end_offset, END)
        # Who hears late that it leads does not have what others have committed since.
        missing = [batch for batch in missing if truth.in_sync[batch][0] < leader_epoch]
        if missing:
            self._lose(truth, who, leader_epoch, missing, mirror.end_offset)

    def _lose(
        self,
        truth: PartitionTruth,
        who: str,
        leader_epoch: int,
        missing: list[Batch],
        end_offset: int,
    ) -> None:
        reason = truth.drained.get(leader_epoch)
        for batch in missing:
            holders = [
                each
                for each in truth.in_sync[batch][1]
                if each not in truth.stale
                and each in truth.replicas
                and truth.replicas[each].at(batch.base_offset) == batch
            ]
            self.counts["lost_when_drained"] += bool(holders)
            if holders and reason is None:
                raise Violation(
                    "acknowledged-lost",
                    f"{who} leads {truth.name} in epoch {leader_epoch} without {batch}, "
                    f"which {holders} still have",
                )
        self.note(f"lawfully lost: {missing}, {reason}")
        self.counts["lawful_losses"] += 1
        self.counts["lawfully_lost_batches"] += len(missing)
        # What was deleted may be written again, if the leader's log ends that early.
        truth.deleted_to = min(truth.deleted_to, end_offset)
        truth.lost.update(truth.committed.cut(min(missing[0].base_offset, end_offset)))
        truth.lost.update(missing)
        truth.last_of_producer = {
            batch.producer_id: batch for batch in truth.committed.batches if batch.producer_id >= 0
        }

    def on_high_watermark(
        self,
        who: str,
        broker_id: int,
        key: Key,
        leader_epoch: int,
        partition_epoch: int,
        high_watermark: int,
        least_in_sync: int,
    ) -> None:
        """A leader's high watermark is (still, or newly) this."""
        truth = self.truth(key)
        self.on_leads(who, broker_id, key, leader_epoch)
        before = truth.high_watermarks.get((who, leader_epoch), -1)
        truth.high_watermarks[(who, leader_epoch)] = high_watermark
        if high_watermark < before:
            raise Violation(
                "high-watermark-back",
                f"{who}, epoch {leader_epoch} of {truth.name}: {high_watermark} after {before}",
            )
        if high_watermark <= before or truth.allows_unclean:
            return
        mirror = truth.replicas[broker_id]
        committed = truth.committed
        known_end = committed.end_offset
        start = max(before, truth.deleted_to, 0)
        ours = mirror.between(start, high_watermark)
        differing = [
            batch for batch in committed.between(start, high_watermark) if batch not in set(ours)
        ]
        if differing:
            raise Violation(
                "committed-differs",
                f"{who} exposes {truth.name} up to {high_watermark} without {differing[0]}",
            )
        new = [batch for batch in ours if batch.base_offset >= known_end]
        if new:
            size = truth.isr_sizes.get(partition_epoch, 0)
            # Where the last replica was elected, its first high watermark is that of its own
            # checkpoint: what was lost with an earlier leader may come back with it.
            is_own = before < 0 and leader_epoch in truth.drained
            self.counts["came_back_with_a_leader"] += is_own
            if size < least_in_sync and not is_own:
                raise Violation(
                    "min-isr",
                    f"{who} commits {new[0]} of {truth.name} with {size} in sync of "
                    f"{least_in_sync}, partition epoch {partition_epoch}",
                )
            self._commit(truth, key, who, leader_epoch, new)

    def _commit(
        self, truth: PartitionTruth, key: Key, who: str, leader_epoch: int, new: list[Batch]
    ) -> None:
        in_sync = truth.last_isr.get(leader_epoch, frozenset())
        for broker_id in sorted(in_sync - truth.impaired):
            if truth.losses.get(broker_id, -1) >= leader_epoch:
                continue
            if broker_id not in truth.assigned:
                continue  # its log may have been deleted since
            missing = truth.replicas.get(broker_id, Mirror()).lacks(new)
            if missing:
                raise Violation(
                    "committed-not-replicated",
                    f"{who} commits {missing[0]} of {truth.name} in epoch {leader_epoch}, "
                    f"{broker_id} of {sorted(in_sync)} has {truth.replicas.get(broker_id)}",
                )
        self._check_eligible(truth, key, who, leader_epoch, new)
        for batch in new:
            self._check_sequence(truth, batch)
            self.records.on_committed(truth, key, batch)
            truth.committed.append(batch)
            truth.in_sync[batch] = (leader_epoch, in_sync)
        self.counts["committed_batches"] += len(new)

    def _check_eligible(
        self, truth: PartitionTruth, key: Key, who: str, leader_epoch: int, new: list[Batch]
    ) -> None:
        """Who may be elected without having been in sync has all that is committed, too."""
        registration = self.metadata.image.topics.partition(*key)
        if registration is None or registration.leader_epoch != leader_epoch:
            return
        excused = truth.impaired | truth.unclean | truth.stale | self.lost_tail
        for broker_id in registration.elr:
            if broker_id in excused or truth.losses.get(broker_id, -1) >= leader_epoch:
                continue
            missing = truth.replicas.get(broker_id, Mirror()).lacks(new)
            if missing:
                raise Violation(
                    "eligible-lacks",
                    f"{who} commits {missing[0]} of {truth.name} in epoch {leader_epoch}, which "
                    f"{broker_id} lacks, and may lead next: {registration}",
                )

    def _check_sequence(self, truth: PartitionTruth, batch: Batch) -> None:
        """Batches of an idempotent producer follow each other without gap or repetition."""
        if batch.producer_id < 0 or batch.base_sequence < 0:
            return  # coordinators write without sequences
        known = truth.last_of_producer.get(batch.producer_id)
        expected = 0
        if known is not None and known.producer_epoch == batch.producer_epoch:
            expected = increment_sequence(known.last_sequence, 1)
        if known is None:
            # A producer goes on counting when its topic is created again, as Kafka's does.
            is_forgotten = truth.name.rpartition("-")[0] in self.metadata.deletions_asked
        else:
            # A replica that begins where records were deleted to has not seen this producer, so
            # that as leader it takes any sequence for the first one. We believe Kafka's does, too.
            is_forgotten = known.last_offset < truth.deleted_to
        if is_forgotten:
            expected = batch.base_sequence
        if batch.base_sequence != expected and not truth.lost:
            what = "duplicate" if batch.base_sequence < expected else "reordered"
            raise Violation(what, f"{batch} in {truth.name} after {known}")
        truth.last_of_producer[batch.producer_id] = batch

    def on_follower_high_watermark(self, who: str, key: Key, high_watermark: int) -> None:
        """A follower takes this for committed."""
        truth = self.truth(key)
        if truth.allows_unclean or truth.lost or high_watermark <= truth.deleted_to:
            return
        if high_watermark > truth.committed.end_offset:
            raise Violation(
                "high-watermark-ahead",
                f"{who} takes {truth.name} for committed up to {high_watermark}, it is up to "
                f"{truth.committed.end_offset}",
            )


def _is_lost(partition: PartitionRegistration, broker_id: int) -> bool:
    """Whether the controller knows that a replica's log is lost (ADR 11)."""
    is_replica = broker_id in partition.replicas
    return is_replica and partition.directory(broker_id) == LOST_DIRECTORY


def _differ(found: Mirror, before: Mirror) -> bool:
    """Whether two views of a log differ in what both should have."""
    start_offset = start_of(found, before)
    return found.between(start_offset, END) != before.between(start_offset, END)


def start_of(found: Mirror, before: Mirror) -> int:
    """From where on both views of a log count: what is below was deleted."""
    return max(found.start_offset, before.start_offset)
