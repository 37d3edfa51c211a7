"""The newest value of each key of a ledger topic, for all sinks that share it.

Owns which keys are whose. Must not read topics. Invariant: no key is forgotten; what another sink's
values mean is looked at only when that sink is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from moldau.spark_connector.core.ledger import (
    KEY_SEPARATOR,
    NAMED_PREFIX,
    Batch,
    LedgerUnreadable,
    SinkRecord,
    decode,
    finished_key,
)

_ENTRY_BYTES: Final = 200
"""What an entry takes beside its text, roughly."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value and where it lies in the topic; None: written by this process."""

    value: bytes
    log_offset: int | None


class LedgerIndex:
    """The newest values; `take` each record of the topic in its order."""

    def __init__(self) -> None:
        self._records: dict[str, _Entry] = {}
        self._finished: dict[str, dict[str, _Entry]] = {}
        self.size_bytes = 0

    def take(self, key: bytes, value: bytes | None, log_offset: int | None = None) -> None:
        """Take a record of the topic; None is a tombstone. Keys that no sink has are left out."""
        try:
            sink_id, separator, query_id = key.decode().partition(KEY_SEPARATOR)
        except UnicodeDecodeError:
            return
        if separator:
            entries, name = self._finished.setdefault(sink_id, {}), query_id
        else:
            entries, name = self._records, sink_id
        left = entries.pop(name, None)  # the newest one goes to the end
        if left is not None:
            self.size_bytes -= len(key) + len(left.value) + _ENTRY_BYTES
        if value is not None:
            entries[name] = _Entry(value, log_offset)
            self.size_bytes += len(key) + len(value) + _ENTRY_BYTES
        elif separator and not entries:
            del self._finished[sink_id]

    def record(self, sink_id: str) -> SinkRecord | None:
        """The sink's own record; None for one that the ledger does not know.

        Raises:
            LedgerUnreadable
        """
        entry = self._records.get(sink_id)
        return None if entry is None else _decoded(entry, sink_id)

    def finished(self, sink_id: str, query_id: str) -> Batch | None:
        """The last batch of a query that another one has followed on the sink.

        Raises:
            LedgerUnreadable
        """
        entry = self._finished.get(sink_id, {}).get(query_id)
        return None if entry is None else _decoded(entry, sink_id).batch

    def streams(self, sink_id: str, most: int) -> tuple[dict[str, Batch], bool]:
        """The last batches of the sink's other streaming queries, and whether these are all.

        Args:
            most: of more than so many the newest.

        Raises:
            LedgerUnreadable
        """
        names = [
            each for each in self._finished.get(sink_id, {}) if not each.startswith(NAMED_PREFIX)
        ]
        found = {}
        for name in names[-most:]:
            batch = self.finished(sink_id, name)
            if batch is not None:
                found[name] = batch
        return found, len(names) <= most

    def elsewhere(self, sink_id: str, query_id: str) -> list[tuple[str, Batch]]:
        """The last batches of a query under other sinks, with these sinks' ids.

        Raises:
            LedgerUnreadable
        """
        found = []
        needle = query_id.encode()
        for other, entry in self._records.items():
            if other != sink_id and needle in entry.value:
                batch = _decoded(entry, other).batch
                if batch is not None and batch.query_id == query_id:
                    found.append((other, batch))
        for other in self._finished:
            batch = None if other == sink_id else self.finished(other, query_id)
            if batch is not None:
                found.append((other, batch))
        return found

    def sink_ids(self) -> list[str]:
        """The sinks that the ledger knows, sorted."""
        return sorted(self._records.keys() | self._finished.keys())

    def values(self, sink_id: str) -> Iterator[tuple[str, bytes]]:
        """Every key of a sink, its own first, with its value."""
        if sink_id in self._records:
            yield sink_id, self._records[sink_id].value
        for query_id, entry in self._finished.get(sink_id, {}).items():
            yield finished_key(sink_id, query_id), entry.value


def _decoded(entry: _Entry, sink_id: str) -> SinkRecord:
    try:
        return decode(entry.value)
    except LedgerUnreadable as error:
        where = "" if entry.log_offset is None else f"offset {entry.log_offset}, "
        raise LedgerUnreadable(f"{where}sink {sink_id!r}: {error}") from None
