"""What a history as a whole shows: where values are, which are visible, which transactions count.

Owns the index that all checks share. Must not: tell of anomalies. Invariant: after `resolve` a
transaction of unknown outcome counts as committed exactly when a record of it is visible.
"""

from __future__ import annotations

from tests.system.transactions.history import History, Log, Outcome, Send, Transaction


class Known:
    """The index of one history; filled by the checker's first pass, then resolved."""

    def __init__(self, history: History) -> None:
        self.final = history.final
        self.sent: dict[str, tuple[Transaction, Send]] = {
            send.value: (transaction, send)
            for transaction in history.transactions
            for send in transaction.sends
        }
        #: The value at each offset, as first seen.
        self.values: dict[Log, dict[int, str]] = {}
        #: The offset of each value, as first seen.
        self.offsets: dict[str, int] = {}
        #: Values that a read_committed reading had, and who had them last.
        self.visible: dict[str, str] = {}
        #: Offsets that every consumer of read_committed must come by, ascending.
        self.visible_offsets: dict[Log, list[int]] = {}
        #: The same for read_uncommitted.
        self.all_offsets: dict[Log, list[int]] = {}
        self._in_the_end: set[tuple[Log, str]] = set()
        self._settled: dict[int, Outcome] = {}

    def resolve(self) -> None:
        """Everything is collected: find out what it means for transactions and logs."""
        for log, seen in self.final.records.items():
            self._in_the_end.update((log, record.value) for record in seen)
            self.visible_offsets[log] = sorted({record.offset for record in seen})
        for log, values in self.values.items():
            self.all_offsets[log] = sorted(values)
        for transaction, _ in self.sent.values():
            if transaction.outcome is Outcome.UNKNOWN:
                self._settled[transaction.number] = self._resolved(transaction)

    def is_committed(self, transaction: Transaction) -> bool:
        """Whether it certainly took effect."""
        return self.outcome(transaction) is Outcome.COMMITTED

    def outcome(self, transaction: Transaction) -> Outcome:
        """What became of it, as far as the history shows."""
        return self._settled.get(transaction.number, transaction.outcome)

    def is_missing(self, send: Send) -> bool:
        """Whether the last reading would have had the record, and does not."""
        end_offset = self.final.ends.get(send.log)
        if end_offset is None or (send.log, send.value) in self._in_the_end:
            return False
        offset = send.offset if send.offset is not None else self.offsets.get(send.value)
        return offset is None or offset < end_offset

    def has_vanished(self, send: Send) -> bool:
        """Whether it was visible once and is not in the end."""
        return send.value in self.visible and self.is_missing(send)

    def _resolved(self, transaction: Transaction) -> Outcome:
        if any(send.value in self.visible for send in transaction.sends):
            return Outcome.COMMITTED
        if all(send.log in self.final.ends for send in transaction.sends):
            return Outcome.ABORTED
        return Outcome.UNKNOWN
