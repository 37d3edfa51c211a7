"""What retention deletes, against Apache Kafka's three rules applied one after the other."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from moldau.storage.log_config import LogConfig
from tests.kit.dice import drawn_seed
from tests.storage.log_fixtures import START_MS, LogBench, append


@dataclass
class Segment:
    """What the rules look at."""

    end_offset: int
    size_bytes: int
    largest_ms: int


def kept(
    segments: list[Segment], config: LogConfig, now_ms: int, high_watermark: int, start_offset: int
) -> list[Segment]:
    """Oldest first, segments go by time, then by size, then below the log's start, until no rule
    takes any more. Source: UnifiedLog.deleteOldSegments.
    """
    while True:
        by_time = _oldest(
            segments,
            high_watermark,
            lambda each: 0 <= config.retention_ms < now_ms - each.largest_ms,
        )
        left = segments[by_time if config.deletes else 0 :]
        if config.deletes and config.retention_bytes >= 0:
            excess_bytes = sum(each.size_bytes for each in left) - config.retention_bytes
            by_size = 0
            for each in left:
                if each.end_offset > high_watermark or excess_bytes < each.size_bytes:
                    break
                excess_bytes -= each.size_bytes
                by_size += 1
            left = left[by_size:]
        below = _oldest(left[:-1], high_watermark, lambda each: each.end_offset <= start_offset)
        left = left[below:]
        if len(left) == len(segments):
            return left
        segments = left


def _oldest(segments, high_watermark, is_over):  # type: ignore[no-untyped-def]
    count = 0
    for each in segments:
        if each.end_offset > high_watermark or not is_over(each):
            break
        count += 1
    return count


@pytest.mark.parametrize("number", range(60))
def test_retention_takes_what_kafkas_rules_take(number: int) -> None:
    rng = random.Random(drawn_seed(number))
    bench = LogBench(config=LogConfig(segment_bytes=400, index_interval_bytes=200))
    log = bench.open()
    for _ in range(rng.randint(1, 12)):
        value = "v" * rng.randint(10, 150)
        append(log, value, timestamp_ms=START_MS + rng.randint(-5, 5))
    segments = [
        Segment(log.end_offset_of(index), each.size_bytes, each.max_timestamp()[0])
        for index, each in enumerate(log.segments)
    ]
    chosen = rng.choice(segments)
    bytes_behind = log.size_bytes - sum(
        each.size_bytes for each in segments if each.end_offset <= chosen.end_offset
    )
    config = LogConfig(
        segment_bytes=400,
        index_interval_bytes=200,
        cleanup_policy=rng.choice([("delete",), ("delete",), ("compact",), ("compact", "delete")]),
        retention_ms=rng.choice([-1, 0, 1, 1000]),
        retention_bytes=rng.choice([-1, max(bytes_behind + rng.choice((-1, 0, 1)), 0)]),
    )
    log.update_config(config)
    now_ms = chosen.largest_ms + max(config.retention_ms, 0) + rng.choice((0, 1))
    edge = rng.choice(segments).end_offset
    log.update_high_watermark(rng.choice([edge, edge, edge - 1, log.log_end_offset]))
    start_offset = min(rng.choice(segments).end_offset - rng.choice((0, 1)), log.high_watermark)
    if rng.random() < 0.5:
        log.log_start_offset = start_offset
    expected = kept(segments, config, now_ms, log.high_watermark, log.log_start_offset)
    end_offset, begins_at = log.log_end_offset, log.log_start_offset
    count = log.apply_retention(now_ms)
    assert count == len(segments) - len(expected)
    assert [log.end_offset_of(index) for index in range(len(log.segments))] == [
        each.end_offset for each in expected
    ] or (not expected and log.segments[0].base_offset == end_offset)
    gone = [each.end_offset for each in segments[:count]]
    assert log.log_start_offset == max([begins_at, *gone])
    assert log.apply_retention(now_ms) == 0
    log.close()
