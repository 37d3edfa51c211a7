"""Tests are compiled once, and pytest takes what was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.kit.compiled import compile_tests


def test_only_what_has_changed_is_compiled(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    paths = [tmp_path / "test_a.py", tmp_path / "test_b.py"]
    for path in paths:
        path.write_text("def test_it():\n    assert 1 + 1 == 2\n")
    assert compile_tests(request.config, paths) == 2
    assert compile_tests(request.config, paths) == 0
    paths[0].write_text("def test_it():\n    assert 1 + 1 == 2, 'longer'\n")
    assert compile_tests(request.config, paths) == 1
    cache = rewrite.get_cache_dir(paths[1]) / f"test_b{rewrite.PYC_TAIL}"
    code = rewrite._read_pyc(paths[1], cache)
    assert code is not None
    assert "@pytest_ar" in code.co_names, "its assertions are rewritten"


def test_pytest_reads_what_was_compiled(pytestconfig: pytest.Config) -> None:
    """The place is pytest's own: this file's cache exists, if caches are written at all."""
    assert compile_tests(pytestconfig, [Path(__file__)]) <= 1
    assert compile_tests(pytestconfig, [Path(__file__)]) == 0
