"""Chooses the partition of records that are sent without one.

Owns the partitioners that the setting `partitioner` names, and the protocol for others. The
built-in default needs to know how full batches are and is in `core/queues.py`, for keys in
`appender`; None stands for it. Invariant: a partitioner is called once per record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from moldau.protocol.records import murmur2_partition


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """The partitions of a topic as a partitioner sees them.

    Attributes:
        count: how many there are; they are numbered from 0.
        available: those that have a leader at the moment, ascending.
    """

    count: int
    available: Sequence[int]


class Partitioner(Protocol):
    """Chooses partitions; called with the serialized key and value."""

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: TopicPartitions, /
    ) -> int:
        """A partition from 0 to `partitions.count` - 1. `send` raises what it raises."""
        ...


class RandomPartitioner:
    """A random partition that has a leader, independent of the key."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.Random()

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: TopicPartitions, /
    ) -> int:
        candidates = partitions.available or range(partitions.count)
        return candidates[self._random.randrange(len(candidates))]


class RoundRobinPartitioner:
    """One partition after the other, independent of the key; without those that have no leader."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: TopicPartitions, /
    ) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        candidates = partitions.available or range(partitions.count)
        return candidates[turn % len(candidates)]


class Murmur2Partitioner:
    """The partition that Kafka's Java client takes for the key; without a key, one at random.

    The default partitioner does the same with keys, and better without.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._without_key = RandomPartitioner(source)

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: TopicPartitions, /
    ) -> int:
        if key is None:
            return self._without_key(topic, key, value, partitions)
        return murmur2_partition(key, partitions.count)


DEFAULT_NAMES: Final[frozenset[str]] = frozenset({"", "default", "sticky"})
"""Names of the built-in partitioner (KIP-480, KIP-794)."""

NAMED: Final[Mapping[str, Callable[[random.Random], Partitioner]]] = MappingProxyType(
    {
        "murmur2": Murmur2Partitioner,
        "random": RandomPartitioner,
        "round_robin": lambda _: RoundRobinPartitioner(),
        # The Java client's name for it.
        "org.apache.kafka.clients.producer.RoundRobinPartitioner": lambda _: (
            RoundRobinPartitioner()
        ),
    }
)


def partitioner_of(given: str | Partitioner | None, source: random.Random) -> Partitioner | None:
    """The partitioner of a producer's argument or setting; None for the built-in one. Named ones
    draw from `source`.

    Raises:
        ValueError: a name that names none.
        TypeError: neither a name nor callable.
    """
    if given is None or (isinstance(given, str) and given in DEFAULT_NAMES):
        return None
    if isinstance(given, str):
        factory = NAMED.get(given)
        if factory is None:
            known = ", ".join(["default", *NAMED])
            raise ValueError(f"partitioner={given!r}: a function, or one of {known}")
        return factory(source)
    if not callable(given):
        raise TypeError(f"partitioner={given!r} cannot be called")
    return given
