"""Compiles once for all workers: in a new clone each of them would compile every test by itself.

Owns the caches that pytest and Python keep beside the files. Must not import what it compiles.
Invariant: a cache that is up to date is left alone.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key

TESTS = Path(__file__).parent.parent
IMPORTED = ("moldau", "tests")
"""Folders of the repository whose modules all workers import."""


def pytest_configure(config: pytest.Config) -> None:
    """Before xdist starts its workers."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or sys.dont_write_bytecode or config.getoption("dist", "no") == "no":
        return
    for folder in IMPORTED:
        compileall.compile_dir(TESTS.parent / folder, quiet=2)
    compile_tests(config, (*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")))


def compile_tests(config: pytest.Config, paths: Iterable[Path]) -> int:
    """Compile files whose assertions pytest rewrites, as it would; how many it took."""
    count = 0
    for path in paths:
        folder = rewrite.get_cache_dir(path)
        cache = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, cache) is None and rewrite.try_makedirs(folder):
            status, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[assertstate_key], code, status, cache)
            count += 1
    return count
