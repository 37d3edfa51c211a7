"""A new user's mistakes are answered by one clear line each."""

from __future__ import annotations

from pathlib import Path

from tests.system.cli.mistakes import MISTAKES, play_all


def test_each_mistake_is_answered_by_one_line_that_names_it(tmp_path: Path):
    assert len(MISTAKES) >= 30
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    table, problems = play_all(tmp_path)
    print(table)
    assert problems == []
