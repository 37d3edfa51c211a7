"""One segment against a plain list of its batches: reads, cuts and timestamps at each boundary."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from moldau.protocol.records import Record, encode_batch, read_batch_header
from moldau.storage.indexes import SparseIndex
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import POSITION_HINT_COUNT, ByteRange, LogSegment, OpenSegments
from tests.kit.dice import drawn_seed
from tests.storage.log_fixtures import START_MS
from tests.storage.simulated_filesystem import SimulatedFilesystem

BASE = 1000
INTERVAL_BYTES = 200
CONFIG = LogConfig(index_interval_bytes=INTERVAL_BYTES, segment_index_bytes=4096)


@dataclass(frozen=True)
class Batch:
    """What a model knows of a batch: offsets `first` to `last`, where its bytes lie."""

    first: int
    last: int
    position: int
    end: int
    max_ms: int
    data: bytes


def random_batches(rng: random.Random) -> list[Batch]:
    """Batches of a compacted log: of all sizes, with holes between them and at their ends."""
    found: list[Batch] = []
    offset, position = BASE, 0
    without_timestamps = rng.random() < 0.2
    for _ in range(rng.randint(1, 14)):
        offset += rng.choice((0, 0, 0, 1, 4))
        at_ms = -1 if without_timestamps or rng.random() < 0.1 else START_MS + rng.randint(-9, 9)
        records = [
            Record(n, at_ms, None, b"v" * rng.randint(0, 120)) for n in range(rng.randint(1, 3))
        ]
        last_delta = len(records) - 1 + rng.choice((0, 0, 1))
        data = bytes(encode_batch(records, base_offset=offset, last_offset_delta=last_delta))
        end = position + len(data)
        found.append(Batch(offset, offset + last_delta, position, end, at_ms, data))
        offset, position = offset + last_delta + 1, end
    return found


def segment_of(batches: list[Batch]) -> LogSegment:
    disk = SimulatedFilesystem()
    disk.mkdirs("/d")
    segment = LogSegment(disk, OpenSegments(), "/d", BASE, 0, START_MS)
    segment.activate(CONFIG, create=True)
    append(segment, batches)
    return segment


def append(segment: LogSegment, batches: list[Batch]) -> None:
    for batch in batches:
        header = read_batch_header(batch.data, 0)
        segment.append(bytearray(batch.data), [(0, header)], INTERVAL_BYTES)


def entries(index: SparseIndex) -> list[tuple[int, ...]]:
    index.load()
    return [index.entry(number) for number in range(index.entry_count)]


def expected_entries(
    batches: list[Batch],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The entries of the offset index and of the time index: one where more than an interval lies
    behind.
    """
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    bytes_since = 0
    for number, batch in enumerate(batches):
        if bytes_since > INTERVAL_BYTES:
            offsets.append((batch.last - BASE, batch.position))
            largest, at = expected_max(batches[: number + 1])
            if largest > max([-1, *(ms for ms, _ in times)]):
                times.append((largest, at - BASE))
            bytes_since = 0
        bytes_since += len(batch.data)
    return offsets, times


def expected_max(batches: list[Batch]) -> tuple[int, int]:
    """The largest timestamp, and the last offset of the first batch that has it."""
    largest = max((batch.max_ms for batch in batches), default=-1)
    if largest == -1:
        return -1, BASE
    return largest, next(batch.last for batch in batches if batch.max_ms == largest)


def expected_range(
    batches: list[Batch],
    start_offset: int,
    end_offset: int,
    max_bytes: int,
    max_offset: int,
    min_one_message: bool,
) -> ByteRange | None:
    rest = [batch for batch in batches if batch.last >= start_offset]
    if not rest:
        return None
    position = end = rest[0].position
    for batch in rest:
        fits = batch.end - position <= max_bytes or (min_one_message and batch is rest[0])
        if batch.last >= max_offset or not fits:
            return ByteRange(position, end, batch.first)
        end = batch.end
    return ByteRange(position, end, end_offset)


def assert_is_as_new(
    segment: LogSegment, batches: list[Batch], more_times: list[tuple[int, int]] | None = None
) -> None:
    """What is known of it is what these batches say, whatever else was in it before.

    `more_times`: time index entries that were written for batches behind these, and say nothing of
    them.
    """
    assert segment.size_bytes == sum(len(batch.data) for batch in batches)
    assert segment.file().size_bytes == segment.size_bytes
    offsets, times = expected_entries(batches)
    assert entries(segment.offset_index) == offsets
    assert entries(segment.time_index) == (times if more_times is None else more_times)
    assert segment.max_timestamp() == expected_max(batches)
    assert segment.rolling_base_timestamp_ms() == (batches[0].max_ms if batches else -1)
    last = segment.check_end()
    assert (last.last_offset if last else None) == (batches[-1].last if batches else None)
    for batch in batches:
        for offset in (batch.first, batch.last):
            found = segment.find(offset)
            assert found is not None
            assert (found[0], found[1].base_offset) == (batch.position, batch.first)


@pytest.fixture(params=range(12))
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(drawn_seed(request.param))


def test_reads_are_what_a_plain_search_gives(rng: random.Random) -> None:
    batches = random_batches(rng)
    segment = segment_of(batches)
    assert_is_as_new(segment, batches)
    end_offset = batches[-1].last + rng.choice((1, 1, 3))
    offsets = sorted({o + d for b in batches for o in (b.first, b.last) for d in (0, 1)})
    sizes = sorted({a.end - b.position + d for a in batches for b in batches for d in (-1, 0, 1)})
    for _ in range(250):
        start_offset = rng.choice([o for o in offsets if o <= end_offset])
        max_offset = rng.choice([*(o for o in offsets if o <= end_offset), end_offset])
        max_bytes = rng.choice([size for size in sizes if size > 0])
        is_one = rng.random() < 0.5
        if rng.random() < 0.5:
            segment.hints.clear()
        bounds = (end_offset, max_bytes, max_offset, is_one)
        found = segment.locate(
            start_offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one_message=is_one,
        )
        assert found == expected_range(batches, start_offset, *bounds), (start_offset, bounds)
    assert segment.find(batches[-1].last + 1) is None


def test_a_cut_leaves_what_a_segment_of_the_batches_below_it_has(rng: random.Random) -> None:
    batches = random_batches(rng)
    edges = [offset for batch in batches for offset in (batch.first, batch.last)]
    for offset in sorted({*edges, *(edge + 1 for edge in edges)}):
        segment = segment_of(batches)
        kept = [batch for batch in batches if batch.last < offset]
        cut = batches[len(kept) :]
        end = min(offset, cut[0].first) if cut else offset
        assert segment.truncate_to(offset) == end
        _, times = expected_entries(batches)
        assert_is_as_new(segment, kept, [each for each in times if each[1] < end - BASE])
        assert set(segment.hints) <= {batch.first for batch in kept} or not cut
        append(segment, cut)
        assert_is_as_new(segment, batches)


def test_a_closed_segment_says_what_it_said_before(rng: random.Random) -> None:
    batches = random_batches(rng)
    segment = segment_of(batches)
    offsets, times = expected_entries(batches)
    segment.deactivate()
    largest = expected_max(batches)
    if largest[0] > max([-1, *(ms for ms, _ in times)]):
        times.append((largest[0], largest[1] - BASE))
    again = LogSegment(
        segment._filesystem, OpenSegments(), "/d", BASE, segment.size_bytes, START_MS
    )
    for each in (segment, again):
        assert entries(each.offset_index) == offsets
        assert entries(each.time_index) == times
        assert each.max_timestamp() == largest
        assert each.rolling_base_timestamp_ms() == batches[0].max_ms
        each.close_descriptors()


def test_an_interval_is_over_when_more_than_its_bytes_lie_behind() -> None:
    data = bytes(encode_batch([Record(0, START_MS, None, b"v")], base_offset=BASE))
    second = bytes(encode_batch([Record(0, START_MS, None, b"v")], base_offset=BASE + 1))
    for interval_bytes, count in [(len(data), 0), (len(data) - 1, 1)]:
        segment = segment_of([])
        for each in (data, second):
            segment.append(bytearray(each), [(0, read_batch_header(each, 0))], interval_bytes)
        assert segment.offset_index.entry_count == count


def test_an_append_fits_up_to_the_segments_size_and_the_last_offset_it_can_number() -> None:
    segment = segment_of(random_batches(random.Random(1)))
    found = segment.find(BASE)
    assert found is not None
    room = CONFIG.segment_bytes - segment.size_bytes
    for size_bytes, last_offset, fits in [
        (room, BASE + 2**31 - 1, True),
        (room + 1, BASE + 5000, False),
        (1, BASE + 2**31, False),
    ]:
        assert segment.must_roll(size_bytes, [found], last_offset, 0, CONFIG) is not fits


def test_the_positions_of_the_newest_batches_are_remembered() -> None:
    batches: list[Batch] = []
    data = bytes(encode_batch([Record(0, START_MS, None, b"v")]))
    for number in range(POSITION_HINT_COUNT + 5):
        first, at = BASE + number, number * len(data)
        changed = bytes(encode_batch([Record(0, START_MS, None, b"v")], base_offset=first))
        batches.append(Batch(first, first, at, at + len(data), START_MS, changed))
    segment = segment_of(batches)
    newest = batches[-POSITION_HINT_COUNT:]
    assert segment.hints == {batch.first: batch.position for batch in newest}
    assert all(a.end == b.position for a, b in pairwise(batches))
