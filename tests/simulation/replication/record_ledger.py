"""What producers heard of single records, and what the logs have of them.

Owns: every record that was handed to a producer with what became of it, and every record that a
leader wrote, by its place. Must not: know how clients or brokers work. Invariants: what is written
was sent, as it was sent; a producer with idempotence writes each record once, in the order of
sending; what a producer calls acknowledged lies where it says; what it refused is nowhere.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.client.errors import BrokerError, ClientClosed, RequestTimeout
from moldau.client.records import ConsumerRecord, RecordMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, RecordHeaders, decode_records, iter_batches
from tests.kit.seeds import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import DataLedger, PartitionTruth
    from tests.simulation.replication.mirror import Batch

Key = tuple[UUID, int]
Place = tuple[Key, int, int]
"""Partition, offset, leader epoch: where a record was written."""

ALL = -1
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""The codes that faults lead to; a record fails with one when its retries are used up."""

BEFORE_THE_APPEND = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""With these an only attempt has written nothing."""

NEVER_TRIED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
"""Without a limit of retries only a record fails with it that waited for its topic in vain."""


@dataclass(slots=True, eq=False)
class Writer:
    """One producer, from its first record to its close. `retries`: None for no limit."""

    name: str
    acks: int
    is_idempotent: bool
    retries: int | None
    sent: list[Sent] = field(default_factory=list)
    last_numbers: dict[Key, int] = field(default_factory=dict)
    """The numbers by partition: the newest record that is committed."""
    told: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    """The number and offset by partition of what was acknowledged, by number."""

    def __repr__(self) -> str:
        kind = "idempotent" if self.is_idempotent else f"acks={self.acks}"
        return f"{self.name}({kind}, {sum(not each.is_decided for each in self.sent)} undecided)"

    @property
    def undecided(self) -> list[Sent]:
        """What has neither been acknowledged nor failed."""
        return [each for each in self.sent if not each.is_decided]


@dataclass(slots=True, eq=False)
class Sent:
    """A record as it was handed to a producer. `partition`: None for the partitioner's choice."""

    writer: Writer
    number: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: RecordHeaders
    timestamp_ms: int
    is_awaited: bool = False
    """A call waits for its outcome, and reports it a moment later."""
    is_decided: bool = False
    is_refused: bool = False
    """It was never sent, or surely not written."""
    may_repeat: bool = False
    """A leader did not know that it has the record, or had it until records were deleted: it was
    sent again under other numbers, or taken again."""
    places: list[Place] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"record {self.number} of {self.writer.name} for {self.topic}-{self.partition}"


class RecordLedger:
    """See the module. `names_writers`: whether all that is written comes from known writers."""

    def __init__(self, data: DataLedger, counts: Counter[str]) -> None:
        self.names_writers = True
        self.writers: list[Writer] = []
        self._data = data
        self._counts = counts
        self._sent: dict[bytes, Sent] = {}
        self._written: dict[Place, Record] = {}
        self._data_offsets: dict[tuple[Key, int, int], list[int]] = {}
        """The offsets that consumers are shown, by partition, base offset and leader epoch."""

    # -- logs ------------------------------------------------------------------------------------

    def on_written(self, key: Key, name: str, records: Any) -> None:
        """A leader wrote these batches."""
        data = bytes(records)
        for position, header in iter_batches(data):
            place = (key, header.base_offset, header.partition_leader_epoch)
            if place in self._data_offsets:
                continue
            offsets = self._data_offsets[place] = []
            for record in () if header.is_control else decode_records(data, position):
                offsets.append(record.offset)
                self._written[(key, record.offset, header.partition_leader_epoch)] = record
                if self.names_writers:
                    self._check_written(key, name, header.partition_leader_epoch, record)

    def _check_written(self, key: Key, name: str, epoch: int, record: Record) -> None:
        sent = self._sent.get(record.value or b"")
        where = f"{record.offset} of {name} in epoch {epoch}"
        if sent is None:
            raise Violation("written-unsent", f"{where}: {record}")
        index = key[1] if sent.partition is None else sent.partition
        wanted = (f"{sent.topic}-{index}", sent.key, sent.headers, sent.timestamp_ms)
        if (name, record.key, tuple(record.headers), record.timestamp_ms) != wanted:
            raise Violation("written-otherwise", f"{where}: {record}, {sent} was {wanted}")
        if sent.is_refused:
            raise Violation("refused-written", f"{where}: {sent}")
        sent.places.append((key, record.offset, epoch))

    def on_committed(self, truth: PartitionTruth, key: Key, batch: Batch) -> None:
        """A batch is committed."""
        if not self.names_writers:
            return
        for offset in self._data_offsets[(key, batch.base_offset, batch.leader_epoch)]:
            record = self._written[(key, offset, batch.leader_epoch)]
            sent = self._sent[record.value or b""]
            writer = sent.writer
            earlier = [each for each in sent.places if each[0] == key and each[1] < offset]
            if earlier and all(each[1] < truth.deleted_to for each in earlier):
                sent.may_repeat = True
            last = writer.last_numbers.get(key, -1)
            writer.last_numbers[key] = max(last, sent.number)
            if sent.number > last or not writer.is_idempotent or sent.may_repeat or truth.lost:
                continue
            kind = "record-twice" if len(sent.places) > 1 else "record-reordered"
            raise Violation(
                kind, f"{sent} at {offset} of {truth.name}, committed was {last}: {sent.places}"
            )

    # -- producers -------------------------------------------------------------------------------

    def handed_over(self, sent: Sent) -> None:
        """A producer has taken a record, or will in a moment."""
        assert sent.value not in self._sent, "values name their records"
        self._sent[sent.value] = sent
        sent.writer.sent.append(sent)
        self._counts["records_sent"] += 1

    def acknowledged(self, sent: Sent, told: RecordMetadata) -> None:
        """A producer says that a record is where `told` says."""
        self._decide(sent, "acknowledged")
        asked = (sent.topic, sent.partition if sent.partition is not None else told.partition)
        sizes = (-1 if sent.key is None else len(sent.key), len(sent.value))
        if (told.topic, told.partition) != asked or told.timestamp_ms != sent.timestamp_ms:
            raise Violation("told-otherwise", f"{sent}: {told}")
        if (told.serialized_key_size, told.serialized_value_size) != sizes:
            raise Violation("told-otherwise", f"{sent}: {told}")
        if not sent.writer.acks:
            if told.offset != -1:
                raise Violation("told-otherwise", f"{sent}, unacknowledged: {told}")
            return
        places = [
            place
            for place in sent.places
            if told.offset in (-1, place[1])
            and self._data.truth(place[0]).name == f"{told.topic}-{told.partition}"
        ]
        if not places:
            raise Violation("acknowledged-unwritten", f"{sent}: {told}, written: {sent.places}")
        if told.offset < 0:
            self._counts["acknowledged_without_offset"] += 1
        if sent.writer.acks == ALL:
            self._check_committed(sent, told, places)

    def _check_committed(self, sent: Sent, told: RecordMetadata, places: list[Place]) -> None:
        """One of the places is committed, or was lost since, as is lawful."""
        self._counts["acknowledged"] += 1
        for key, offset, epoch in places:
            truth = self._data.truth(key)
            batch = truth.committed.at(offset)
            if batch is not None and batch.leader_epoch == epoch:
                truth.acknowledged.add(batch)
                if told.offset >= 0:
                    self._check_order(truth, key, sent, offset)
                return
        for key, offset, epoch in places:
            truth = self._data.truth(key)
            lost = any(each.leader_epoch == epoch and _has(each, offset) for each in truth.lost)
            if lost or truth.allows_unclean or offset < truth.deleted_to:
                return
        raise Violation(
            "acknowledged-not-committed", f"{sent.writer}: {told}, written at {sent.places}"
        )

    def _check_order(self, truth: PartitionTruth, key: Key, sent: Sent, offset: int) -> None:
        """Acknowledged records lie in the order in which they were sent."""
        told = sent.writer.told.setdefault(key, [])
        insort(told, (sent.number, offset))
        place = told.index((sent.number, offset))
        around = [each for _number, each in told[max(place - 1, 0) : place + 2]]
        if around != sorted(around) and not truth.lost and not sent.may_repeat:
            raise Violation("acknowledged-reordered", f"{sent} at {offset}: {told[-9:]}")

    def failed(self, sent: Sent, error: Exception) -> None:
        """A producer says that a record has failed; it may be written all the same."""
        self._decide(sent, type(error).__name__)
        if not isinstance(error, ClientClosed | RequestTimeout):
            code = error.code if isinstance(error, BrokerError) else None
            if code not in PASSING:
                raise Violation("unexpected-error", f"{sent}: {error!r}")
            is_final = sent.writer.retries == 0 and code in BEFORE_THE_APPEND
            if is_final or (sent.writer.retries is None and code is NEVER_TRIED):
                self.refused(sent, error)

    def refused(self, sent: Sent, error: Exception) -> None:
        """The record was not sent, or not written by its only attempt, as the error says."""
        sent.is_refused = sent.is_decided = True
        self._counts["records_refused"] += 1
        if sent.places:
            raise Violation("refused-written", f"{sent}: {error!r}, {sent.places}")

    def abandoned(self, writer: Writer) -> None:
        """The producer's process has died: nothing is known of what it had not reported."""
        for sent in writer.undecided:
            sent.is_decided = True
            self._counts["records_abandoned"] += 1

    def ended(self, writer: Writer, how: str) -> None:
        """The producer has nothing left to do, it says."""
        undecided = writer.undecided
        if undecided:
            raise Violation("undecided", f"{writer} after {how}: {undecided[:3]}")

    def resent(self, values: Iterable[bytes]) -> None:
        """Records are sent again under other numbers, since a leader has forgotten theirs."""
        for value in values:
            if value in self._sent:
                self._sent[value].may_repeat = True

    def _decide(self, sent: Sent, how: str) -> None:
        if sent.is_decided:
            raise Violation("decided-twice", f"{sent}: {how}")
        sent.is_decided = True
        self._counts[f"record {how}"] += 1

    # -- consumers -------------------------------------------------------------------------------

    def offsets_in(self, truth: PartitionTruth, key: Key, start: int, end: int) -> list[int]:
        """The committed offsets in a range that a consumer is shown, as far as not deleted."""
        start = max(start, truth.deleted_to)
        if start >= end:
            return []
        found: list[int] = []
        for batch in truth.committed.between(start, END):
            if batch.base_offset >= end:
                break
            found += self._data_offsets[(key, batch.base_offset, batch.leader_epoch)]
        return [offset for offset in found if start <= offset < end]

    def record_at(self, truth: PartitionTruth, key: Key, offset: int) -> Record | None:
        """The committed record at an offset."""
        batch = truth.committed.at(offset)
        return None if batch is None else self._written.get((key, offset, batch.leader_epoch))

    def on_read(self, who: str, key: Key, record: ConsumerRecord[Any, Any]) -> None:
        """A consumer was shown a record: it is a committed one, as it was written."""
        self._counts["consumed"] += 1
        truth = self._data.truth(key)
        written = self._written.get((key, record.offset, record.leader_epoch))
        if written is None or (
            (written.key, written.value, tuple(written.headers), written.timestamp_ms)
            != (record.key, record.value, tuple(record.headers), record.timestamp_ms)
        ):
            raise Violation("read-unwritten", f"{who}: {record} of {truth.name} was {written}")
        if truth.allows_unclean:
            return
        batch = truth.committed.at(record.offset)
        if batch is not None and batch.leader_epoch == record.leader_epoch:
            return
        if not any(
            each.leader_epoch == record.leader_epoch and _has(each, record.offset)
            for each in truth.lost
        ):
            raise Violation(
                "read-uncommitted",
                f"{who} reads {record} of {truth.name}, committed is {batch}, up to "
                f"{truth.committed.end_offset}",
            )


END = 2**62


def _has(batch: Batch, offset: int) -> bool:
    return batch.base_offset <= offset <= batch.last_offset
