"""What a state machine writes on its own account in one turn: expiries, aborts, removals.

Owns the limit by count and encoded size, so that neither the loop nor the line of waiting answers
is taken up by it. Must not know what a batch holds: the runtime cuts a portion into batches
(`CoordinatorResult.is_atomic`). Invariant: once it is full nothing is
added to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import LocalProtocolError

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import CoordinatorRecord
    from moldau.protocol.coordinator_records import CoordinatorLog

MAX_BYTES_AT_ONCE: Final = 400_000
"""Bytes of the keys and values of one portion."""


class Portion:
    """The records of one turn."""

    __slots__ = ("_log", "_max_count", "_size_bytes", "records")

    def __init__(self, log: CoordinatorLog, max_count: int) -> None:
        self.records: list[CoordinatorRecord] = []
        self._log = log
        self._max_count = max_count
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the rest has to wait for another turn."""
        return len(self.records) >= self._max_count or self._size_bytes >= MAX_BYTES_AT_ONCE

    def add(self, *records: CoordinatorRecord) -> None:
        """Take more. What cannot be encoded weighs nothing, and is never written."""
        self.records += records
        for key, value, version, *_ in records:
            try:
                self._size_bytes += len(self._log.encode_key(key))
                if value is not None:
                    self._size_bytes += len(self._log.encode_value(value, version))
            except LocalProtocolError:
                continue
