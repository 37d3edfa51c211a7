"""The next free producer id: image and delta.

Owns: what ProducerIdsRecord says. Invariant: the next producer id never goes back, within an
image's life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moldau.metadata.image.errors import InvalidMetadataRecord
from moldau.protocol.metadata_records import ProducerIdsRecord
from moldau.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class ProducerIdsImage:
    """`next_producer_id` begins the next block to hand out; -1 before the first block."""

    next_producer_id: int = -1

    def write(self) -> Iterator[tuple[Message, int]]:
        """The records that make this image."""
        if self.next_producer_id >= 0:
            record = ProducerIdsRecord(
                broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
            yield record, 0


class ProducerIdsDelta:
    """A newly handed out block."""

    __slots__ = ("_image", "next_producer_id")

    def __init__(self, image: ProducerIdsImage) -> None:
        self._image = image
        self.next_producer_id = image.next_producer_id

    def replay_producer_ids(self, record: ProducerIdsRecord) -> None:
        """A block was handed out."""
        if record.next_producer_id < self.next_producer_id:
            raise InvalidMetadataRecord(
                f"producer ids go back from {self.next_producer_id}: {record}"
            )
        self.next_producer_id = record.next_producer_id

    def finish_snapshot(self) -> None:
        """A snapshot that does not speak of producer ids leaves them as they were: they never go
        back.
        """

    def apply(self) -> ProducerIdsImage:
        """The image with the changes made."""
        return ProducerIdsImage(self.next_producer_id)
