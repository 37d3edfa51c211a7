"""A short `make demo`, and that its checker finds what it has to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo.story import run, show
from demo.story_check import check_delays, committed_files, judged
from demo.story_data import (
    Flight,
    audit_of,
    closing_flight,
    expected_delays,
    flights_by_hour,
    measures_in,
    transactions,
)
from tests.kit import judging

FLIGHTS = 16_000


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(400)
def test_flights_are_counted_exactly_once_whichever_process_is_killed(tmp_path: Path):
    result = run(flights_by_hour(FLIGHTS), tmp_path, seconds=16.0)
    show(result)
    assert result.driver_status == 0
    with judging():
        assert [each.what for each in result.verdicts if not each.is_good] == []
    assert {each.killed.split()[0] for each in result.recoveries} == {
        "Spark",
        "broker",
        "controller",
    }


def test_what_is_lost_doubled_or_wrong_is_found():
    expected = {1: "a", 2: "b", 3: "c"}
    assert judged("it", expected, [(1, "a"), (2, "b"), (3, "c")]).is_good
    verdict = judged("it", expected, [(1, "a"), (1, "a"), (2, "x"), (9, "y")])
    assert (verdict.lost_count, verdict.duplicated_count, verdict.wrong_count) == (1, 1, 2)
    assert (verdict.in_count, verdict.out_count, verdict.is_good) == (3, 4, False)
    assert not judged("it", expected, [(1, "a"), (2, "b")]).is_good


def flight(number: int, carrier: str, hour: str, late: int | None) -> Flight:
    value = {"n": number, "carrier": carrier, "dep_delay": late, "arr_delay": None}
    text = json.dumps({**value, "time_hour": hour})
    return Flight(number, carrier.encode(), text.encode())


def delay(carrier: str, hour: str, *measures: int | None) -> tuple[bytes, bytes]:
    names = ("flights", "departed", "departure_delay", "arrived", "arrival_delay")
    value = {"window_start": hour, "window_end": "", "carrier": carrier}
    value |= dict(zip(names, measures, strict=True))
    return carrier.encode(), json.dumps(value).encode()


def test_delays_are_compared_hour_by_hour():
    hour = "2013-01-01T10:00:00Z"
    sent = [flight(0, "UA", hour, 5), flight(1, "UA", hour, None), flight(2, "AA", hour, -3)]
    assert expected_delays(sent) == {
        ("UA", hour): (2, 1, 5, 0, None),
        ("AA", hour): (1, 1, -3, 0, None),
    }
    right = [
        delay("UA", "2013-01-01T10:00:00.000Z", 2, 1, 5, 0, None),
        delay("AA", "2013-01-01T10:00:00.000Z", 1, 1, -3, 0, None),
        delay("--", "2014-06-01T00:00:00.000Z", 1, 0, None, 0, None),
    ]
    assert measures_in(right[0][1]) == (("UA", hour), (2, 1, 5, 0, None))
    assert all(each.is_good for each in check_delays(right, sent))
    twice = check_delays([*right, right[0]], sent)
    assert [(each.duplicated_count, each.is_good) for each in twice] == [(1, False), (2, False)]
    wrong_key = check_delays([(b"XX", right[0][1]), *right[1:]], sent)
    assert wrong_key[0].wrong_count == 1


def test_transactions_say_what_they_hold():
    sent = [flight(number, "UA", "2013-01-01T10:00:00Z", 1) for number in range(4_500)]
    cut = list(transactions(sent))
    assert [len(flights) for _, flights in cut] == [2_000, 2_000, 500]
    key, value = audit_of(*cut[2])
    assert (key, json.loads(value)["flights"]) == (b"2", 500)
    assert audit_of(2, cut[1][1]) != (key, value)
    assert json.loads(closing_flight().value)["time_hour"] > "2014"


@pytest.mark.promise("pipeline-once")
def test_only_committed_files_count(tmp_path: Path):
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entry(name: str) -> str:
        return json.dumps({"path": f"file://{tmp_path}/{name}", "action": "add"})

    (log / "9.compact").write_text("\n".join(["v1", entry("a%20b"), entry("c")]))
    (log / "8").write_text("\n".join(["v1", entry("c")]))
    (log / "10").write_text("\n".join(["v1", entry("d")]))
    (log / "11").write_text("v1")
    (log / ".11.crc").write_text("")
    assert [path.name for path in committed_files(tmp_path)] == ["a b", "c", "d"]
