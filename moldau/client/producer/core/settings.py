"""What the accumulator is told: sizes, times, codec.

Owns no parsing: `client.config` did that. Invariant: plain values, never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moldau.protocol.records import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorSettings:
    """Times in milliseconds, sizes in bytes; the names are those of Kafka's producer.

    Attributes:
        backoff_ms: how long a batch waits that came back for the nth time (KIP-580).
        max_block_ms: how long records wait for a topic that nobody knows.
        adaptive: `partitioner.adaptive.partitioning.enable` (KIP-794).
        availability_timeout_ms: `partitioner.availability.timeout.ms`, 0 for never.
    """

    batch_size_bytes: int
    linger_ms: float
    buffer_memory_bytes: int
    max_request_size_bytes: int
    delivery_timeout_ms: float
    max_block_ms: float
    retries: int
    max_in_flight: int
    codec: Codec
    compression_level: int | None
    backoff_ms: Callable[[int], float]
    adaptive: bool = True
    availability_timeout_ms: float = 0.0
