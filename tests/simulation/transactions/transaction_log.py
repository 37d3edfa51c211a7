"""What coordinators have committed to `__transaction_state`, and which steps are legal there.

Owns: every id's last record, and the outcome of every ended transaction. Must not: use the
production table of states. Invariant: a state follows one that Apache Kafka lets it follow; one
producer id and epoch has one outcome from transaction version 2 on.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.coordinator_records import TRANSACTION_STATE
from tests.kit.seeds import Violation
from tests.simulation.transactions.contents import Content

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
AT_REST = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
MAY_FOLLOW = {
    EMPTY: AT_REST,
    ONGOING: (*AT_REST, ONGOING),
    PREPARE_COMMIT: (ONGOING,),
    PREPARE_ABORT: (*AT_REST, ONGOING),
    COMPLETE_COMMIT: (PREPARE_COMMIT,),
    COMPLETE_ABORT: (PREPARE_ABORT,),
}
PREPARED = {PREPARE_COMMIT: True, PREPARE_ABORT: False}
OUTCOMES = {**PREPARED, COMPLETE_COMMIT: True, COMPLETE_ABORT: False}
EPOCH_BUMP_VERSION = 2


class TransactionLog:
    """All partitions of the topic together."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.outcomes: dict[tuple[int, int], bool] = {}
        """The outcomes by the producer id and epoch of the markers: the one that is to be written
        last.
        """
        self.versions: dict[int, int] = {}
        """The version by which a producer's last transaction was ended, by producer id."""
        self.pairs: dict[str, set[tuple[int, int]]] = {}
        """Every pair that an id's records had."""

    def feed(self, content: Content) -> None:
        """A batch is committed."""
        for record in content.records:
            key: Any = TRANSACTION_STATE.decode_key(record.key or b"")
            name = key.transactional_id
            if record.value is None:
                self.last.pop(name, None)
                continue
            value: Any = TRANSACTION_STATE.decode_value(key, record.value)[0]
            self._check(name, self.last.get(name), value)
            self.last[name] = value
            self._note_pairs(name, value)
            if value.transaction_status in PREPARED:
                self._prepare(name, value)

    def _check(self, name: str, before: Any, value: Any) -> None:
        status = value.transaction_status
        known = EMPTY if before is None else before.transaction_status
        if known not in MAY_FOLLOW[status]:
            raise Violation("illegal-transition", f"{name}: {value} after {before}")
        if before is not None and before.producer_id == value.producer_id:
            if value.producer_epoch < before.producer_epoch:
                raise Violation("epoch-back", f"{name}: {value} after {before}")
            if status == ONGOING == known and not _partitions(before) <= _partitions(value):
                raise Violation("partition-dropped", f"{name}: {value} after {before}")

    def _prepare(self, name: str, value: Any) -> None:
        pair = (value.producer_id, value.producer_epoch)
        is_commit = PREPARED[value.transaction_status]
        version = value.client_transaction_version
        if version >= EPOCH_BUMP_VERSION and pair in self.outcomes:
            raise Violation("two-outcomes", f"{name}: {value}, {pair} was {self.outcomes[pair]}")
        self.outcomes[pair] = is_commit
        self.versions[value.producer_id] = version

    def _note_pairs(self, name: str, value: Any) -> None:
        pairs = self.pairs.setdefault(name, set())
        pairs.add((value.producer_id, value.producer_epoch))
        if value.next_producer_id >= 0:
            pairs.add((value.next_producer_id, max(value.next_producer_epoch, 0)))


def _partitions(value: Any) -> set[tuple[str, int]]:
    return {
        (topic.topic, index)
        for topic in value.transaction_partitions or ()
        for index in topic.partition_ids
    }
