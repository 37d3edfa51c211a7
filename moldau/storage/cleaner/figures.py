"""CleanerFigures: what is told of log compaction, under the names Kafka's cleaner has.

Owns: the values of the last look and the last cleaning. Must not: export (broker.http does).
Invariant: reading costs nothing and never waits.
"""

from __future__ import annotations

from moldau.runtime.clock import Clock
from moldau.storage.cleaner.job import CleaningStats

CLEANER = "kafka.log:type=LogCleaner,name="
CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name="


class CleanerFigures:
    """Of all cleaners of a node together."""

    __slots__ = (
        "_clock",
        "_last_look_ms",
        "buffer_utilization",
        "cleaned_count",
        "last_clean_ms",
        "max_compaction_delay_ms",
        "max_dirty_ratio",
        "recopy_ratio",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_look_ms = clock.monotonic_ms()
        self.buffer_utilization = 0.0
        self.cleaned_count = 0
        self.last_clean_ms = 0.0
        self.max_compaction_delay_ms = 0
        self.max_dirty_ratio = 0.0
        self.recopy_ratio = 0.0

    def looked(self, max_dirty_ratio: float, max_compaction_delay_ms: int) -> None:
        """All logs were looked at."""
        self._last_look_ms = self._clock.monotonic_ms()
        self.max_dirty_ratio = max_dirty_ratio
        self.max_compaction_delay_ms = max_compaction_delay_ms

    def cleaned(self, stats: CleaningStats, elapsed_ms: float) -> None:
        """One log was cleaned."""
        self.cleaned_count += 1
        self.last_clean_ms = elapsed_ms
        self.buffer_utilization = stats.buffer_utilization
        self.recopy_ratio = stats.bytes_written / stats.bytes_read if stats.bytes_read else 0.0

    def values(self) -> dict[str, float]:
        """By full metric name."""
        return {
            CLEANER + "max-buffer-utilization-percent": float(int(100 * self.buffer_utilization)),
            CLEANER + "cleaner-recopy-percent": float(int(100 * self.recopy_ratio)),
            CLEANER + "max-clean-time-secs": float(int(self.last_clean_ms / 1000)),
            CLEANER + "max-compaction-delay-secs": float(self.max_compaction_delay_ms // 1000),
            CLEANER + "DeadThreadCount": 0.0,
            CLEANER_MANAGER + "max-dirty-percent": float(int(100 * self.max_dirty_ratio)),
            CLEANER_MANAGER + "time-since-last-run-ms": float(
                int(self._clock.monotonic_ms() - self._last_look_ms)
            ),
        }
