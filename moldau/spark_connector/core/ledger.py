"""The ledger topic: for each sink the driver in charge, and the state of its newest batch.

Owns the record, its JSON, which states may follow each other, and which keys belong to which sink.
Must not read or write topics (`sink.ledger_store` does). Invariants: a record that cannot be
understood whole is an error, never an empty one; of a decided batch nothing is forgotten before all
of its transactions have ended; the index forgets no key, and decodes a sink's values only when that
sink is asked for.

A value is JSON, `version` first. Version 1:

    {"version": 1, "sink": "…", "driver": "…", "batch": null or {
        "query": "…", "number": 7, "state": "DECIDED" or "DONE", "rows": 3, "checksum": 1,
        "slots": [{"task": 0, "id": "…", "producer": [4000, 2], "rows": 3, "checksum": 1,
                   "state": "OPEN", "ranges": [["topic", 0, 120, 3]]}]}}

Keys: the sink's id; and beside it, behind the id and a byte that no id has, the other queries and
named batch writes that have used the sink before: the last batch of each, DONE, in the same shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

VERSION: Final = 1
MAX_RANGES_PER_SLOT: Final = 16
"""How many places are kept to look at later. One is enough to see how a transaction ended."""
MAX_RANGES: Final = 10_000
"""The limit for the ranges of all slots together, but for one of each."""
MAX_SLOTS: Final = 10_000
"""More tasks in one batch than this do not fit into one record of the ledger."""
KEY_SEPARATOR: Final = "\x1f"
"""Sink ids are printable, and this is not."""
NAMED_PREFIX: Final = "txn:"
"""Begins the query id of a batch write with a name."""
ONCE_PREFIX: Final = "once:"
"""Begins the query id of a batch write without a name: it cannot come again."""

CHECKSUM_MODULUS: Final = 1 << 64
_Json: TypeAlias = Mapping[str, Any]
_Kind = TypeVar("_Kind", str, int, list[Any])
_ENTRY_BYTES: Final = 200
"""What an entry takes beside its text, roughly."""


class LedgerUnreadable(ValueError):
    """A value of the ledger topic that this release does not understand."""


class BatchState(Enum):
    """How far a batch is: DECIDED → DONE.

    A decided batch of which a transaction was lost, or was written again, is DECIDED still.
    """

    DECIDED = "DECIDED"
    DONE = "DONE"


class SlotState(Enum):
    """How far one transaction of a decided batch is.

    OPEN → COMMITTED, or → LOST when it was aborted in spite of the decision. A slot that was
    written again is another one, OPEN.
    """

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of a slot that lie in a row: `row_count` from `first_offset` on."""

    topic: str
    partition: int
    first_offset: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What one task has written in one transaction.

    Attributes:
        task: the number of Spark's partition.
        transactional_id, producer_id, producer_epoch: whose transaction it is.
        rows, checksum: how much it is; the checksum is the same for the same rows in any order.
        ranges: where (some of) the rows lie.
    """

    task: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    rows: int
    checksum: int
    ranges: tuple[Range, ...] = ()
    state: SlotState = SlotState.OPEN

    def became(self, state: SlotState) -> Slot:
        """The slot in a state that may follow its own."""
        assert self.state in (SlotState.OPEN, state), f"{self.state} → {state}"
        return replace(self, state=state)

    @property
    def producer(self) -> tuple[str, int, int]:
        return self.transactional_id, self.producer_id, self.producer_epoch

    @property
    def is_located(self) -> bool:
        """Whether `ranges` holds every row."""
        return sum(each.row_count for each in self.ranges) == self.rows


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query.

    Attributes:
        query_id: Spark's id of the streaming query, or `txn:` and the name of a batch write.
        slots: its transactions; empty once it is DONE.
        tasks, attempts: how many numbers of both its transactional ids have used.
    """

    query_id: str
    batch_id: int
    state: BatchState
    rows: int
    checksum: int
    slots: tuple[Slot, ...] = ()
    tasks: int = 0
    attempts: int = 0

    @property
    def open_slots(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.state is SlotState.OPEN)

    @property
    def lost_slots(self) -> tuple[Slot, ...]:
        """Transactions that were aborted after the decision to commit them."""
        return tuple(slot for slot in self.slots if slot.state is SlotState.LOST)

    @property
    def has_history(self) -> bool:
        """Whether the query may have written rows, in this batch or an earlier one."""
        return self.rows > 0 or self.batch_id > 0

    def with_slots(self, changed: Mapping[tuple[str, int, int], SlotState]) -> Batch:
        """The batch with new states of some slots, DONE once all are committed."""
        assert self.state is BatchState.DECIDED
        slots = tuple(
            slot.became(changed[slot.producer]) if slot.producer in changed else slot
            for slot in self.slots
        )
        made = replace(self, slots=slots)
        if all(slot.state is SlotState.COMMITTED for slot in slots):
            return made.done()
        return made

    def done(self) -> Batch:
        assert all(slot.state is SlotState.COMMITTED for slot in self.slots)
        return replace(self, state=BatchState.DONE, slots=())


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The newest value under a sink's key.

    Attributes:
        driver: the token of the planning that is in charge; only its decisions are taken.
        batch: the newest decided batch; None for a sink that has never decided.
    """

    sink_id: str
    driver: str
    batch: Batch | None = None


def decided(
    query_id: str, batch_id: int, slots: Sequence[Slot], tasks: int, attempts: int
) -> Batch:
    kept = max(1, MAX_RANGES // max(1, len(slots)))
    if kept < MAX_RANGES_PER_SLOT:
        slots = [replace(slot, ranges=slot.ranges[:kept]) for slot in slots]
    return Batch(
        query_id,
        batch_id,
        BatchState.DECIDED,
        sum(slot.rows for slot in slots),
        total_checksum(slot.checksum for slot in slots),
        tuple(slots),
        tasks,
        attempts,
    )


def total_checksum(checksums: Iterable[int]) -> int:
    return sum(checksums) % CHECKSUM_MODULUS


def finished_key(sink_id: str, query_id: str) -> str:
    """The key under which the last batch of a query is remembered that another one has followed."""
    return f"{sink_id}{KEY_SEPARATOR}{query_id}"


def is_streaming(query_id: str) -> bool:
    """Whether it is the id of a streaming query, which no other query has."""
    return not query_id.startswith((NAMED_PREFIX, ONCE_PREFIX))


# -- JSON ---------------------------------------------------------------------------------------


def encode(record: SinkRecord) -> bytes:
    batch = record.batch
    shown = {
        "version": VERSION,
        "sink": record.sink_id,
        "driver": record.driver,
        "batch": None if batch is None else _batch_json(batch),
    }
    return json.dumps(shown, separators=(",", ":")).encode()


def _batch_json(batch: Batch) -> dict[str, object]:
    return {
        "query": batch.query_id,
        "number": batch.batch_id,
        "state": batch.state.value,
        "rows": batch.rows,
        "checksum": batch.checksum,
        "tasks": batch.tasks,
        "attempts": batch.attempts,
        "slots": [
            {
                "task": slot.task,
                "id": slot.transactional_id,
                "producer": [slot.producer_id, slot.producer_epoch],
                "rows": slot.rows,
                "checksum": slot.checksum,
                "state": slot.state.value,
                "ranges": [
                    [each.topic, each.partition, each.first_offset, each.row_count]
                    for each in slot.ranges
                ],
            }
            for slot in batch.slots
        ],
    }


def decode(value: bytes) -> SinkRecord:
    """The record of a value. Raises: LedgerUnreadable: it is none, or one of a newer release."""
    try:
        shown = json.loads(value)
    except ValueError as error:
        raise LedgerUnreadable(f"it is no JSON: {error}") from None
    if not isinstance(shown, dict) or not isinstance(shown.get("version"), int):
        raise LedgerUnreadable("it has no version")
    if shown["version"] != VERSION:
        raise LedgerUnreadable(
            f"it has version {shown['version']}, and this release knows version {VERSION}"
        )
    try:
        batch = shown["batch"]
        return SinkRecord(
            _get(shown, "sink", str),
            _get(shown, "driver", str),
            None if batch is None else _batch(batch),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise LedgerUnreadable(f"it is not of version {VERSION}'s shape: {error!r}") from None


def _get(shown: _Json, name: str, kind: type[_Kind]) -> _Kind:
    value = shown[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}")
    return value


def _batch(shown: _Json) -> Batch:
    slots = tuple(_slot(each) for each in _get(shown, "slots", list))
    state = BatchState(_get(shown, "state", str))
    if state is BatchState.DONE and slots:
        raise ValueError("a batch that is DONE has no slots")
    return Batch(
        _get(shown, "query", str),
        _get(shown, "number", int),
        state,
        _get(shown, "rows", int),
        _get(shown, "checksum", int),
        slots,
        _get(shown, "tasks", int),
        _get(shown, "attempts", int),
    )


def _slot(shown: _Json) -> Slot:
    producer_id, producer_epoch = _get(shown, "producer", list)
    ranges = []
    for topic, partition, first_offset, row_count in _get(shown, "ranges", list):
        if not (
            isinstance(topic, str)
            and all(type(each) is int for each in (partition, first_offset, row_count))
        ):
            raise TypeError(f"ranges of {shown['id']!r}")
        ranges.append(Range(topic, partition, first_offset, row_count))
    if type(producer_id) is not int or type(producer_epoch) is not int:
        raise TypeError(f"producer of {shown['id']!r}")
    return Slot(
        _get(shown, "task", int),
        _get(shown, "id", str),
        producer_id,
        producer_epoch,
        _get(shown, "rows", int),
        _get(shown, "checksum", int),
        tuple(ranges),
        SlotState(_get(shown, "state", str)),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value and where it lies in the topic; None: written by this process."""

    value: bytes
    log_offset: int | None


class LedgerIndex:
    """The newest values; `take` each record of the topic in its order. What decodes a value raises
    LedgerUnreadable.
    """

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
        """The sink's own record; None for one that the ledger does not know."""
        entry = self._records.get(sink_id)
        return None if entry is None else _decoded(entry, sink_id)

    def finished(self, sink_id: str, query_id: str) -> Batch | None:
        """The last batch of a query that another one has followed on the sink."""
        entry = self._finished.get(sink_id, {}).get(query_id)
        return None if entry is None else _decoded(entry, sink_id).batch

    def streams(self, sink_id: str, most: int) -> tuple[dict[str, Batch], bool]:
        """The last batches of the sink's other streaming queries, of more than `most` the newest,
        and whether these are all.
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
        """The last batches of a query under other sinks, with these sinks' ids."""
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
