"""Marks by folder: `interop`, `java` and `system`, so that `-m "not java"` works everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARKS = {"interop": "interop", "interop/java": "java", "system": "system"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test below a folder of the table carries the folder's mark."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        folder = item.path.parent.relative_to(HERE).as_posix()
        for prefix, mark in MARKS.items():
            if folder == prefix or folder.startswith(prefix + "/"):
                item.add_marker(getattr(pytest.mark, mark))
