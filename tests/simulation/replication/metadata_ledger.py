"""The metadata's ledger, which also reports to the data's ledger what becomes of every partition.

Owns: the order of the two: a change is in the image before the data's ledger hears of it.
Must not: look at records. Invariant: every committed change of a partition is reported once, in
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.values import UNASSIGNED_DIRECTORY
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message
from tests.simulation.cluster.ledger import Ledger

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import DataLedger


class MetadataLedger(Ledger):
    """See the module."""

    def __init__(self, data: DataLedger) -> None:
        super().__init__()
        self._data = data
        self._unplaced: dict[int, set[tuple[UUID, int]]] = {}
        data.metadata = self

    def may_have_had(self, broker_id: int, topic_id: UUID, index: int) -> bool:
        """Whether a former process of the broker may have made the replica in any of its
        directories: it had none yet in the metadata when the present process registered.
        """
        place = (topic_id, index)
        registration = self.image.topics.partition(*place)
        return (
            registration is not None
            and registration.directory(broker_id) == UNASSIGNED_DIRECTORY
            and place in self._unplaced.get(broker_id, ())
        )

    def _take_note(self, record: Message, before: MetadataImage) -> None:
        super()._take_note(record, before)
        if isinstance(record, kinds.PartitionRecord | kinds.PartitionChangeRecord):
            old = before.topics.partition(record.topic_id, record.partition_id)
            new = self.image.topics.partition(record.topic_id, record.partition_id)
            if new is not None:
                self._data.on_partition(record.topic_id, record.partition_id, old, new)
        elif isinstance(record, kinds.ClearElrRecord):
            self._note_cleared(before)
        elif isinstance(record, kinds.RemoveTopicRecord):
            self._data.on_topic_removed(record.topic_id)
        elif isinstance(record, kinds.RegisterBrokerRecord):
            self._unplaced[record.broker_id] = {
                (topic_id, index)
                for topic_id, topic in before.topics.topics_by_id.items()
                for index, partition in topic.partitions.items()
                if record.broker_id in partition.replicas
            }
            self._data.on_registration(record.broker_id, record.incarnation_id)

    def _note_cleared(self, before: MetadataImage) -> None:
        """One record changes every partition that has eligible leaders."""
        for topic_id, topic in self.image.topics.topics_by_id.items():
            for index, partition in topic.partitions.items():
                old = before.topics.partition(topic_id, index)
                if partition is not old:
                    place = (topic_id, index, partition.partition_epoch)
                    self.partition_states[place] = partition.isr
                    self._data.on_partition(topic_id, index, old, partition)
