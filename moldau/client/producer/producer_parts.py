"""What a producer is put together from, as its settings say.

Owns the translation of settings, and the link by which transactions reach the sender. Must not hold
state. Invariant: a setting is read in one place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.client.cluster.faults import backoff_ms
from moldau.client.config import ProducerConfig
from moldau.client.errors import KafkaError
from moldau.client.producer.core.settings import AccumulatorSettings
from moldau.protocol.records import Codec

if TYPE_CHECKING:
    from moldau.client.producer.appender import Appender
    from moldau.client.producer.sender import Sender


class BatchesLink:
    """What transactions need of the sender, which is made after them."""

    def __init__(self) -> None:
        self.sender: Sender
        self.appender: Appender
        self.refusing: Callable[[], object]

    def wake(self) -> None:
        """Look at all batches again."""
        self.sender.wake()

    async def flush(self) -> None:
        """Until everything appended so far has ended."""
        await self.sender.flush()

    def fail_waiting(self, error: KafkaError) -> None:
        """Fail what is not on the wire, and what waits for a topic."""
        self.refusing()
        self.appender.fail_all_held(error)
        self.sender.fail_waiting(error)

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch is on the wire."""
        return self.sender.has_in_flight

    @property
    def needs_new_epoch(self) -> bool:
        """Whether numbers cannot go on under this epoch."""
        return self.sender.needs_new_epoch

    async def in_flight_done(self) -> None:
        """Until no batch is on the wire."""
        await self.sender.in_flight_done()


def accumulator_settings(config: ProducerConfig, source: random.Random) -> AccumulatorSettings:
    """The accumulator's part of a producer's settings."""
    codec = Codec[config.compression_type.upper()]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }

    def pause_ms(attempt_count: int) -> float:
        return backoff_ms(
            source, attempt_count, config.retry_backoff_ms, config.retry_backoff_max_ms
        )

    return AccumulatorSettings(
        batch_size_bytes=config.batch_size,
        linger_ms=config.linger_ms,
        buffer_memory_bytes=config.buffer_memory,
        max_request_size_bytes=config.max_request_size,
        delivery_timeout_ms=config.delivery_timeout_ms,
        max_block_ms=config.max_block_ms,
        retries=config.retries,
        max_in_flight=config.max_in_flight_requests_per_connection,
        codec=codec,
        compression_level=levels.get(codec),
        backoff_ms=pause_ms,
        adaptive=config.partitioner_adaptive_partitioning_enable,
        availability_timeout_ms=config.partitioner_availability_timeout_ms,
    )
