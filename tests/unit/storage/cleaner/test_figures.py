"""The cleaners' metrics."""

from __future__ import annotations

from moldau.storage.cleaner.job import CleaningStats
from moldau.storage.cleaner.log_cleaner import CleanerFigures
from tests.kit.manual_clock import ManualClock


def test_before_the_first_cleaning_all_figures_are_zero() -> None:
    assert set(CleanerFigures(ManualClock()).values().values()) == {0.0}


def test_the_last_cleaning_and_the_last_look() -> None:
    clock = ManualClock()
    figures = CleanerFigures(clock)
    clock.advance(400)
    figures.looked(0.756, 65_999)
    figures.cleaned(CleaningStats(bytes_read=200, bytes_written=51), 3_999.0)
    clock.advance(70)
    assert list(figures.values().values()) == [0.0, 25.0, 3.0, 65.0, 0.0, 75.0, 70.0]
    full = CleaningStats(key_count=3, slot_count=4)
    figures.looked(0.0, 6_000)
    figures.cleaned(full, 0.0)
    assert list(figures.values().values())[:4] == [75.0, 0.0, 0.0, 6.0]
    figures.cleaned(CleaningStats(), 0.0)
    assert figures.recopy_ratio == 0.0


def test_a_table_that_is_full_is_used_to_a_hundred_percent() -> None:
    figures = CleanerFigures(ManualClock())
    figures.cleaned(CleaningStats(key_count=4, slot_count=4), 0.0)
    assert next(iter(figures.values().values())) == 100.0
