"""A client that is measured alone and beside others: whose requests, and what the table says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks import beside
from benchmarks.beside import ALONE, HARMLESS, Limits, Round, requests, tell
from benchmarks.figures import Report
from benchmarks.stalls import Span

OTHER = "another"


def spans(*milliseconds: float) -> list[Span]:
    return [Span(0.0, each / 1_000) for each in milliseconds]


def told(rounds: Sequence[Round], limits: Limits) -> Report:
    report = Report("x")
    tell(report, rounds, None, "requests", "Requests", limits)
    return report


def test_requests_take_turns_and_each_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(beside, "PAUSE_S", 0.0)
    asked: list[str] = []
    found = requests([lambda: asked.append("a"), lambda: asked.append("b")], 5)
    assert asked == ["a", "b", "a", "b", "a"]
    assert len(found) == 5
    assert all(each.end_s >= each.begin_s for each in found)


def test_each_row_has_the_ratio_to_alone_and_to_the_control():
    rounds = [{ALONE: spans(1.0), HARMLESS: spans(2.0), OTHER: spans(3.0)}] * 2
    report = told(rounds, Limits(1.2, 2.5))
    [table] = report.tables
    rows = {row[0]: [cell.split(" / ")[1] for cell in row[2:]] for row in table.rows}
    assert rows[ALONE] == ["1.00", "1.00", "1.00", "1.00", "0.50"]
    assert rows[OTHER] == ["3.00", "3.00", "3.00", "3.00", "1.50"]
    limits = {target.asked: target.is_met for target in report.targets}
    assert limits == {
        f"p99 beside {HARMLESS} (all) ≤ 1.2 x undisturbed": False,
        f"p99 beside {OTHER} (all) ≤ 1.2 x undisturbed": False,
        f"p99 beside {OTHER} (all) ≤ 2.5 x the control's": True,
    }


def test_without_a_control_there_is_the_ratio_to_alone_only():
    report = told([{ALONE: spans(1.0, 5.0), OTHER: spans(2.0, 5.0)}], Limits(1.0))
    [table] = report.tables
    assert table.columns[-2:] == ("longest ms", "p99 / alone")
    assert [target.is_met for target in report.targets] == [True]
