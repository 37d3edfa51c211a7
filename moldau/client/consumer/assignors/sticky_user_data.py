"""What the eager sticky assignor sends along with a subscription.

Owns those bytes: topics with their partitions, and since version 1 the generation; there is no
version number in them. Invariant: what an older or a broken member sent never fails the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

from moldau.protocol.types import TopicPartition

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


def write_sticky_user_data(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Version 1: what the member has, and since which generation."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    parts = [_INT32.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(indexes)))
        parts += (_INT32.pack(index) for index in indexes)
    parts.append(_INT32.pack(generation_id))
    return b"".join(parts)


def read_sticky_user_data(user_data: bytes) -> tuple[tuple[TopicPartition, ...], int | None]:
    """Partitions and generation; None for version 0's. What cannot be read counts as nothing."""
    partitions: list[TopicPartition] = []
    data = memoryview(user_data)
    try:
        (topic_count,) = _INT32.unpack_from(data, 0)
        at = 4
        for _ in range(topic_count):
            (size,) = _INT16.unpack_from(data, at)
            at += 2
            topic = bytes(data[at : at + size]).decode()
            at += size
            (count,) = _INT32.unpack_from(data, at)
            at += 4
            for _ in range(count):
                partitions.append(TopicPartition(topic, _INT32.unpack_from(data, at)[0]))
                at += 4
    except (error, ValueError):
        return (), None
    if len(data) >= at + 4:
        return tuple(partitions), _INT32.unpack_from(data, at)[0]
    return tuple(partitions), None
