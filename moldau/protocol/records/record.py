"""The record: what a batch holds. Owns the class only; encoding lives in `pure` and `_native`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class Record:
    """One record. `key` or `value` None is null (a tombstone, for a value), not empty.

    `offset` is absolute; `timestamp_ms` is milliseconds since 1970 UTC, -1 for none.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()
