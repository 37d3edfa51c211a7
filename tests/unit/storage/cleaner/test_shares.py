"""What one of several cleaners gets of the node's memory and disk."""

from __future__ import annotations

import sys

from moldau.storage.log_config import MIN_MAP_BYTES, CleanerSettings

MIB = 1024 * 1024


def test_one_cleaner_has_the_whole_table_and_half_the_buffer_for_reads() -> None:
    settings = CleanerSettings(dedupe_buffer_bytes=8 * MIB, io_buffer_bytes=MIB)
    assert (settings.map_bytes, settings.io_bytes) == (8 * MIB, MIB // 2)
    assert settings.max_bytes_per_second == sys.float_info.max


def test_several_cleaners_share() -> None:
    settings = CleanerSettings(
        thread_count=4,
        dedupe_buffer_bytes=8 * MIB,
        io_buffer_bytes=MIB,
        io_max_bytes_per_second=100.0,
    )
    assert (settings.map_bytes, settings.io_bytes) == (2 * MIB, MIB // 8)
    assert settings.max_bytes_per_second == 25.0


def test_no_share_is_too_small_to_work_with() -> None:
    settings = CleanerSettings(thread_count=64, dedupe_buffer_bytes=64, io_buffer_bytes=64)
    assert (settings.map_bytes, settings.io_bytes) == (MIN_MAP_BYTES, 4096)
