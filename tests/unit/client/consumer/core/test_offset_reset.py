"""`auto.offset.reset`: what ListOffsets is asked for, and how the setting's words are read."""

from __future__ import annotations

import pytest

from moldau.client.consumer.core.partition_state import (
    EARLIEST,
    LATEST,
    NONE,
    OffsetReset,
    ResetKind,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("none", NONE),
        ("by_duration:PT1H", OffsetReset(ResetKind.BY_DURATION, 3_600_000)),
        ("by_duration:P1DT0.5S", OffsetReset(ResetKind.BY_DURATION, 86_400_500)),
    ],
)
def test_words(text: str, expected: OffsetReset) -> None:
    assert OffsetReset.of(text) == expected


def test_timestamps_to_ask_for() -> None:
    assert EARLIEST.timestamp_ms(1_000) == -2
    assert LATEST.timestamp_ms(1_000) == -1
    assert OffsetReset.of("by_duration:PT0.4S").timestamp_ms(1_000) == 600
    assert OffsetReset.of("by_duration:PT4S").timestamp_ms(1_000) == 0
