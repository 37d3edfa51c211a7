"""A cleaner's job and its events, as values that fit on one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from moldau.storage.checkpoints import EpochStartOffset

NO_OFFSET = -1
NO_TIME = -1


class SourceSegment(NamedTuple):
    """A closed segment: its bytes [0, size_bytes) and offsets [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    size_bytes: int


class ProducerTail(NamedTuple):
    """What compaction must keep of a producer that has not expired.

    `last_offset` is that of its last batch of data (NO_OFFSET: only markers are known of it).
    """

    producer_id: int
    last_offset: int
    producer_epoch: int


class CleaningJob(NamedTuple):
    """All that cleaning one log needs, as of one instant.

    `segments` are the whole log below the first uncleanable offset, without gaps between them; no
    cleaning has seen what lies at or after `first_dirty_offset`.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    index_bases: tuple[int, ...]
    """Base offsets of all segments whose transaction index may name aborted transactions."""
    epochs: tuple[EpochStartOffset, ...]
    """The log's leader epochs."""
    producers: tuple[ProducerTail, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    load_factor: float
    io_bytes: int
    max_bytes_per_second: float

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


@dataclass(slots=True)
class CleaningStats:
    """The figures of one cleaning."""

    bytes_read: int = 0
    """The size of the sources, read by the rewriting pass."""
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    key_count: int = 0
    slot_count: int = 0
    latest_horizon_ms: int = NO_TIME
    """When the last of the tombstones and markers that stay may go; NO_TIME: none waits."""

    @property
    def buffer_utilization(self) -> float:
        """How full the key table was, 0 to 1."""
        return self.key_count / self.slot_count if self.slot_count else 0.0


class SegmentCleaned(NamedTuple):
    """The `.cleaned` files of a segment are complete and durable; it replaces its sources."""

    source_bases: tuple[int, ...]
    size_bytes: int

    @property
    def base_offset(self) -> int:
        return self.source_bases[0]


@dataclass(frozen=True, slots=True)
class CleaningDone:
    """The last event: below `end_offset` no key has a newer record below it."""

    end_offset: int
    stats: CleaningStats = field(default_factory=CleaningStats)


CleaningEvent = SegmentCleaned | CleaningDone


class CleaningFailed(Exception):
    """A log could not be cleaned; the text is one line saying why.

    `is_out_of_room`: it may succeed when there is room again. `is_worker_lost`: its process has
    ended, which alone says nothing about the log. `is_damage`: the log is not what was written.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_out_of_room: bool = False,
        is_worker_lost: bool = False,
        is_damage: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_out_of_room = is_out_of_room
        self.is_worker_lost = is_worker_lost
        self.is_damage = is_damage


class CleaningAborted(CleaningFailed):
    """The cleaning was aborted, because the log changed or on request; nothing is wrong."""


def encode_job(job: CleaningJob) -> bytes:
    return _line(job._asdict())


def decode_job(line: bytes) -> CleaningJob:
    """Raises: ValueError, TypeError or KeyError on what `encode_job` did not write."""
    values = json.loads(line)
    values["segments"] = tuple(SourceSegment(*each) for each in values["segments"])
    values["epochs"] = tuple(EpochStartOffset(*each) for each in values["epochs"])
    values["producers"] = tuple(ProducerTail(*each) for each in values["producers"])
    values["index_bases"] = tuple(values["index_bases"])
    return CleaningJob(**values)


def encode_event(event: CleaningEvent | CleaningFailed) -> bytes:
    if isinstance(event, SegmentCleaned):
        return _line({"cleaned": event.source_bases, "size_bytes": event.size_bytes})
    if isinstance(event, CleaningDone):
        return _line({"end_offset": event.end_offset, "stats": asdict(event.stats)})
    flags = {"is_out_of_room": event.is_out_of_room, "is_damage": event.is_damage}
    return _line({"failed": event.reason, **flags})


def decode_event(line: bytes) -> CleaningEvent:
    """Raises: CleaningFailed when that is what it says; ValueError, TypeError or KeyError."""
    values = json.loads(line)
    if "failed" in values:
        raise CleaningFailed(values.pop("failed"), **values)
    if "cleaned" in values:
        return SegmentCleaned(tuple(values["cleaned"]), values["size_bytes"])
    return CleaningDone(values["end_offset"], CleaningStats(**values["stats"]))


def _line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
