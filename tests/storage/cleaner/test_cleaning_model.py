"""Random logs with transactions, tombstones, producers and restarts, cleaned again and again,
beside a model that is never cleaned.
"""

from __future__ import annotations

import asyncio
import random as random_module

import pytest

from moldau.protocol.records import Codec, Record
from tests.kit.dice import drawn_seed
from tests.storage.cleaner.cleaner_bench import (
    ABORT,
    COMMIT,
    CleanerBench,
    Told,
    batches_of,
    committed,
    newest_of,
    told,
)

STEP_COUNT = 120
RUN_COUNT = 12
KEYS = [f"key-{number}" for number in range(9)]
TRANSACTIONAL = (100, 101, 102)


class Run:
    """One log's random life."""

    def __init__(self, seed: int) -> None:
        self.random = random_module.Random(seed)
        self.bench = CleanerBench()
        self.written: dict[int, Told] = {}
        """Every record of data ever appended, by offset."""
        self.hidden: set[int] = set()
        """Offsets of aborted records."""
        self.open: dict[int, list[int]] = {}
        self.epochs: dict[int, int] = {}
        self.tombstones_since: dict[int, int] = {}
        self.steps = (
            [self.append] * 8
            + [self.append_in_transaction] * 5
            + [self.end] * 4
            + [self.clean] * 3
            + [self.roll, self.pass_time, self.restart, self.kill]
        )

    async def go(self) -> None:
        await self.bench.start()
        for _ in range(STEP_COUNT):
            await self.random.choice(self.steps)()
        await self.clean()
        for producer_id in list(self.open):
            await self._end(producer_id)
        self.bench.roll()
        self.bench.clock.advance(5000)
        for _ in range(3):
            await self.clean()
            self.bench.clock.advance(5000)

    # -- steps -----------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[str, str | None]]:
        count = self.random.randint(1, 4)
        return [
            (
                self.random.choice(KEYS),
                None if self.random.random() < 0.25 else "v" * self.random.randint(0, 60),
            )
            for _ in range(count)
        ]

    def _note(self, first_offset: int) -> list[int]:
        log = self.bench.log
        header, records = batches_of(log)[-1]
        assert header.base_offset == first_offset
        for record in records:
            self.written[record.offset] = told(record)
        return [record.offset for record in records]

    async def append(self) -> None:
        producer_id = self.random.choice((-1, -1, 50, 51))
        codec = self.random.choice(list(Codec))
        self._note(self.bench.append(*self._pairs(), producer_id=producer_id, codec=codec))

    async def append_in_transaction(self) -> None:
        producer_id = self.random.choice(TRANSACTIONAL)
        offset = self.bench.append(
            *self._pairs(),
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0),
            transactional=True,
        )
        self.open.setdefault(producer_id, []).extend(self._note(offset))

    async def end(self) -> None:
        if self.open:
            await self._end(self.random.choice(sorted(self.open)))
        elif self.random.random() < 0.3:
            producer_id = self.random.choice(TRANSACTIONAL)
            self.bench.end(producer_id, ABORT, producer_epoch=self.epochs.get(producer_id, 0))

    async def _end(self, producer_id: int) -> None:
        kind = self.random.choice((ABORT, COMMIT))
        epoch = self.epochs.get(producer_id, 0)
        if self.random.random() < 0.3:  # fenced by its coordinator, or an epoch per transaction
            epoch = self.epochs[producer_id] = epoch + 1
            self.bench.sequences[producer_id] = 0
        self.bench.end(producer_id, kind, producer_epoch=epoch)
        offsets = self.open.pop(producer_id)
        if kind is ABORT:
            self.hidden.update(offsets)

    async def roll(self) -> None:
        self.bench.roll()

    async def pass_time(self) -> None:
        self.bench.clock.advance(self.random.choice((10, 600, 1500)))

    async def restart(self) -> None:
        before = self._producers()
        await self.bench.restart()
        self._check_producers(before)
        self.check()

    async def kill(self) -> None:
        before = self._producers()
        await self.bench.restart(clean=False)
        self._check_producers(before)
        self.check()

    async def clean(self) -> None:
        before = self._producers()
        await self.bench.clean()
        assert not self.bench.manager.cleaner.uncleanable
        assert self._producers() == before
        self.check()

    # -- checks ----------------------------------------------------------------------------------

    def _producers(self) -> dict[int, tuple[int, int, int, int]]:
        return {
            producer_id: (
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.current_txn_first_offset,
            )
            for producer_id, entry in self.bench.log.producer_state.producers.items()
        }

    def _check_producers(self, before: dict[int, tuple[int, int, int, int]]) -> None:
        after = self._producers()
        for producer_id, (epoch, sequence, offset, first_offset) in before.items():
            found = after.get(producer_id)
            if found is None:
                # Of one that only ever wrote markers nothing needs to be left.
                assert offset == -1, producer_id
                assert first_offset == -1, producer_id
                continue
            assert found == (epoch, sequence, offset, first_offset), producer_id

    def check(self) -> None:
        log = self.bench.log
        end = log.last_stable_offset
        expected = [
            record
            for offset, record in sorted(self.written.items())
            if offset < end and offset not in self.hidden
        ]
        found = committed(log)
        assert newest_of(found) == newest_of(expected)
        assert {*found} <= {*expected}, "something was changed, or came back"
        offsets = [record.offset for record in found]
        assert offsets == sorted(offsets)
        start = self.random.randint(0, log.log_end_offset)
        assert committed(log, start) == [record for record in found if record.offset >= start]
        first_dirty = log.first_dirty_offset or 0
        dirty = [record for record in expected if record.offset >= first_dirty]
        assert [record for record in found if record.offset >= first_dirty] == dirty
        clean = [record.key for record in found if record.offset < first_dirty]
        assert len(set(clean)) == len(clean), "two records of a key in the cleaned part"
        self._check_batches(first_dirty)

    def _check_batches(self, first_dirty: int) -> None:
        last_offset = -1
        now_ms = self.bench.clock.now_ms()
        for header, records in batches_of(self.bench.log):
            assert header.base_offset > last_offset
            assert header.record_count == len(records)
            last_offset = header.last_offset
            for record in records:
                assert header.base_offset <= record.offset <= last_offset
                self._check_record(header.is_control, record)
        for segment in self.bench.log.segments:
            assert segment.largest_timestamp_ms() <= now_ms + 10

    def _check_record(self, is_control: bool, record: Record) -> None:
        if not is_control:
            assert told(record) == self.written[record.offset]


@pytest.mark.parametrize("number", range(RUN_COUNT))
def test_random_logs(number: int) -> None:
    seed = drawn_seed(4000 + number)
    run = Run(seed)
    asyncio.run(run.go())
    # In the end hardly anything is left that could go.
    log = run.bench.log
    tombstones = [r for r in committed(log) if r.value is None]
    first_dirty = log.first_dirty_offset or 0
    assert all(r.offset >= first_dirty for r in tombstones), "tombstones past their time"
