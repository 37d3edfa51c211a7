"""When to write a metadata snapshot.

Owns: the two limits `metadata.log.max.record.bytes.between.snapshots` and
`metadata.log.max.snapshot.interval.ms`, and what has been committed since the last one.
Must not: write. Invariant: a log without new records asks for no snapshot.
"""

from __future__ import annotations

from typing import Final

RETRY_AFTER_MS: Final = 60_000.0


class SnapshotPolicy:
    """Counts committed bytes and time. Times are monotonic milliseconds."""

    __slots__ = (
        "_bytes_since",
        "_interval_ms",
        "_last_ms",
        "_max_bytes",
        "_not_before_ms",
        "_records_since",
    )

    def __init__(self, *, max_bytes: int, interval_ms: int) -> None:
        """`interval_ms` 0 means never because of time."""
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._bytes_since = 0
        self._records_since = False
        self._last_ms = 0.0
        self._not_before_ms = 0.0

    def start(self, now_ms: float) -> None:
        """The clock begins to run."""
        self._last_ms = now_ms

    def on_committed(self, size_bytes: int, *, has_records: bool) -> None:
        """A batch was committed."""
        self._bytes_since += size_bytes
        self._records_since |= has_records

    def reason(self, now_ms: float) -> str | None:
        """Why a snapshot is due now, None when it is not."""
        if not self._records_since or now_ms < self._not_before_ms:
            return None
        if self._bytes_since >= self._max_bytes:
            return f"{self._bytes_since} bytes were committed since the last one"
        if self._interval_ms and now_ms - self._last_ms >= self._interval_ms:
            return f"the last one is {int(now_ms - self._last_ms)} ms old"
        return None

    def begin(self, now_ms: float) -> None:
        """A snapshot is being written: what comes now counts for the next."""
        self._bytes_since = 0
        self._records_since = False
        self._last_ms = now_ms

    def failed(self) -> None:
        """It was not written: ask again after a while, since a full disk does not heal at once."""
        self._records_since = True
        self._bytes_since = self._max_bytes
        self._not_before_ms = self._last_ms + RETRY_AFTER_MS

    def next_check_ms(self, now_ms: float) -> float | None:
        """In how many milliseconds to look again because of time."""
        if not self._interval_ms:
            return None
        return max(self._last_ms + self._interval_ms - now_ms, 1_000.0)
