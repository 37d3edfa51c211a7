"""Filters that need no condition: a record's key, or a text in it, and several filters at once.

Must not know where a filter's text comes from. Invariant: a filter made here raises nothing but
what the decoders raise that its user has given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.client import ConsumerRecord
    from moldau.record_filter.closures import RecordFilter

DecodeText = Callable[[bytes], bytes]
"""The text that the bytes of a key or a value mean."""


def with_key(key: bytes, decode: DecodeText | None = None) -> RecordFilter:
    """Records that have this key."""
    if decode is None:
        return lambda record: record.key == key
    return lambda record: record.key is not None and decode(record.key) == key


def with_text(
    text: bytes, decode_key: DecodeText | None = None, decode_value: DecodeText | None = None
) -> RecordFilter:
    """Records that have this text in the key, the value or a header."""

    def has(data: bytes | None, decode: DecodeText | None = None) -> bool:
        return data is not None and text in (data if decode is None else decode(data))

    def is_wanted(record: ConsumerRecord[bytes, bytes]) -> bool:
        return (
            has(record.value, decode_value)
            or has(record.key, decode_key)
            or any(has(data) for _, data in record.headers)
        )

    return is_wanted


def all_of(filters: Sequence[RecordFilter]) -> RecordFilter | None:
    """Records that all of these want; None where there are no filters."""
    if len(filters) < 2:
        return filters[0] if filters else None
    return lambda record: all(each(record) for each in filters)
