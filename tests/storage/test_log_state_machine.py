"""The log against a list: appends, rolls, reads, cuts and restarts in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec
from moldau.storage.append import RecordBatches
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import OpenSegments
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    batch_of,
    offset_for_timestamp,
    read_once,
)
from tests.storage.simulated_filesystem import SimulatedFilesystem

PRODUCER_ID = 5


class LogMachine(RuleBasedStateMachine):
    """`model` maps offset -> (value, batch number); a log must hold exactly its offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = SimulatedFilesystem()
        config = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=240)
        self.bench = LogBench(self.filesystem, config=config)
        self.log = self.bench.open()
        self.log.segments.share_open_segments(OpenSegments(limit=2))
        self.model: dict[int, bytes] = {}
        self.batch_starts: list[int] = []
        self.timestamps: dict[int, int] = {}
        self.sequence = 0
        self.sequence_after: dict[int, int] = {}
        self.leader_epoch = 0
        self.start = 0
        self.counter = 0

    @property
    def end(self) -> int:
        return max(self.model, default=self.start - 1) + 1

    @rule(
        count=st.integers(1, 5),
        size=st.integers(0, 120),
        codec=st.sampled_from(list(Codec)),
        idempotent=st.booleans(),
        step_ms=st.integers(-50, 200),
    )
    def append(self, count: int, size: int, codec: Codec, idempotent: bool, step_ms: int) -> None:
        self.counter += 1
        values = [f"{self.counter}/{n}/".encode() + b"x" * size for n in range(count)]
        timestamp_ms = START_MS - 10**8 + self.counter * 10 + step_ms
        options: dict[str, int] = {}
        if idempotent:
            options = {
                "producer_id": PRODUCER_ID,
                "producer_epoch": 0,
                "base_sequence": self.sequence,
            }
        base = self.end
        result = append(
            self.log,
            *values,
            timestamp_ms=timestamp_ms,
            codec=codec,
            leader_epoch=self.leader_epoch,
            **options,
        )
        assert (result.base_offset, result.last_offset) == (base, base + count - 1)
        if idempotent:
            self.sequence += count
            self.sequence_after[base] = self.sequence
        self.batch_starts.append(base)
        for n, value in enumerate(values):
            self.model[base + n] = value
            self.timestamps[base + n] = timestamp_ms

    @precondition(lambda self: PRODUCER_ID in self.log.producer_state.producers)
    @rule()
    def send_a_gap(self) -> None:
        sent = batch_of(
            "gap", producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=self.sequence + 1
        )
        error = self.log.append_as_leader(
            RecordBatches.read(sent), leader_epoch=self.leader_epoch
        ).error
        assert error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule()
    def elect(self) -> None:
        self.leader_epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset

    @rule(at=st.floats(0, 1), max_bytes=st.integers(1, 3000), bound=st.floats(0, 1))
    def read(self, at: float, max_bytes: int, bound: float) -> None:
        offset = self.start + int(at * (self.end - self.start))
        max_offset = offset + int(bound * (self.end - offset))
        result, found = read_once(self.log, offset, max_bytes=max_bytes, max_offset=max_offset)
        assert result.error is ErrorCode.NONE
        assert all(r.offset < max_offset for r in found)
        for record in found:
            if record.offset in self.model:
                assert bytes(record.value or b"") == self.model[record.offset]
        wanted = [s for s in self.batch_starts if s > offset] + [self.end]
        if wanted[0] <= max_offset and offset < max_offset:
            assert found, "the batch that holds the offset is below the bound"
            assert found[0].offset <= offset <= found[-1].offset

    @precondition(lambda self: self.model)
    @rule(at=st.floats(0, 1))
    def look_up_time(self, at: float) -> None:
        times = sorted(set(self.timestamps.values()))
        target = times[int(at * (len(times) - 1))]
        visible = [
            (o, t) for o, t in sorted(self.timestamps.items()) if o >= self.start and t >= target
        ]
        found = offset_for_timestamp(self.log, target)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == (
            visible[0] if visible else None
        )

    @rule(at=st.floats(0, 1))
    def truncate(self, at: float) -> None:
        offset = self.start + int(at * (self.end - self.start))
        starts = [s for s in [*self.batch_starts, self.end] if s <= offset]
        kept_end = max(max(starts, default=self.start), self.start)
        if offset >= self.end:
            kept_end = self.end
        first_base = self.log.segments[0].base_offset
        if offset <= first_base:
            kept_end = offset
        if kept_end < self.start or (kept_end == self.start and kept_end not in self.batch_starts):
            return
        self.log.truncate_to(offset)
        self._forget(lambda o: o >= kept_end)
        self.sequence_after = {o: s for o, s in self.sequence_after.items() if o < kept_end}
        self.sequence = max(self.sequence_after.values(), default=0)
        entry = self.log.producer_state.producers.get(PRODUCER_ID)
        if any(o in self.model for o in self.sequence_after):
            assert entry is not None
        if entry is not None:
            assert entry.last_sequence + 1 == self.sequence

    @rule(at=st.floats(0, 1))
    def delete_records(self, at: float) -> None:
        offset = self.start + int(at * (self.end - self.start))
        self.log.update_high_watermark(self.log.log_end_offset)
        assert self.log.delete_records(offset) == (ErrorCode.NONE, offset)
        end = self.end
        self.start = offset
        self._forget(lambda o: o < offset)
        assert self.end == end

    def _forget(self, gone: object) -> None:
        assert callable(gone)
        self.model = {o: v for o, v in self.model.items() if not gone(o)}
        self.timestamps = {o: t for o, t in self.timestamps.items() if not gone(o)}
        end = self.end
        self.batch_starts = [
            s for s in self.batch_starts if s < end and s >= self.log.segments[0].base_offset
        ]

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log = self.bench.reopen(self.log, clean=clean)
        self.log.segments.share_open_segments(OpenSegments(limit=2))
        assert not self.log.offline, self.log.offline_reason

    @precondition(lambda self: self.log.producer_state.producers.get(PRODUCER_ID))
    @rule(back=st.integers(1, 5))
    def send_again(self, back: int) -> None:
        entry = self.log.producer_state.producers[PRODUCER_ID]
        if back > len(entry.batches):
            return
        batch = entry.batches[-back]
        sent = batch_of(
            *["again"] * (batch.offset_delta + 1),
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=batch.first_sequence,
        )
        result = self.log.append_as_leader(RecordBatches.read(sent), leader_epoch=self.leader_epoch)
        assert result.is_duplicate
        assert result.base_offset == batch.first_offset

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.log_end_offset
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        bases = [s.base_offset for s in log.segments]
        assert bases == sorted(set(bases))
        assert self.filesystem.open_files <= 3

    def teardown(self) -> None:
        at = self.start
        seen: dict[int, bytes] = {}
        while at < self.end:
            result, found = read_once(self.log, at)
            assert found
            seen.update({r.offset: bytes(r.value or b"") for r in found if r.offset >= self.start})
            at = result.next_offset
        assert seen == self.model
        self.log.close()
        assert self.filesystem.open_files == 0
        assert self.filesystem.open_maps == 0


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLogMachine = LogMachine.TestCase
