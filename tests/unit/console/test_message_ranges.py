"""The choice of the oldest and the newest records, page by page."""

from __future__ import annotations

import base64
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.console.own.message_ranges import (
    NEWEST,
    OLDEST,
    Newest,
    Oldest,
    Part,
    cursor_of,
    opened,
)
from moldau.console.problems import Problem

Log = dict[int, list[tuple[int, bool]]]
"""Each partition's records: their times, and whether they are wanted."""
Place = tuple[int, int]

LOGS: st.SearchStrategy[Log] = st.dictionaries(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=12),
    min_size=1,
)


def wanted_of(log: Log) -> set[Place]:
    return {
        (partition, offset)
        for partition, records in log.items()
        for offset, (_, is_wanted) in enumerate(records)
        if is_wanted
    }


def offer(chooser: Oldest | Newest, log: Log, partition: int, offset: int) -> bool | None:
    time_ms, is_wanted = log[partition][offset]
    make = (lambda: (partition, offset)) if is_wanted else None
    return chooser.see(partition, offset, time_ms, make)


def oldest_page(
    log: Log, parts: dict[int, Part], limit: int, most: int
) -> tuple[list[Place], bool]:
    """One page, for which `most` records are read; whether these sufficed."""
    chooser, has_more = Oldest(limit), True
    while has_more and most > 0:
        has_more = False
        for partition, part in parts.items():
            if part.at < part.end and partition not in chooser.ceilings:
                offset, has_more, most = part.at, True, most - 1
                part.at += 1
                offer(chooser, log, partition, offset)
    for partition, part in parts.items():
        chooser.close(partition, part)
    return chooser.chosen(), not has_more


def newest_page(
    log: Log, parts: dict[int, Part], limit: int, most: int, width: int
) -> tuple[list[Place], bool]:
    chooser = Newest(limit)
    left = [each for each, part in parts.items() if not part.is_read]
    is_within = True
    while left and is_within:
        for each in left:
            parts[each].step_back(width)
        chooser.begin_ranges()
        for each in left:
            part = parts[each]
            while part.at < part.end and most > 0:
                part.at, most = part.at + 1, most - 1
                offer(chooser, log, each, part.at - 1)
            is_within = is_within and part.at >= part.end
        left = [each for each in left if chooser.needs(each, parts[each])]
    for partition, part in parts.items():
        chooser.close(partition, part)
    return chooser.chosen(), is_within


@given(LOGS, st.integers(1, 5), st.integers(1, 100))
def test_oldest_pages_have_each_record_once(log: Log, limit: int, most: int) -> None:
    parts = {each: Part(0, 0, 0, len(records)) for each, records in log.items()}
    found: list[Place] = []
    starts = dict.fromkeys(log, 0)
    for _ in range(1_000):
        page, _ = oldest_page(log, parts, limit, most)
        assert len(page) <= limit
        found += page
        cursor = cursor_of(OLDEST, parts)
        if cursor is None:
            break
        parts = opened(cursor, OLDEST, log, starts)
    assert len(found) == len(set(found))
    assert set(found) == wanted_of(log)


@given(LOGS, st.integers(1, 5), st.integers(1, 100), st.integers(1, 6))
def test_newest_pages_have_each_record_once(log: Log, limit: int, most: int, width: int) -> None:
    parts = {each: Part(0, *[len(records)] * 3) for each, records in log.items()}
    found: list[Place] = []
    starts = dict.fromkeys(log, 0)
    for _ in range(1_000):
        page, _ = newest_page(log, parts, limit, most, width)
        assert len(page) <= limit
        found += page
        cursor = cursor_of(NEWEST, parts)
        if cursor is None:
            break
        parts = opened(cursor, NEWEST, log, starts)
    assert len(found) == len(set(found))
    assert set(found) == wanted_of(log)


def in_time(log: Log) -> Log:
    """The same with times that never go back within a partition."""
    return {each: sorted(records, key=lambda found: found[0]) for each, records in log.items()}


@given(LOGS.map(in_time), st.integers(1, 8))
def test_oldest_page_is_that_of_the_whole_topic(log: Log, limit: int) -> None:
    parts = {each: Part(0, 0, 0, len(records)) for each, records in log.items()}
    page, _ = oldest_page(log, parts, limit, 10_000)
    times = [log[partition][offset][0] for partition, offset in page]
    everything = sorted(log[each][offset][0] for each, offset in wanted_of(log))
    assert times == everything[:limit]


@given(LOGS.map(in_time), st.integers(1, 8), st.integers(1, 6))
def test_newest_page_is_that_of_the_whole_topic(log: Log, limit: int, width: int) -> None:
    parts = {each: Part(0, *[len(records)] * 3) for each, records in log.items()}
    page, _ = newest_page(log, parts, limit, 10_000, width)
    times = [log[partition][offset][0] for partition, offset in page]
    everything = sorted((log[each][offset][0] for each, offset in wanted_of(log)), reverse=True)
    assert times == everything[:limit]


def test_newest_page_reads_no_more_than_it_needs() -> None:
    log = {0: [(time, True) for time in range(1_000)], 1: [(0, True)] * 1_000}
    parts = {each: Part(0, 1_000, 1_000, 1_000) for each in log}
    page, _ = newest_page(log, parts, 4, 40, 20)
    assert page == [(0, 999), (0, 998), (0, 997), (0, 996)]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!",
        base64.urlsafe_b64encode(b"[]").decode(),
        base64.urlsafe_b64encode(zlib.compress(b"{}")).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["newest", [[0, 1]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", [[7, 1]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", [[0, -1]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", [[0, 1, 2]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", [[0, True]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", [["0", 1]]]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(["oldest", 3]))).decode(),
        base64.urlsafe_b64encode(zlib.compress(b" " * 10_000_000)).decode(),
    ],
)
def test_text_that_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(Problem) as raised:
        opened(cursor, OLDEST, [0, 1], {0: 0, 1: 0})
    assert raised.value.status == 422


def test_cursor_begins_where_the_log_begins_now() -> None:
    cursor = cursor_of(OLDEST, {0: Part(0, 0, 5, 20)})
    assert cursor is not None
    assert opened(cursor, OLDEST, [0], {0: 9}) == {0: Part(9, 9, 9, 20)}


def test_cursor_too_long_for_an_address_is_left_out() -> None:
    parts = {each: Part(0, 0, each * 7_919_113 % 2**31, 2**40 + each**3) for each in range(1_000)}
    assert cursor_of(OLDEST, parts) is None
    assert cursor_of(OLDEST, dict([*parts.items()][:100])) is not None
