"""What a log knows of its producers is what its batches say, whatever happened to the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moldau.storage.producer_entry import NO_OFFSET
from moldau.storage.producer_state import ProducerState, SnapshotEntry
from tests.kit.dice import drawn_seed
from tests.storage.producer_model import History

SEED = 20_261
HISTORIES = 120
STEPS = 60

Inject = Callable[[pytest.MonkeyPatch], None]


def run_histories(first_seed: int, count: int) -> set[str]:
    """Returns the kinds of steps there were. Raises: AssertionError, with what replays it."""
    kinds: set[str] = set()
    for seed in range(first_seed, first_seed + count):
        history = History(seed)
        asyncio.run(history.run(STEPS))
        kinds.update(history.steps)
    return kinds


def test_random_histories() -> None:
    kinds = run_histories(drawn_seed(SEED), HISTORIES)
    assert {"cut", "close_and_open", "kill_and_open", "start_elsewhere", "delete_records"} < kinds


def test_the_same_seed_is_the_same_history() -> None:
    first, second = History(SEED), History(SEED)
    asyncio.run(first.run(STEPS))
    asyncio.run(second.run(STEPS))
    assert first.model.batches == second.model.batches
    assert first.steps == second.steps


def newest_snapshot_skips_those_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left where they are, and tell of cut-off batches once the log has grown again."""
    load_newest = ProducerState.load_newest

    def load(self: ProducerState, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        beyond = [each for each in self.snapshot_offsets if each > log_end_offset]
        self.snapshot_offsets = [each for each in self.snapshot_offsets if each not in beyond]
        load_newest(self, first_offset, log_end_offset, now_ms)
        self.snapshot_offsets += beyond

    monkeypatch.setattr(ProducerState, "load_newest", load)


def nothing_is_loaded_after_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers stay as they were before it."""
    load = ProducerState.load

    def load_first(self: ProducerState, *arguments: Any) -> None:
        if not self.producers:
            load(self, *arguments)

    monkeypatch.setattr(ProducerState, "load", load_first)


def snapshots_stay_when_a_log_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a clean stop took may lie just where the log begins then."""
    drop = ProducerState.drop_snapshots_above

    def drop_some(self: ProducerState, offset: int) -> None:
        if offset != NO_OFFSET:
            drop(self, offset)

    monkeypatch.setattr(ProducerState, "drop_snapshots_above", drop_some)


def snapshots_forget(field: str) -> Inject:
    """One field is not in the snapshot."""

    def inject(monkeypatch: pytest.MonkeyPatch) -> None:
        restore = ProducerState._restore

        def without(self: ProducerState, entries: list[SnapshotEntry], now_ms: int) -> None:
            restore(self, [each._replace(**{field: -1}) for each in entries], now_ms)

        monkeypatch.setattr(ProducerState, "_restore", without)

    inject.__name__ = f"snapshots_forget_{field}"
    return inject


@pytest.mark.parametrize(
    "inject",
    [
        newest_snapshot_skips_those_beyond_the_end,
        nothing_is_loaded_after_a_cut,
        snapshots_stay_when_a_log_begins_elsewhere,
        snapshots_forget("coordinator_epoch"),
        snapshots_forget("current_txn_first_offset"),
        snapshots_forget("producer_epoch"),
        snapshots_forget("last_timestamp_ms"),
        snapshots_forget("last_sequence"),
    ],
    ids=lambda inject: inject.__name__,
)
def test_an_injected_bug_is_found(inject: Inject, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+, step \d+ of .*") as found:
        run_histories(SEED, HISTORIES)
    print(found.value)
