"""One transactional id: what its last log record says, and the record that each change makes.

Owns the fields, the states with their legal transitions, the rules by which producer ids and epochs
go on, and the way to and from the log record (type 0 of `__transaction_state`). Must not know
requests or errors. Invariants: a transition that LEGAL_PREDECESSORS does not allow is not made; the
pair (producer id, epoch) that a client is to use never returns to one that was used before.

Which pair is whose:

- `producer` is that of the transaction in the partitions' logs, and from PREPARE_* on that of its
  markers.
- `next_producer`: while ONGOING, the pair of the producer that has taken a prepared transaction
  over (KIP-939), with the other pair kept for the markers; in PREPARE_*, the pair with which the
  client goes on. Without the epoch (-1) it is 0: the epoch was used up (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from moldau.broker.coordinator.core.result import (
    LAST_CLIENT_EPOCH,
    LAST_EPOCH,
    NO_PRODUCER,
    Producer,
)
from moldau.protocol.coordinator_records import transactions as kinds
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.protocol.types import TopicPartition, by_topic


class TransactionStatus(IntEnum):
    """The state of a transactional id; the number is `transaction_status` of the log record.

    EMPTY → ONGOING → PREPARE_COMMIT or PREPARE_ABORT → COMPLETE_COMMIT or COMPLETE_ABORT → ONGOING,
    or → EMPTY when a new producer begins. An id ends with a tombstone. DEAD and PREPARE_EPOCH_FENCE
    are Kafka's names for moments that here take no time: no id is ever seen in them, but tools may
    name them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def words(self) -> str:
        """The name that DescribeTransactions and ListTransactions use, such as "PrepareCommit"."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is in the log, and markers are still to be written."""
        return self in _PREPARED

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no transaction: the id may be forgotten, or begin one."""
        return self in _AT_REST


_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
_AT_REST: Final = frozenset(
    {TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
)

LEGAL_PREDECESSORS: Final[dict[TransactionStatus, frozenset[TransactionStatus]]] = {
    TransactionStatus.EMPTY: _AT_REST,
    TransactionStatus.ONGOING: _AT_REST | {TransactionStatus.ONGOING},
    TransactionStatus.PREPARE_COMMIT: frozenset({TransactionStatus.ONGOING}),
    # From a state at rest: a client of transaction version 2 may abort before it has written.
    TransactionStatus.PREPARE_ABORT: _AT_REST | {TransactionStatus.ONGOING},
    TransactionStatus.COMPLETE_COMMIT: frozenset({TransactionStatus.PREPARE_COMMIT}),
    TransactionStatus.COMPLETE_ABORT: frozenset({TransactionStatus.PREPARE_ABORT}),
}
"""The states that a state may follow; no other transition is ever written."""

STATUS_BY_WORDS: Final = {status.words: status for status in TransactionStatus}
"""The states by the names that tools use."""


def is_legal(before: TransactionStatus, after: TransactionStatus) -> bool:
    return before in LEGAL_PREDECESSORS.get(after, frozenset())


NO_TIMESTAMP: Final = -1

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout that marks transactions of a two-phase commit: they end only on request."""

EPOCH_BUMP_VERSION: Final = 2
"""From this `transaction.version` on every transaction has its own epoch (KIP-890)."""

TRANSACTION_BYTES: Final = 800
PARTITION_BYTES: Final = 120
"""What a transaction and each of its partitions take in memory, about."""


class Transaction(NamedTuple):
    """A transactional id. Changes make a new object, along LEGAL_PREDECESSORS.

    Attributes:
        timeout_ms: after which an open transaction is aborted; NO_TIMEOUT_MS for never.
        start_ms: when the transaction began, in milliseconds since 1970; -1 without one.
        last_update_ms: when the last record was written, in milliseconds since 1970.
        previous_producer_id: the one of the record before, or the one that the client used last.
        client_version: the `transaction.version` that the last change was made by.
    """

    transactional_id: str
    producer: Producer
    status: TransactionStatus
    timeout_ms: int
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer: Producer = NO_PRODUCER
    client_version: int = 0

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        text_bytes = len(self.transactional_id)
        return TRANSACTION_BYTES + text_bytes + PARTITION_BYTES * len(self.partitions)

    # -- its producers ---------------------------------------------------------------------------

    @property
    def is_kept(self) -> bool:
        """Whether a producer has taken the open transaction over, to end it (KIP-939)."""
        return (
            self.status is TransactionStatus.ONGOING
            and self.next_producer.producer_epoch != NO_PRODUCER_EPOCH
        )

    @property
    def client_producer(self) -> Producer:
        """The pair that the client has to use now."""
        return self.next_producer if self.is_kept else self.producer

    @property
    def producer_after_end(self) -> Producer:
        """The pair in PREPARE_* that the client goes on with, once it is complete."""
        next_id, next_epoch = self.next_producer
        return self.producer if next_id == NO_PRODUCER_ID else Producer(next_id, max(next_epoch, 0))

    @property
    def ended_by(self) -> Producer | None:
        """The pair in COMPLETE_* that the client used when it ended the transaction, if ending
        gave it another one: an EndTxn of that pair is a repetition (KIP-890).
        """
        if self.client_version < EPOCH_BUMP_VERSION or self.status not in _COMPLETE:
            return None
        producer_id, producer_epoch = self.producer
        if producer_epoch > 0:
            return Producer(producer_id, producer_epoch - 1)
        return Producer(self.previous_producer_id, LAST_CLIENT_EPOCH)

    @property
    def is_two_phase(self) -> bool:
        """Whether an outside coordinator decides: it must never be timed out (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_timed_out(self, now_ms: float, open_ms: float) -> bool:
        """Whether the transaction, open for `open_ms` by a clock that is never set, is overdue."""
        return (
            self.status is TransactionStatus.ONGOING
            and not self.is_two_phase
            and (self.start_ms + self.timeout_ms < now_ms or self.timeout_ms < open_ms)
        )

    def is_unused_since(self, latest_ms: float) -> bool:
        """Whether the id is without a transaction, and was so at `latest_ms` already."""
        return self.status.is_at_rest and self.last_update_ms <= latest_ms

    # -- changes ---------------------------------------------------------------------------------

    def initialized(self, producer: Producer, timeout_ms: int, now_ms: float) -> Transaction:
        """A producer has begun, or come back, and has no transaction yet."""
        return self._moved(
            TransactionStatus.EMPTY,
            now_ms,
            producer=producer,
            timeout_ms=timeout_ms,
            start_ms=NO_TIMESTAMP,
            partitions=frozenset(),
            next_producer=NO_PRODUCER,
        )

    def kept_for(self, producer: Producer, timeout_ms: int, now_ms: float) -> Transaction:
        """A client with the pair `producer` may end the open transaction, and nothing else."""
        return self._moved(
            TransactionStatus.ONGOING,
            now_ms,
            # An outside coordinator may have said "commit" already: nothing may abort it.
            timeout_ms=NO_TIMEOUT_MS if self.is_two_phase else timeout_ms,
            next_producer=producer,
        )

    def with_partitions(
        self, partitions: Iterable[TopicPartition], client_version: int, now_ms: float
    ) -> Transaction:
        """The transaction begins with these, or gets these too."""
        is_open = self.status is TransactionStatus.ONGOING
        return self._moved(
            TransactionStatus.ONGOING,
            now_ms,
            start_ms=self.start_ms if is_open else int(now_ms),
            partitions=self.partitions.union(partitions) if is_open else frozenset(partitions),
            client_version=client_version,
        )

    def prepared(
        self, *, is_commit: bool, client_version: int, spare_producer_id: int, now_ms: float
    ) -> Transaction:
        """The outcome is settled.

        A transaction of LAST_EPOCH, which only another coordinator can have let begin, ends in that
        epoch: its markers are of the version that takes one which is not higher.

        Args:
            client_version: from EPOCH_BUMP_VERSION on the client goes on with another pair.
            spare_producer_id: used if the epochs of `client_producer` are exhausted then.
        """
        bumps = client_version >= EPOCH_BUMP_VERSION
        producer_id, producer_epoch = self.producer
        raises_epoch = bumps and producer_epoch < LAST_EPOCH
        next_producer = NO_PRODUCER
        previous_producer_id = producer_id
        client = self.client_producer
        if bumps and client.is_exhausted:
            assert spare_producer_id != NO_PRODUCER_ID
            next_producer = Producer(spare_producer_id, 0 if self.is_kept else NO_PRODUCER_EPOCH)
            previous_producer_id = client.producer_id
        elif self.is_kept:
            assert bumps, "only the epoch bump tells a kept transaction's end from the next one's"
            # Raised once more: a delayed EndTxn of the producer that took the transaction over must
            # not end the next one.
            next_producer = Producer(client.producer_id, client.producer_epoch + 1)
        has_one = self.status is TransactionStatus.ONGOING
        return self._moved(
            TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
            now_ms,
            producer=Producer(producer_id, producer_epoch + raises_epoch),
            start_ms=self.start_ms if has_one else int(now_ms),
            previous_producer_id=previous_producer_id,
            next_producer=next_producer,
            client_version=client_version if raises_epoch or not bumps else EPOCH_BUMP_VERSION - 1,
        )

    def fenced(self, *, server_version: int, spare_producer_id: int, now_ms: float) -> Transaction:
        """The open transaction is aborted, and its producer can write no more."""
        aborted = self.prepared(
            is_commit=False,
            client_version=EPOCH_BUMP_VERSION if self.is_kept else server_version,
            spare_producer_id=spare_producer_id,
            now_ms=now_ms,
        )
        if aborted.client_version >= EPOCH_BUMP_VERSION:
            return aborted
        producer_id, producer_epoch = self.producer
        fencing = Producer(producer_id, min(producer_epoch + 1, LAST_EPOCH))
        return aborted._replace(producer=fencing, client_version=0)

    def completed(self, now_ms: float) -> Transaction:
        """Every partition has its marker."""
        is_commit = self.status is TransactionStatus.PREPARE_COMMIT
        producer, producer_id = self.producer_after_end, self.producer.producer_id
        has_changed = producer.producer_id != producer_id
        return self._moved(
            TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
            now_ms,
            producer=producer,
            partitions=frozenset(),
            previous_producer_id=self.previous_producer_id if has_changed else producer_id,
            next_producer=NO_PRODUCER,
        )

    def _moved(self, status: TransactionStatus, now_ms: float, **changes: object) -> Transaction:
        assert is_legal(self.status, status), f"{self.status.words} to {status.words}"
        changes.setdefault("previous_producer_id", self.producer.producer_id)
        changed = self._replace(status=status, last_update_ms=int(now_ms), **changes)  # type: ignore[arg-type]
        assert 0 <= changed.producer.producer_epoch <= LAST_EPOCH
        return changed


_COMPLETE: Final = frozenset({TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT})


def new_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: float
) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer=Producer(producer_id, 0),
        status=TransactionStatus.EMPTY,
        timeout_ms=timeout_ms,
        last_update_ms=int(now_ms),
        previous_producer_id=producer_id,
    )


# -- the log ---------------------------------------------------------------------------------------


def record_key(transactional_id: str) -> kinds.TransactionLogKey:
    return kinds.TransactionLogKey(transactional_id=transactional_id)


def record_value(transaction: Transaction, version: int) -> kinds.TransactionLogValue:
    schemas = [
        kinds.PartitionsSchema(topic=topic, partition_ids=indexes)
        for topic, indexes in by_topic(sorted(transaction.partitions)).items()
    ]
    value = kinds.TransactionLogValue(
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=(None if transaction.status is TransactionStatus.EMPTY else schemas),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= 1:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id, value.next_producer_epoch = transaction.next_producer
        value.client_transaction_version = transaction.client_version
    return value


def value_version(transaction: Transaction, server_version: int) -> int:
    """The version its record is written in: the one with tagged fields from `transaction.version` 1
    on, or when what it says needs them.
    """
    return int(
        server_version >= 1
        or transaction.client_version >= EPOCH_BUMP_VERSION
        or transaction.next_producer.producer_id != NO_PRODUCER_ID
    )


def from_record(key: kinds.TransactionLogKey, value: kinds.TransactionLogValue) -> Transaction:
    """The id as the log says. Raises: RemoteProtocolError, an unknown state."""
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise RemoteProtocolError(
            f"{key.transactional_id!r} is in state {value.transaction_status}, which there is not"
        ) from None
    return Transaction(
        transactional_id=key.transactional_id,
        producer=Producer(value.producer_id, value.producer_epoch),
        status=status,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        previous_producer_id=value.previous_producer_id,
        next_producer=Producer(value.next_producer_id, value.next_producer_epoch),
        client_version=value.client_transaction_version,
    )
