"""Where records go: the partitions of Java's client for keys, and the other partitioners."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from moldau.client.producer.partitioners import (
    Murmur2Partitioner,
    RandomPartitioner,
    RoundRobinPartitioner,
    TopicPartitions,
    partitioner_of,
)
from moldau.protocol.records import columns_pure as pure
from moldau.protocol.records import murmur2_partition
from moldau.protocol.records._implementation import murmur2

VECTORS = Path(__file__).with_name("murmur2_vectors.txt")
DICE = random.Random(1)
COUNTS = (1, 2, 3, 7, 12, 50, 1000, 2**31 - 1)


def vectors() -> list[tuple[bytes, int, list[int]]]:
    found = []
    for line in VECTORS.read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            key, digest, *partitions = line.split()
            data = b"" if key == "-" else bytes.fromhex(key)
            found.append((data, int(digest), [int(text) for text in partitions]))
    return found


def test_keys_go_where_the_java_client_sends_them() -> None:
    assert len(vectors()) > 50
    for key, digest, partitions in vectors():
        assert murmur2(key) == pure.murmur2(key) == digest & 0xFFFFFFFF
        assert [murmur2_partition(key, count) for count in COUNTS] == partitions
        assert [pure.murmur2_partition(key, count) for count in COUNTS] == partitions
        of_all = [TopicPartitions(count, range(count)) for count in COUNTS]
        assert [Murmur2Partitioner()("t", key, None, each) for each in of_all] == partitions


def test_a_key_does_not_care_for_leaders() -> None:
    partitioner = Murmur2Partitioner()
    for key, _, partitions in vectors():
        assert partitioner("t", key, b"v", TopicPartitions(7, [0])) == partitions[3]


def test_random_takes_partitions_that_have_a_leader() -> None:
    partitioner = RandomPartitioner(random.Random(1))
    some = TopicPartitions(6, [1, 4])
    assert {partitioner("t", b"k", b"v", some) for _ in range(50)} == {1, 4}
    none = TopicPartitions(3, [])
    assert {partitioner("t", b"k", b"v", none) for _ in range(80)} == {0, 1, 2}


def test_without_a_key_murmur2_is_random() -> None:
    partitioner = Murmur2Partitioner(random.Random(1))
    seen = {partitioner("t", None, b"v", TopicPartitions(3, [0, 2])) for _ in range(50)}
    assert seen == {0, 2}


def test_round_robin_takes_turns_per_topic() -> None:
    partitioner = RoundRobinPartitioner()
    whole = TopicPartitions(3, [0, 1, 2])
    assert [partitioner("a", b"same", None, whole) for _ in range(4)] == [0, 1, 2, 0]
    assert partitioner("b", None, None, whole) == 0
    counts = Counter(partitioner("c", None, None, TopicPartitions(3, [0, 2])) for _ in range(10))
    assert counts == {0: 5, 2: 5}


def test_names() -> None:
    for name in (None, "", "default", "sticky"):
        assert partitioner_of(name, DICE) is None
    assert isinstance(partitioner_of("round_robin", DICE), RoundRobinPartitioner)
    assert isinstance(partitioner_of("murmur2", DICE), Murmur2Partitioner)
    assert isinstance(partitioner_of("random", DICE), RandomPartitioner)
    given = RoundRobinPartitioner()
    assert partitioner_of(given, DICE) is given
    with pytest.raises(ValueError, match="round_robin"):
        partitioner_of("roundrobin", DICE)
    with pytest.raises(TypeError, match="called"):
        partitioner_of(5, DICE)  # type: ignore[arg-type]
