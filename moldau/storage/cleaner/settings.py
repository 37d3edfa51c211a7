"""CleanerSettings: the node-level keys of log compaction, as plain values.

Owns: the translation from Kafka's keys. Must not: know topic keys (LogConfig does).
Invariant: immutable; memory and disk budgets are those of all cleaners together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIN_MAP_BYTES = 1024 * 1024
"""What a cleaner's key table gets at least."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Defaults are Kafka's."""

    enabled: bool = True
    thread_count: int = 1
    """Logs cleaned at a time; each has a child process while there is something to clean."""
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    buffer_load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024
    io_max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000

    @property
    def map_bytes(self) -> int:
        """Memory of one cleaner's key table."""
        return max(self.dedupe_buffer_bytes // max(self.thread_count, 1), MIN_MAP_BYTES)

    @property
    def io_bytes(self) -> int:
        """Memory of one cleaner's reads, and as much for its writes."""
        return max(self.io_buffer_bytes // max(self.thread_count, 1) // 2, 4096)

    @property
    def max_bytes_per_second(self) -> float:
        """One cleaner's share of the disk budget, reads and writes together."""
        return self.io_max_bytes_per_second / max(self.thread_count, 1)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> CleanerSettings:
        """Take Kafka's node keys (typed values)."""
        return cls(
            enabled=values["log.cleaner.enable"],
            thread_count=values["log.cleaner.threads"],
            dedupe_buffer_bytes=values["log.cleaner.dedupe.buffer.size"],
            buffer_load_factor=values["log.cleaner.io.buffer.load.factor"],
            io_buffer_bytes=values["log.cleaner.io.buffer.size"],
            io_max_bytes_per_second=values["log.cleaner.io.max.bytes.per.second"],
            backoff_ms=values["log.cleaner.backoff.ms"],
        )
