"""Random histories of one partition against a model of its producers.

The model is the list of the batches that are in the log, and what they say of their producers: no
snapshots, no files, no memory. The log is a log manager's, on a simulated disk: it is closed
cleanly, killed, opened again, cut, grown and cut again, and its old segments go. After every step
the log must know of each producer what its batches say.

What time may change: a producer that was idle for long enough may be forgotten at a check or when
the state is loaded, and may be known again when it is loaded from an older snapshot. So the log
must know what the batches behind one of the points say where it may have been forgotten. Replayed
batches count as heard of at the time of the replay.

    await History(seed).run(60)         # raises AssertionError with seed, step and difference
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    encode_end_txn_batch,
    patch_batch,
)
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig, LogManagerSettings
from moldau.storage.log_manager import LogManager
from moldau.storage.producer_entry import RETAINED_BATCH_COUNT, ProducerEntry
from tests.kit.manual_clock import ManualClock
from tests.storage.log_fixtures import batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import START_MS, format_directory, make_manager, topic_id, tp

PARTITION = tp("a-0")
PRODUCER_COUNT = 4
CONFIG = LogConfig(
    segment_bytes=700, segment_index_bytes=240, index_interval_bytes=150, retention_ms=-1
)
EXPIRATION_MS = 60_000
NEVER_EXPIRES_MS = 10**12
SETTLE_TURNS = 30
NOTHING = -1


class Batch(NamedTuple):
    """One batch of the log. `coordinator_epoch`: of a marker, None for data."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    is_transactional: bool
    coordinator_epoch: int | None
    appended_ms: int


class Known(NamedTuple):
    """What batches say of one producer."""

    producer_epoch: int = NOTHING
    last_batch: tuple[int, int, int] | None = None
    coordinator_epoch: int = NOTHING
    current_txn_first_offset: int = NOTHING
    appended_ms: int = NOTHING


def read(batches: list[Batch]) -> Known:
    """What the batches of one producer say, first to last."""
    known = Known()
    for batch in batches:
        last_batch = known.last_batch if batch.producer_epoch == known.producer_epoch else None
        coordinator_epoch = known.coordinator_epoch
        first_offset = known.current_txn_first_offset
        if batch.coordinator_epoch is not None:
            coordinator_epoch, first_offset = batch.coordinator_epoch, NOTHING
        else:
            last_batch = (batch.first_sequence, batch.last_sequence, batch.last_offset)
            if batch.is_transactional and first_offset == NOTHING:
                first_offset = batch.base_offset
        known = Known(
            batch.producer_epoch, last_batch, coordinator_epoch, first_offset, batch.appended_ms
        )
    return known


def told(entry: ProducerEntry) -> Known:
    """What the log knows of a producer, in the same words."""
    last = entry.batches[-1] if entry.batches else None
    return Known(
        entry.producer_epoch,
        None if last is None else (last.first_sequence, last.last_sequence, last.last_offset),
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
        entry.last_timestamp_ms,
    )


class Model:
    """The batches of the log, those too that went with old segments."""

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.batches: list[Batch] = []
        self.loaded_ms: list[int] = []
        self.forgotten: dict[int, set[int]] = {}
        """Producer -> offsets where it may have been forgotten: nothing below may be known."""

    def cut(self, offset: int) -> None:
        """Only whole batches below the offset are left."""
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        for points in self.forgotten.values():
            points.difference_update([point for point in points if point > offset])

    def clear(self) -> None:
        self.batches.clear()
        self.forgotten.clear()

    def of(self, producer_id: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.producer_id == producer_id]

    def time_passed(self, now_ms: int, *, is_loaded: bool) -> None:
        """Idle producers may have been forgotten: now, or, when the state was loaded, wherever its
        snapshot lay.
        """
        if is_loaded:
            self.loaded_ms.append(now_ms)
        for producer_id in {batch.producer_id for batch in self.batches}:
            own = self.of(producer_id)
            for count in range(1 if is_loaded else len(own), len(own) + 1):
                known = read(own[:count])
                is_idle = now_ms - known.appended_ms >= self.expiration_ms
                if is_idle and known.current_txn_first_offset == NOTHING:
                    points = self.forgotten.setdefault(producer_id, set())
                    points.add(own[count - 1].last_offset + 1)

    def check(self, log: Log) -> None:
        """Raises: AssertionError."""
        entries = {entry.producer_id: entry for entry in log.producer_state.producers.values()}
        for producer_id in sorted(entries.keys() | {each.producer_id for each in self.batches}):
            own = self.of(producer_id)
            possible = [read(own)]
            for offset in self.forgotten.get(producer_id, ()):
                possible.append(read([batch for batch in own if batch.base_offset >= offset]))
            entry = entries.get(producer_id)
            found = Known() if entry is None else told(entry)
            assert any(self._is(found, each) for each in possible), (
                f"producer {producer_id}: the log knows {found}, its batches say {possible}"
            )
            if entry is not None:
                self._check_retained(entry, own)
        high_watermark = log.high_watermark
        open_offsets = [told(entry).current_txn_first_offset for entry in entries.values()]
        first = min((each for each in open_offsets if each != NOTHING), default=high_watermark)
        assert log.last_stable_offset == max(min(first, high_watermark), log.log_start_offset)

    def _is(self, found: Known, said: Known) -> bool:
        """Whether they are the same, but for a replay that counts as heard of."""
        if found == said:
            return True
        is_replayed = found.appended_ms in self.loaded_ms and found.appended_ms > said.appended_ms
        return is_replayed and found == said._replace(appended_ms=found.appended_ms)

    def _check_retained(self, entry: ProducerEntry, own: list[Batch]) -> None:
        """The batches before the last one: those of the epoch, without a gap, at most five."""
        written: list[tuple[int, int, int]] = []
        producer_epoch = NOTHING
        for batch in own:
            if batch.producer_epoch != producer_epoch:
                producer_epoch = batch.producer_epoch
                written.clear()
            if batch.coordinator_epoch is None:
                written.append((batch.first_sequence, batch.last_sequence, batch.last_offset))
        found = [
            (each.first_sequence, each.last_sequence, each.last_offset) for each in entry.batches
        ]
        assert len(found) <= RETAINED_BATCH_COUNT
        assert found == written[len(written) - len(found) :], f"{found} of {written}"


class History:
    """One random history. Everything about it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.expires = self.dice.random() < 0.4
        self.clock = ManualClock(START_MS)
        self.filesystem = SimulatedFilesystem(now_ms=self.clock.now_ms)
        expiration_ms = EXPIRATION_MS if self.expires else NEVER_EXPIRES_MS
        self.settings = LogManagerSettings(
            producer_expiration_ms=expiration_ms,
            producer_expiration_check_interval_ms=EXPIRATION_MS,
        )
        self.model = Model(expiration_ms)
        self.producers = dict.fromkeys(range(PRODUCER_COUNT), (0, 0))
        """Epoch and next sequence of each, as it knows them itself."""
        self.steps: list[str] = []
        self.manager: LogManager
        self.log: Log
        format_directory(self.filesystem, "/data")

    async def run(self, step_count: int) -> None:
        """Raises: AssertionError, with what replays it."""
        await self._start()
        steps = {
            self.send: 30,
            self.fetch: 15,
            self.end_transaction: 15,
            self.cut: 14,
            self.close_and_open: 9,
            self.kill_and_open: 5,
            self.roll: 4,
            self.flush: 4,
            self.start_elsewhere: 2,
            self.delete_records: 4,
            self.let_time_pass: 5,
        }
        try:
            for step in self.dice.choices([*steps], [*steps.values()], k=step_count):
                self.steps.append(step.__name__)
                self.clock.advance(self.dice.randint(1, 500))
                await step()
                self.log.update_high_watermark(self.log.log_end_offset)
                self.model.check(self.log)
        except AssertionError as error:
            told = ", ".join(self.steps[-12:])
            raise AssertionError(
                f"seed {self.seed}, step {len(self.steps)} of {told}: {error}"
            ) from None
        await self.manager.shutdown(1)

    async def _start(self) -> None:
        self.manager = make_manager(
            self.filesystem, self.clock, config=CONFIG, settings=self.settings
        )
        await self.manager.start()
        self.log = self.manager.get_or_create(PARTITION, topic_id(1))

    # -- batches ---------------------------------------------------------------------------------

    def _data(self, entry: Known, producer_id: int, base_offset: int) -> tuple[bytearray, Batch]:
        """The next batch of a producer of which the log knows `entry`."""
        dice = self.dice
        # A producer never goes back to an earlier epoch, nor to an earlier sequence of one,
        # whatever was cut or forgotten here.
        producer_epoch, first_sequence = self.producers[producer_id]
        if entry.producer_epoch == producer_epoch and entry.last_batch is not None:
            first_sequence = entry.last_batch[1] + 1
        elif entry.producer_epoch != NOTHING and first_sequence:
            producer_epoch, first_sequence = producer_epoch + 1, 0
        if dice.random() < 0.1:
            producer_epoch, first_sequence = producer_epoch + 1, 0
        is_open = entry.current_txn_first_offset != NOTHING
        count = dice.randint(1, 3)
        batch = Batch(
            base_offset,
            base_offset + count - 1,
            producer_id,
            producer_epoch,
            first_sequence,
            first_sequence + count - 1,
            is_open or dice.random() < 0.4,
            None,
            self.clock.now_ms(),
        )
        self.producers[producer_id] = producer_epoch, batch.last_sequence + 1
        sent = batch_of(
            *[f"{self.seed}/{base_offset}"] * count,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=first_sequence,
            is_transactional=batch.is_transactional,
        )
        return sent, batch

    def _marker(self, entry: Known, producer_id: int, base_offset: int) -> tuple[bytearray, Batch]:
        dice = self.dice
        producer_epoch, next_sequence = self.producers[producer_id]
        if dice.random() < 0.3:
            producer_epoch, next_sequence = producer_epoch + 1, 0
        self.producers[producer_id] = producer_epoch, next_sequence
        batch = Batch(
            base_offset,
            base_offset,
            producer_id,
            producer_epoch,
            NOTHING,
            NOTHING,
            True,
            max(entry.coordinator_epoch, 0) + dice.choice((0, 0, 1)),
            self.clock.now_ms(),
        )
        assert batch.coordinator_epoch is not None
        kind = dice.choice((ControlRecordType.COMMIT, ControlRecordType.ABORT))
        sent = encode_end_txn_batch(
            EndTxnMarker(kind, batch.coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=batch.producer_epoch,
            timestamp_ms=START_MS,
        )
        return sent, batch

    def _known(self, producer_id: int) -> Known:
        found = {entry.producer_id: entry for entry in self.log.producer_state.producers.values()}
        return told(found[producer_id]) if producer_id in found else Known()

    async def send(self) -> None:
        """A client's batch."""
        producer_id = self.dice.randrange(PRODUCER_COUNT)
        sent, batch = self._data(self._known(producer_id), producer_id, self.log.log_end_offset)
        result = self.log.append_as_leader(RecordBatches.read(sent), leader_epoch=0)
        assert (result.error, result.base_offset) == (ErrorCode.NONE, batch.base_offset), result
        self.model.batches.append(batch)

    async def end_transaction(self) -> None:
        """A coordinator's marker, mostly of a transaction that is open."""
        known = {producer_id: self._known(producer_id) for producer_id in range(PRODUCER_COUNT)}
        is_open = [each for each in known if known[each].current_txn_first_offset != NOTHING]
        producer_id = self.dice.choice(is_open or list(known))
        sent, batch = self._marker(known[producer_id], producer_id, self.log.log_end_offset)
        result = self.log.append_as_leader(
            RecordBatches.read(sent), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )
        assert (result.error, result.base_offset) == (ErrorCode.NONE, batch.base_offset), result
        self.model.batches.append(batch)

    async def fetch(self) -> None:
        """A follower's batches: several at once, data and markers mixed."""
        known = {producer_id: self._known(producer_id) for producer_id in range(PRODUCER_COUNT)}
        fetched = bytearray()
        batches: list[Batch] = []
        for _ in range(self.dice.randint(1, 4)):
            producer_id = self.dice.randrange(PRODUCER_COUNT)
            base_offset = batches[-1].last_offset + 1 if batches else self.log.log_end_offset
            make = self._marker if self.dice.random() < 0.3 else self._data
            sent, batch = make(known[producer_id], producer_id, base_offset)
            patch_batch(sent, 0, base_offset=base_offset, partition_leader_epoch=0)
            fetched += sent
            batches.append(batch)
            own = [each for each in batches if each.producer_id == producer_id]
            before = [each for each in self.model.of(producer_id)]
            known[producer_id] = read(before + own)
        result = self.log.append_as_follower(fetched, leader_epoch=0)
        assert (result.error, result.base_offset) == (ErrorCode.NONE, batches[0].base_offset)
        self.model.batches += batches

    # -- what happens to logs --------------------------------------------------------------------

    async def cut(self) -> None:
        """A new leader has less. Mostly a little less, so that logs grow."""
        low, end = self.log.segments[0].base_offset, self.log.log_end_offset
        if end == low:
            return
        farthest = end - low if self.dice.random() < 0.15 else min(end - low, 12)
        offset = end - self.dice.randint(1, farthest)
        self.log.truncate_to(offset)
        if offset <= low:
            self.model.clear()
        self.model.cut(offset)
        self.model.time_passed(self.clock.now_ms(), is_loaded=True)
        kept = [batch.last_offset + 1 for batch in self.model.batches]
        assert self.log.log_end_offset == max([*kept[-1:], self.log.segments[0].base_offset])

    async def start_elsewhere(self) -> None:
        """The leader's log begins somewhere else: nothing is left of this one."""
        end = self.log.log_end_offset
        offset = self.dice.choice((end, self.dice.randint(max(0, end - 30), end + 10)))
        self.log.truncate_fully_and_start_at(offset)
        self.model.clear()
        self.model.time_passed(self.clock.now_ms(), is_loaded=True)

    async def close_and_open(self) -> None:
        """A clean stop, perhaps a while, a start."""
        await self.manager.shutdown(1)
        await self._pause()
        await self._opened()

    async def kill_and_open(self) -> None:
        """Only what is in the page cache stays."""
        await self.manager.cleaner.stop()
        await self.manager.jobs.stop()
        root = self.filesystem.image().after_kill()
        self.log.abandon()
        self.filesystem = SimulatedFilesystem(root, now_ms=self.clock.now_ms)
        await self._pause()
        await self._opened()

    async def _opened(self) -> None:
        end = self.log.log_end_offset
        await self._start()
        assert not self.log.offline
        if self.log.log_end_offset != end:
            # Cut below a log start that had been checkpointed: the log begins there again, empty.
            assert self.log.log_end_offset == self.log.log_start_offset > end
            assert self.log.size_bytes == 0
            self.model.clear()
        self.model.time_passed(self.clock.now_ms(), is_loaded=True)

    async def _pause(self) -> None:
        if self.expires and self.dice.random() < 0.2:
            self.clock.advance(EXPIRATION_MS)

    async def roll(self) -> None:
        """A new segment, and with it a snapshot."""
        self.log.roll()

    async def flush(self) -> None:
        """Everything is durable, and a while later the recovery point is too."""
        await self.manager.jobs.flush(self.log)

    async def delete_records(self) -> None:
        """Records and old segments go; what they said of producers stays."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = self.dice.randint(start, end)
        assert self.log.delete_records(offset) == (ErrorCode.NONE, offset)

    async def let_time_pass(self) -> None:
        """The manager's jobs run: checkpoints, expiry."""
        self.clock.advance(self.dice.choice((1_000, EXPIRATION_MS)))
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        self.log.producer_state.expire(self.log.clock.now_ms())
        now_ms = self.clock.now_ms()
        self.model.time_passed(now_ms, is_loaded=False)
        for entry in map(told, self.log.producer_state.producers.values()):
            is_idle = now_ms - entry.appended_ms >= self.model.expiration_ms
            assert entry.current_txn_first_offset != NOTHING or not is_idle, entry
