"""A hash of the topics that a group is subscribed to, which shows when its assignment is outdated.

Owns the hash, the same number that Apache Kafka 4.3 computes (XXH3 of 64 bits, as hash4j feeds it:
little-endian numbers; text as UTF-16 code units followed by their count). It goes into the log
(ConsumerGroupMetadata.metadata_hash), so that a coordinator that takes over does not rebalance.
Must not know groups. Invariant: cached hashes are of topics as they are in the present image; every
change of a topic is followed by `forget`.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack
from typing import Final

import xxhash

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.topics import TopicImage

_FORMAT: Final = 0


class TopicHashes:
    """Hashes of topics, computed when first needed."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}

    def forget(self, topic_name: str) -> None:
        self._hashes.pop(topic_name, None)

    def of_group(self, topic_names: Iterable[str], image: MetadataImage) -> int:
        """The hash of those topics that exist; 0 when none does."""
        topics = image.topics.topics_by_name
        # Java sorts strings by UTF-16 code units; topic names are ASCII, where that is the same.
        hashes = [
            self._of_topic(topics[name], image) for name in sorted(topic_names) if name in topics
        ]
        if not hashes:
            return 0
        return _signed(xxhash.xxh3_64_intdigest(pack(f"<{len(hashes)}q", *hashes)))

    def _of_topic(self, topic: TopicImage, image: MetadataImage) -> int:
        found = self._hashes.get(topic.name)
        if found is None:
            found = self._hashes[topic.name] = topic_hash(topic, image)
        return found


def topic_hash(topic: TopicImage, image: MetadataImage) -> int:
    """The hash of one topic: id, name, partitions, and the racks their replicas are on."""
    brokers = image.cluster.brokers
    most, least = topic.topic_id.bytes[:8], topic.topic_id.bytes[8:]
    parts = [pack("<b", _FORMAT), most[::-1], least[::-1], _text(topic.name)]
    parts.append(pack("<i", len(topic.partitions)))
    for index in range(len(topic.partitions)):
        parts.append(pack("<i", index))
        racks = []
        for broker_id in topic.partitions[index].replicas:
            broker = brokers.get(broker_id)
            if broker is not None and broker.rack is not None:
                racks.append(broker.rack)
        for rack in sorted(racks):
            parts.append(pack("<i", _java_length(rack)) + _text(rack))
    return _signed(xxhash.xxh3_64_intdigest(b"".join(parts)))


def _text(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass") + pack("<i", _java_length(text))


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _signed(value: int) -> int:
    return value - (1 << 64) if value & (1 << 63) else value
