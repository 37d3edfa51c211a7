"""Random interleavings: whatever a client was answered is in the log of every later leader.

The model is the log itself. An operation notes where the log ended when it was carried out; once it
has been answered with success, no leader may lack anything before that end, and a read must have
been answered with exactly what the log says up to there.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.broker.coordinator.core.result import CoordinatorResult, Producer, TransactionEnd
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from tests.unit.broker.coordinator.harness import SETTINGS, MemoryBroker
from tests.unit.broker.coordinator.toy import ToyState, commit_record

GROUPS = ("a", "b", "c")
PRODUCERS = (1, 2)
STEPS = 250
REFUSALS = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Model:
    """The log as a list of entries, cut as the partition's is."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any, Any]] = []

    def offsets(self, end: int) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(GROUPS)
        pending: dict[int, dict[str, int]] = {}
        for kind, first, second in self.log[:end]:
            if kind == "plain":
                found[first] = second
            elif kind == "transactional":
                group, producer_id = first
                pending.setdefault(producer_id, {})[group] = second
            else:
                for group, value in pending.pop(first, {}).items():
                    if second:
                        found[group] = value
        return found


class Walk:
    """One broker, random steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = MemoryBroker(CONSUMER_OFFSETS)
        self.partition = self.broker.partition(0)
        self.model = Model()
        self.states: list[ToyState] = []
        settings = SETTINGS._replace(
            write_timeout_ms=1_000, max_waiting_count=20, load_buffer_bytes=300
        )
        self.runtime = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            self._make,
            lambda index, command: None,
            settings,
            self.broker.ports,
        )
        self.broker.attach(self.runtime)
        self.is_leader = False
        self.answered_end = 0
        self.success_count = 0
        self.open: dict[int, Any] = {}
        self.next_id = 0

    def _make(self, partition_index: int) -> ToyState:
        self.states.append(ToyState(partition_index))
        return self.states[-1]

    # -- answers ---------------------------------------------------------------------------------

    def ask(self, records: list[Any], entries: list[Any], producer: Producer | None) -> None:
        """Write and read in one operation; the answer is the state and the end it was read at."""
        self.next_id += 1
        number = self.next_id
        seen: list[tuple[dict[str, Any], int]] = []

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del self.open[number]  # a second answer is a KeyError
            if error is not ErrorCode.NONE:
                assert error in REFUSALS, error
                return CoordinatorResult()
            values, end = seen[0]
            assert end <= self.partition.high_watermark, "answered before it was committed"
            assert values == self.model.offsets(end)
            self.answered_end = max(self.answered_end, end)
            self.success_count += 1
            return CoordinatorResult()

        def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
            if not records:
                seen.append(({g: state.offsets.get(g) for g in GROUPS}, len(self.model.log)))
            return CoordinatorResult(records=records, producer=producer, after=after)

        self.open[number] = after
        before = self.partition.log_end_offset
        error = self.runtime.call(0, operation)
        if error is not ErrorCode.NONE:
            assert error in REFUSALS, error
            del self.open[number]
        elif self.partition.log_end_offset > before:
            self.model.log += entries
            state = self.states[-1]
            seen.append(({g: state.offsets.get(g) for g in GROUPS}, len(self.model.log)))
        assert len(self.model.log) == self.partition.log_end_offset

    # -- steps -----------------------------------------------------------------------------------

    def write(self) -> None:
        groups = self.random.sample(GROUPS, self.random.randint(1, 3))
        value = self.random.randrange(1_000)
        producer = None
        entries: list[Any] = [("plain", group, value) for group in groups]
        if self.random.random() < 0.4:
            producer = Producer(self.random.choice(PRODUCERS), 0)
            entries = [("transactional", (g, producer.producer_id), value) for g in groups]
        self.ask([commit_record(group, value) for group in groups], entries, producer)

    def read(self) -> None:
        self.ask([], [], None)

    def end_transaction(self) -> None:
        producer = Producer(self.random.choice(PRODUCERS), 0)
        is_commit = self.random.random() < 0.6
        before = self.partition.log_end_offset
        ends: list[int] = []
        outcomes: list[ErrorCode] = []

        def done(error: ErrorCode) -> None:
            outcomes.append(error)
            assert len(outcomes) == 1
            if error is ErrorCode.NONE:
                self.answered_end = max(self.answered_end, ends[0])

        # Committed at once in no run: the high watermark moves in steps of its own.
        self.runtime.complete_transaction(0, TransactionEnd(producer, is_commit, 0, 1), done)
        if self.partition.log_end_offset > before:
            self.model.log.append(("marker", producer.producer_id, is_commit))
            ends.append(len(self.model.log))

    def commit(self) -> None:
        if self.is_leader:
            self.partition.commit(self.random.choice(self.batch_ends()))

    def batch_ends(self) -> list[int]:
        """Offsets that followers may have reached: they fetch whole batches."""
        ends = [
            header.next_offset
            for batch in self.partition.batches
            for _, header in iter_batches(batch)
        ]
        committed = self.partition.high_watermark
        return [committed, *(end for end in ends if end > committed)]

    def lose(self) -> None:
        """The next leader has what is committed, and perhaps more, in whole batches."""
        keep = self.random.choice(self.batch_ends())
        self.broker.depose(0, keep=keep)
        self.is_leader = False
        end = self.partition.log_end_offset
        assert end >= self.answered_end, "somebody was told what the next leader does not have"
        del self.model.log[end:]

    def win(self) -> None:
        self.broker.is_loading_held = self.random.random() < 0.3
        self.broker.elect(0)
        self.is_leader = True

    def load(self) -> None:
        if self.broker.held and self.random.random() < 0.5:
            self.broker.step_load()
        else:
            self.broker.load_on()

    def fail_appends(self) -> None:
        errors = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE)
        self.partition.append_error = self.random.choice(errors)

    def time_passes(self) -> None:
        self.broker.advance(self.random.choice((10, 200, 1_500)))

    def run(self) -> None:
        steps = {
            self.write: 30,
            self.read: 25,
            self.commit: 20,
            self.end_transaction: 8,
            self.lose: 4,
            self.win: 6,
            self.load: 6,
            self.fail_appends: 3,
            self.time_passes: 5,
        }
        for step in self.random.choices([*steps], [*steps.values()], k=STEPS):
            step()
            for _, state in self.runtime.states():
                self._check(state)
        self.broker.load_on()
        self.lose()
        assert self.open == {}, "everybody has been answered"

    def _check(self, state: ToyState) -> None:
        """What is loaded has replayed exactly the log."""
        values = {group: state.offsets.get(group) for group in GROUPS}
        assert values == self.model.offsets(len(self.model.log))


@pytest.mark.parametrize("block", range(4))
def test_nothing_that_was_answered_is_ever_lost(block: int) -> None:
    success_count = 0
    for seed in range(block * 15, block * 15 + 15):
        walk = Walk(seed)
        try:
            walk.run()
        except BaseException:
            print(f"seed {seed}")
            raise
        success_count += walk.success_count
    assert success_count > 15 * STEPS // 20, "the walks did something"
