"""What the whole cluster has promised: committed batches, images, epochs, and what clients and
brokers read of them.

Owns: the one true sequence of committed batches as the first node delivered it, the image after
each, and every check that needs no knowledge of how the quorum works.
Must not: be asked by production code. Invariant: entries are only added; a contradiction raises
Violation at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance, TransactionFilter
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message
from tests.kit.seeds import Violation
from tests.simulation.cluster.image_checks import check_image, check_step
from tests.simulation.cluster.security_ledger import SecurityLedger

IMAGE_PARTS = tuple(each.name for each in fields(MetadataImage) if each.name != "provenance")


@dataclass(frozen=True, slots=True)
class Committed:
    """One batch as every replica must have it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    append_timestamp_ms: int
    records: tuple[Message, ...]


class Ledger:
    """See the module. Nodes report by `on_*`; clients by `acknowledged_*`."""

    def __init__(self) -> None:
        self.image = MetadataImage.EMPTY
        self.batches: dict[int, Committed] = {}
        self.images: dict[int, MetadataImage] = {}
        self.end_offset = 0
        self.actors: dict[int, str] = {}
        self.topics_created: dict[str, set[UUID]] = {}
        self.deletions_asked: set[str] = set()
        self.topics_deleted: set[UUID] = set()
        self.config_values: dict[tuple[str, str], set[str | None]] = {}
        self.partition_states: dict[tuple[UUID, int, int], tuple[int, ...]] = {}
        self.broker_epochs: dict[int, int] = {}
        self.last_broker_epoch = -1
        self.incarnations_clean: dict[UUID, bool] = {}
        self.id_blocks: list[tuple[int, int, str]] = []
        self.acknowledged_count = 0
        self.security = SecurityLedger()
        self._transactions = TransactionFilter()

    # -- controllers -----------------------------------------------------------------------------

    def acts(self, who: str, leader_epoch: int) -> None:
        """A process appended, or became active, in an epoch: no other process ever does so."""
        known = self.actors.setdefault(leader_epoch, who)
        if known != who:
            raise Violation("two-controllers", f"{known} and {who} act in epoch {leader_epoch}")

    def on_commit(self, who: str, batch: Any) -> None:
        """A node takes a batch for committed."""
        entry = Committed(
            batch.base_offset,
            batch.last_offset,
            batch.leader_epoch,
            batch.append_timestamp_ms,
            tuple(batch.records),
        )
        known = self.batches.get(entry.base_offset)
        if known is not None:
            if known != entry:
                raise Violation("committed-twice", f"{who} has {entry}, it was {known}")
            return
        if entry.base_offset != self.end_offset:
            raise Violation(
                "commit-gap", f"{who} commits {entry}, the known end is {self.end_offset}"
            )
        self.batches[entry.base_offset] = entry
        self.end_offset = entry.last_offset + 1
        self._replay(entry, batch.records)

    def on_snapshot(self, who: str, snapshot: Any) -> None:
        """A node starts over from a snapshot: it must be what was committed up to there."""
        end_offset = snapshot.end_offset
        if end_offset > self.end_offset:
            raise Violation(
                "snapshot-ahead",
                f"{who} loads one up to {end_offset}, committed is {self.end_offset}",
            )
        image = image_of(snapshot.records)
        self.compare(who, image, end_offset - 1)

    def compare(self, who: str, image: MetadataImage, last_offset: int) -> None:
        """An image that stands for everything up to `last_offset` must be the one known."""
        known = self.images.get(last_offset)
        if known is None:
            raise Violation("image-between", f"{who} has one at {last_offset}, where no batch ends")
        parts = [part for part in IMAGE_PARTS if getattr(image, part) != getattr(known, part)]
        if parts:
            raise Violation(
                "images-differ",
                f"{who} at {last_offset} in {', '.join(parts)}: {_difference(image, known)}",
            )

    # -- what clients and brokers have read ------------------------------------------------------

    def acknowledged_create(self, topic_name: str, topic_id: UUID, partition_count: int) -> None:
        """A client read that its topic exists."""
        self.acknowledged_count += 1
        if topic_id not in self.topics_created.get(topic_name, ()):
            raise Violation("acknowledged-lost", f"topic {topic_name} {topic_id} never committed")
        topic = self.image.topics.topics_by_id.get(topic_id)
        if topic is None:
            if topic_id not in self.topics_deleted:
                raise Violation("acknowledged-lost", f"topic {topic_name} is gone")
        elif len(topic.partitions) < partition_count:
            raise Violation("acknowledged-lost", f"partitions of {topic_name}: {topic.partitions}")

    def acknowledged_delete(self, topic_id: UUID) -> None:
        """A client read that a topic is gone."""
        self.acknowledged_count += 1
        if topic_id not in self.topics_deleted:
            raise Violation("acknowledged-lost", f"the deletion of {topic_id} never committed")

    def acknowledged_config(self, topic_name: str, key: str, value: str) -> None:
        """A client read that a topic has a value (values are never used twice)."""
        self.acknowledged_count += 1
        if value not in self.config_values.get((topic_name, key), ()):
            raise Violation("acknowledged-lost", f"{topic_name} {key}={value} never committed")

    def acknowledged_isr(
        self, topic_id: UUID, partition_index: int, partition_epoch: int, isr: tuple[int, ...]
    ) -> None:
        """A leader got the ISR that its change led to."""
        self.acknowledged_count += 1
        known = self.partition_states.get((topic_id, partition_index, partition_epoch))
        if known is None or sorted(known) != sorted(isr):
            raise Violation(
                "acknowledged-lost",
                f"ISR {isr} of {topic_id}-{partition_index} at partition epoch {partition_epoch}"
                f" was committed as {known}",
            )

    def acknowledged_registration(self, broker_id: int, broker_epoch: int) -> None:
        """A broker got its epoch."""
        self.acknowledged_count += 1
        if self.broker_epochs.get(broker_epoch) != broker_id:
            raise Violation(
                "acknowledged-lost",
                f"epoch {broker_epoch} of broker {broker_id} never committed",
            )

    def acknowledged_ids(self, who: str, first_id: int, count: int) -> None:
        """A broker was given a block of producer ids."""
        self.acknowledged_count += 1
        for first, end, owner in self.id_blocks:
            if first_id < end and first < first_id + count:
                raise Violation(
                    "ids-overlap", f"{who} has {first_id} +{count}, {owner} has {first} to {end}"
                )
        if self.image.producer_ids.next_producer_id < first_id + count:
            raise Violation("acknowledged-lost", f"ids {first_id} +{count} never committed")
        self.id_blocks.append((first_id, first_id + count, who))

    # -- replaying -------------------------------------------------------------------------------

    def _replay(self, entry: Committed, records: tuple[Message, ...]) -> None:
        before = self.image
        ready = list(self._transactions.feed(records))
        delta = MetadataDelta(before)
        for record in ready:
            delta.replay(record)
        provenance = Provenance(entry.last_offset, entry.leader_epoch, entry.append_timestamp_ms)
        self.image = delta.apply(provenance)
        for record in ready:
            self._take_note(record, before)
        self.security.replay(ready, self.image)
        self.images[entry.last_offset] = self.image
        if ready:
            check_step(before, self.image)
            check_image(self.image)

    def _take_note(self, record: Message, before: MetadataImage) -> None:
        if isinstance(record, kinds.TopicRecord):
            self.topics_created.setdefault(record.name, set()).add(record.topic_id)
        elif isinstance(record, kinds.RemoveTopicRecord):
            self.topics_deleted.add(record.topic_id)
            topic = before.topics.topics_by_id.get(record.topic_id)
            if topic is None or topic.name not in self.deletions_asked:
                raise Violation("deleted-unasked", f"topic {record.topic_id} {topic}")
        elif isinstance(record, kinds.ConfigRecord):
            place = (record.resource_name, record.name)
            self.config_values.setdefault(place, set()).add(record.value)
        elif isinstance(record, kinds.PartitionRecord | kinds.PartitionChangeRecord):
            partition = self.image.topics.partition(record.topic_id, record.partition_id)
            if partition is not None:
                place = (record.topic_id, record.partition_id, partition.partition_epoch)
                self.partition_states[place] = partition.isr
        elif isinstance(record, kinds.RegisterBrokerRecord):
            self._note_registration(record, before)

    def _note_registration(self, record: kinds.RegisterBrokerRecord, before: MetadataImage) -> None:
        broker_epoch = record.broker_epoch
        known = before.cluster.brokers.get(record.broker_id)
        if known is not None and known.incarnation_id == record.incarnation_id:
            if broker_epoch != known.broker_epoch:
                raise Violation("broker-epoch", f"{record} after {known}")
            return
        if broker_epoch <= self.last_broker_epoch:
            raise Violation(
                "broker-epoch",
                f"{broker_epoch} of {record.broker_id} after {self.last_broker_epoch}",
            )
        self.last_broker_epoch = broker_epoch
        self.broker_epochs[broker_epoch] = record.broker_id
        if not self.incarnations_clean.get(record.incarnation_id, True):
            self._check_unclean(record.broker_id)

    def _check_unclean(self, broker_id: int) -> None:
        """Who may have lost its unflushed tail is in no ISR with others, and in no ELR."""
        for topic in self.image.topics.topics_by_id.values():
            for index, partition in topic.partitions.items():
                alone = partition.isr == (broker_id,)
                if (broker_id in partition.isr and not alone) or broker_id in partition.elr:
                    raise Violation(
                        "unclean-in-isr", f"broker {broker_id}, {topic.name}-{index}: {partition}"
                    )


def image_of(records: Any) -> MetadataImage:
    """The image that a snapshot's records make."""
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record in records:
        delta.replay(record)
    return delta.apply(Provenance())


def _difference(image: MetadataImage, known: MetadataImage) -> str:
    ours = [repr(record) for record, _version in image.write()]
    theirs = [repr(record) for record, _version in known.write()]
    more = [line for line in ours if line not in theirs][:3]
    less = [line for line in theirs if line not in ours][:3]
    return f"has {more}, lacks {less}"


__all__ = ["Committed", "Ledger", "image_of"]
