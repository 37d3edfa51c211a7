"""Where keys lie: in the partitions that Apache Kafka's coordinators look for them in.

The numbers come from `Utils.abs(key.hashCode()) % count` of Apache Kafka 4.3.0's clients
library, which its `GroupCoordinatorService` and `TransactionStateManager` compute.
"""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.key_partitions import partition_for

SMALLEST_HASH = "polygenelubricants"


@pytest.mark.parametrize(
    ("key", "of_fifty", "of_seven"),
    [
        ("", 0, 0),
        ("a", 47, 6),
        ("left-classic", 14, 2),
        ("left-consumer", 26, 1),
        ("only-offsets", 25, 2),
        (SMALLEST_HASH, 0, 0),
        ("Zürich", 12, 2),
        ("字", 33, 3),
        ("🦀 crab", 10, 6),
    ],
)
def test_a_key_lies_where_kafka_puts_it(key: str, of_fifty: int, of_seven: int) -> None:
    assert partition_for(key, 50) == of_fifty
    assert partition_for(key, 7) == of_seven
    assert partition_for(key, 1) == 0
