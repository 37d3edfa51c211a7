"""Metadata transactions (KIP-868): holding back records until their transaction ends.

Owns: the records of the one transaction that may be open. Must not: replay anything.
Invariant: what `feed` hands out was either outside of any transaction or part of a completed one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moldau.metadata.image.errors import InvalidMetadataRecord
from moldau.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from moldau.protocol.schema import Message

MAX_TRANSACTION_RECORDS: Final = 1_000_000


class TransactionFilter:
    """Takes committed records in order, gives those that may be applied."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[Message] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended yet."""
        return self._held is not None

    def reset(self) -> None:
        """Forget an open transaction: a snapshot was loaded, which never contains one."""
        self._held = None

    def feed(self, records: Iterable[Message]) -> list[Message]:
        """The records that became applicable.

        Raises:
            InvalidMetadataRecord: transaction records out of turn, or a transaction of more than
                MAX_TRANSACTION_RECORDS records.
        """
        ready: list[Message] = []
        for record in records:
            kind = type(record)
            if kind is BeginTransactionRecord:
                if self._held is not None:
                    raise InvalidMetadataRecord("a metadata transaction begins inside another")
                self._held = []
            elif kind is EndTransactionRecord or kind is AbortTransactionRecord:
                if self._held is None:
                    raise InvalidMetadataRecord(f"no metadata transaction is open: {record}")
                if kind is EndTransactionRecord:
                    ready.extend(self._held)
                self._held = None
            elif self._held is None:
                ready.append(record)
            else:
                if len(self._held) >= MAX_TRANSACTION_RECORDS:
                    raise InvalidMetadataRecord(
                        f"a metadata transaction of over {MAX_TRANSACTION_RECORDS} records"
                    )
                self._held.append(record)
        return ready
