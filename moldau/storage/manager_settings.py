"""LogManagerSettings: the node-level keys the log manager works by, as plain numbers.

Owns: the translation from Kafka's keys. Must not: know topic-level keys (LogConfig does).
Invariant: immutable; intervals are milliseconds, and one of at least `NEVER_MS` never fires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

NEVER_MS: Final = 2**62

_KEYS: Final = {
    "retention_check_interval_ms": "log.retention.check.interval.ms",
    "flush_check_interval_ms": "log.flush.scheduler.interval.ms",
    "recovery_point_checkpoint_interval_ms": "log.flush.offset.checkpoint.interval.ms",
    "log_start_offset_checkpoint_interval_ms": "log.flush.start.offset.checkpoint.interval.ms",
    "high_watermark_checkpoint_interval_ms": "replica.high.watermark.checkpoint.interval.ms",
    "producer_expiration_ms": "producer.id.expiration.ms",
    "producer_expiration_check_interval_ms": "producer.id.expiration.check.interval.ms",
    "recovery_threads_per_directory": "num.recovery.threads.per.data.dir",
    "initial_delay_ms": "log.initial.task.delay.ms",
}


@dataclass(frozen=True, slots=True)
class LogManagerSettings:
    """Defaults are Kafka's."""

    retention_check_interval_ms: int = 5 * 60 * 1000
    flush_check_interval_ms: int = NEVER_MS
    recovery_point_checkpoint_interval_ms: int = 60_000
    log_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_expiration_ms: int = 24 * 3600 * 1000
    producer_expiration_check_interval_ms: int = 10 * 60 * 1000
    recovery_threads_per_directory: int = 2
    initial_delay_ms: int = 30_000
    """How long after the start the first retention and removal may come."""
    idle_check_interval_ms: int = 10 * 60 * 1000
    """A log without an append between two checks gives its descriptors and mappings back."""
    max_open_closed_segments: int = 512
    """Descriptor budget: closed segments of all logs whose files stay open."""

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> LogManagerSettings:
        """Take what is there of Kafka's node keys (typed values); the rest keeps its default."""
        taken: dict[str, int] = {}
        names = {field.name for field in fields(cls)}
        for name, key in _KEYS.items():
            assert name in names
            value = values.get(key)
            if value is not None:
                assert isinstance(value, int), key
                taken[name] = value
        return cls(**taken)
