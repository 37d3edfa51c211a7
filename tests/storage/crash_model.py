"""What a log must hold after a crash, and the check whether it does.

Owns: the model of one partition (what was appended, flushed, cut, deleted) and `check_recovered`.
Must not: drive a workload.
The model is updated around each call: `begin_*` says what may be true from now on, `end_*` what is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from moldau.protocol.records import (
    BatchHeader,
    decode_end_txn_marker,
    decode_records,
    iter_batches,
)
from moldau.storage.log import Log
from moldau.storage.verify import Severity, Verification
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.transaction_reader import aborted_transactions


class CheckFailed(AssertionError):
    """The recovered log is not what it must be."""


@dataclass(frozen=True)
class Stored:
    """A batch as it lies in the log."""

    header: BatchHeader
    data: bytes


@dataclass
class Model:
    """One partition. `history` is never changed in place, so that copies stay true."""

    history: tuple[Stored, ...] = ()
    in_flight: tuple[Stored, ...] = ()
    flushed_end: int = 0
    truncating_to: int | None = None
    log_start: int = 0
    """Records from here on must be there."""
    restarted_at: int | None = None
    """Being emptied to start at this offset."""
    ghosts: tuple[tuple[Stored, ...], ...] = ()
    """Histories that a power loss may bring back: cut off, and the cut not flushed."""
    exists: bool = True

    def copy(self) -> Model:
        return replace(self)

    @property
    def end(self) -> int:
        return self.history[-1].header.next_offset if self.history else self.log_start

    def begin_append(self, stored: tuple[Stored, ...]) -> None:
        self.in_flight = stored

    def end_append(self) -> None:
        self.history = (*self.history, *self.in_flight)
        self.in_flight = ()

    def begin_truncate(self, offset: int) -> None:
        self.truncating_to = offset
        self.flushed_end = min(self.flushed_end, offset)
        self.ghosts = (*self.ghosts, self.history)

    def end_truncate(self) -> None:
        offset = self.truncating_to
        assert offset is not None
        self.history = tuple(each for each in self.history if each.header.next_offset <= offset)
        self.flushed_end = min(self.flushed_end, self.end)
        self.truncating_to = None

    def flushed(self, end: int) -> None:
        self.flushed_end = end
        if self.truncating_to is None:
            self.ghosts = ()


def stored_batches(data: bytes | bytearray) -> tuple[Stored, ...]:
    """The batches of a buffer after the log patched it."""
    return tuple(
        Stored(header, bytes(data[position : position + header.size_bytes]))
        for position, header in iter_batches(data)
    )


def contents_of(log: Log) -> tuple[Stored, ...]:
    """Every batch in the log's files, from the first segment's first byte."""
    found: list[Stored] = []
    for segment in log.segments:
        found += stored_batches(segment.file().pread(segment.size_bytes, 0))
    return tuple(found)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def check_recovered(log: Log, model: Model, *, power_loss: bool) -> None:
    """Raises CheckFailed when `log`, just opened after a crash at `model`, is not right."""
    require(not log.offline, f"offline: {log.offline_reason}")
    found = contents_of(log)
    lineages = [(*model.history, *model.in_flight)]
    if power_loss:
        lineages += list(model.ghosts)
    elif model.truncating_to is not None:
        lineages += [model.ghosts[-1]]
    require(
        any(_is_part_of(found, lineage) for lineage in lineages),
        f"{[each.header.base_offset for each in found]} is no run of what was appended",
    )
    required_end = _required_end(model, power_loss)
    end = log.log_end_offset
    require(end >= required_end, f"ends at {end}, {required_end} is promised")
    ends = {each.header.next_offset for lineage in lineages for each in lineage}
    ends |= {0, model.log_start, model.restarted_at or 0}
    require(end in ends, f"ends at {end}, where no batch ended")
    require(
        log.log_start_offset <= max(model.log_start, model.restarted_at or 0),
        f"starts at {log.log_start_offset}, records from {model.log_start} are promised",
    )
    if found and end > log.log_start_offset:
        require(found[-1].header.next_offset == end, "the end is not the last batch's")
        require(found[0].header.base_offset <= log.log_start_offset, "a hole at the start")
    for before, after in itertools.pairwise(found):
        require(before.header.next_offset == after.header.base_offset, "a hole in the log")
    _check_epochs(log, found)
    _check_producers(log, found)
    _check_aborted(log, found)


def _is_part_of(found: tuple[Stored, ...], lineage: tuple[Stored, ...]) -> bool:
    if not found:
        return True
    by_offset = {each.header.base_offset: each.data for each in lineage}
    return all(by_offset.get(each.header.base_offset) == each.data for each in found)


def _required_end(model: Model, power_loss: bool) -> int:
    if model.restarted_at is not None:
        return 0
    if power_loss:
        return model.flushed_end
    if model.truncating_to is None:
        return model.end
    kept = [each for each in model.history if each.header.next_offset <= model.truncating_to]
    return kept[-1].header.next_offset if kept else 0


def _check_epochs(log: Log, found: tuple[Stored, ...]) -> None:
    for each in found:
        header = each.header
        if header.last_offset >= log.log_start_offset:
            offset = max(header.base_offset, log.log_start_offset)
            epoch = log.leader_epoch_cache.epoch_for_offset(offset)
            require(
                epoch == header.partition_leader_epoch,
                f"leader epoch of {offset} is {epoch}, not {header.partition_leader_epoch}",
            )
    last = log.leader_epoch_cache.entries[-1:] if log.leader_epoch_cache.entries else []
    for entry in last:
        require(entry.start_offset <= log.log_end_offset, "a leader epoch begins behind the end")


@dataclass
class _Producer:
    epoch: int = -1
    last: BatchHeader | None = None
    open_from: int = -1
    aborted: list[tuple[int, int, int]] = field(default_factory=list)


def replay(found: tuple[Stored, ...]) -> dict[int, _Producer]:
    """Producers as the batches tell, by an independent and simple-minded walk."""
    producers: dict[int, _Producer] = {}
    for each in found:
        header = each.header
        if header.producer_id < 0:
            continue
        producer = producers.setdefault(header.producer_id, _Producer())
        if header.producer_epoch > producer.epoch:
            producer.last = None
        producer.epoch = header.producer_epoch
        if header.is_control:
            marker = decode_end_txn_marker(decode_records(each.data)[0])
            if producer.open_from >= 0 and marker.type.name == "ABORT":
                producer.aborted.append(
                    (header.producer_id, producer.open_from, header.base_offset)
                )
            producer.open_from = -1
            continue
        producer.last = header
        if header.is_transactional and producer.open_from < 0:
            producer.open_from = header.base_offset
    return producers


def _check_producers(log: Log, found: tuple[Stored, ...]) -> None:
    state = log.producer_state.producers
    # What is known only from records below the log start may be forgotten, as in Kafka.
    expected = replay(tuple(e for e in found if e.header.last_offset >= log.log_start_offset))
    start = found[0].header.base_offset if found else 0
    for producer_id, producer in expected.items():
        entry = state.get(producer_id)
        require(entry is not None, f"producer {producer_id} is forgotten")
        assert entry is not None
        require(entry.producer_epoch == producer.epoch, f"epoch of producer {producer_id}")
        if producer.last is not None:
            last = entry.batches[-1] if entry.batches else None
            require(last is not None, f"producer {producer_id} has no last batch")
            assert last is not None
            require(
                (last.last_sequence, last.last_offset)
                == (producer.last.last_sequence, producer.last.last_offset),
                f"producer {producer_id}: last batch {last}, not {producer.last}",
            )
        # A transaction that began in a deleted segment is known from the snapshot only.
        if producer.open_from >= 0:
            require(
                0 <= entry.current_txn_first_offset <= producer.open_from,
                f"producer {producer_id}: its transaction is open from {producer.open_from}",
            )
        elif start == log.log_start_offset == 0:
            require(entry.current_txn_first_offset < 0, f"producer {producer_id} has no open txn")
    for producer_id, entry in state.items():
        if producer_id not in expected:
            require(
                log.log_start_offset > 0, f"producer {producer_id} never wrote anything in this log"
            )
            last_offset = entry.batches[-1].last_offset if entry.batches else -1
            require(
                last_offset < log.log_start_offset, f"producer {producer_id} from after the end"
            )


def _check_aborted(log: Log, found: tuple[Stored, ...]) -> None:
    if not found:
        return
    start = log.log_start_offset
    expected = {
        aborted
        for producer in replay(found).values()
        for aborted in producer.aborted
        if aborted[2] >= start
    }
    shown = {
        (each.producer_id, each.first_offset, each.last_offset)
        for each in aborted_transactions(log, start, log.log_end_offset)
    }
    missing = expected - shown
    # One whose begin was deleted is found by the walk with a later begin, if at all.
    known_ends = {each[2] for each in shown}
    require(all(each[2] in known_ends for each in missing), f"aborted {missing} not in the index")
    if found[0].header.base_offset == 0:
        require(shown == expected, f"aborted {shown}, not {expected}")


def check_files(filesystem: SimulatedFilesystem, path: str, *, allow: tuple[str, ...] = ()) -> None:
    """Every index entry, snapshot and checkpoint is right, by the engine of `log verify`."""
    for finding in Verification(filesystem, deep=True).findings(path):
        if finding.severity is Severity.NOTE or finding.file.endswith(allow or ("\0",)):
            continue
        raise CheckFailed(str(finding))
