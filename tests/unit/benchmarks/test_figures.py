"""Spreads, tables and the generated part of the document."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import Report, Spread, Table, at_least, at_most
from benchmarks.run import BEGIN, BENCHMARKS, DOCUMENT, END, ON_DEMAND, load, summary, write


def test_a_ratio_is_taken_round_by_round():
    ours = Spread.of([1.0, 4.0, 9.0])
    peer = Spread.of([2.0, 2.0, 3.0])
    assert ours.per(peer).values == (0.5, 2.0, 3.0)
    assert ours.per(peer).text() == "0.50 / 2.00 / 3.00"
    with pytest.raises(ValueError, match="shorter"):
        ours.per(Spread.of([1.0]))


def test_the_median_decides_about_a_target():
    spread = Spread.of([1.0, 5.0, 9.0])
    assert at_least("x", spread, 5.0).is_met
    assert not at_least("x", spread, 5.1).is_met
    assert at_most("x", spread, 5.0).is_met
    assert not at_most("x", spread, 4.9).is_met


def test_a_table_refuses_a_row_of_another_width():
    table = Table(("a", "b"))
    table.add("1", "2")
    assert table.markdown() == "| a | b |\n|---|---|\n| 1 | 2 |"
    with pytest.raises(AssertionError):
        table.add("1")


def test_writing_replaces_only_the_generated_part(tmp_path: Path):
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report = Report("Something", targets=[at_most("asked", Spread.of([1.0]), 2.0)])
    write(document, summary([report], [("machine", "this one")]))
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| asked | 1.00 / 1.00 / 1.00 | yes |" in text
    assert "old" not in text


def test_the_document_has_a_place_for_figures():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert 0 < text.index(BEGIN) < text.index(END)


def test_every_benchmark_on_the_list_can_be_loaded():
    assert all(callable(load(name)) for name in BENCHMARKS | ON_DEMAND)
