"""Marks by folder (`interop`, `java`, `spark`, `system`), so that `-m "not java"` works everywhere,
and by kind (`gate`, `real`, `long`, `smoke`: tests/kit/kinds.py); in which order parallel workers
take files; how hypothesis searches; and loggers as they are by default.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.kit.kinds import Kind, is_smoke, kind_of, place_of
from tests.kit.waiting import patience

pytest_plugins = (
    "tests.kit.absent",
    "tests.kit.compiled",
    "tests.kit.guard",
    "tests.kit.hypothesis_profiles",
    "tests.kit.own_records",
    "tests.kit.rerun",
)

# A job in the background is born deaf to Ctrl-C, and its children with it: tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The developer's own profile and cluster are not used.
os.environ["MOLDAU_CONFIG_HOME"] = os.devnull
for name in ("MOLDAU_PROFILE", "MOLDAU_BOOTSTRAP_SERVER", "MOLDAU_SCHEMA_REGISTRY"):
    os.environ.pop(name, None)

# Java machines of Spark live for seconds: compiling to the utmost would take most of their time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

HERE = Path(__file__).parent
LONGEST_FIRST = (
    "spark",
    "simulation/transactions",
    "simulation/test_injected_bugs.py",
    "simulation/replication/test_replication.py",
    "interop/replication/test_directories.py",
    "simulation/test_quorum.py",
    "system/cli/test_replicas.py",
    "system/transactions",
    "interop/replication",
    "system/replication",
    "simulation",
    "system/quorum",
    "system",
    "interop",
)
"""Begun last, one of these would leave the other workers idle until it ends."""

ONE_WORKER = ("tests/spark", "tests/tidy")
"""Folders whose files share what is costly to make."""

DEAF_S = 120.0
"""Longer than that behind its time limit no test is still being ended."""

GATE_LIMIT_S = 900.0
"""A test of the gate has at least that: the limit ends what hangs, and a machine that gives a test
an eighth of a processor turns no run red.
"""

MARKS = {"interop": "interop", "interop/java": "java", "spark": "spark", "system": "system"}


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """What collecting makes stays to the end: sixteen thousand tests in each worker. The garbage
    collector must not look at it over and over, nor count it: a full collection waits until a
    quarter as much is new, and what tests leave, files of simulated disks too, lies until then.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.collect()  # resets the collector's counts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test below a folder of the table carries the folder's mark, and that of its kind; a
    worker of several begins with the longest files.
    """
    factor = patience()
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.path))  # stable: the order within a file stays
    for item in items:
        marks = _folder_marks(item.path)
        if marks is None:
            continue
        for mark in marks:
            item.add_marker(mark)
        item.add_marker(str(kind_of(item)))
        limit_s = _limit_s(item) * factor
        if kind_of(item) is Kind.GATE:
            limit_s = max(limit_s, GATE_LIMIT_S)
        if limit_s != _limit_s(item):
            item.add_marker(pytest.mark.timeout(limit_s), append=False)
        if is_smoke(place_of(item)):
            item.add_marker("smoke")


@cache
def _folder_marks(path: Path) -> tuple[str, ...] | None:
    """None: the file is not one of ours."""
    if not path.is_relative_to(HERE):
        return None
    folder = path.parent.relative_to(HERE).as_posix()
    return tuple(
        mark
        for prefix, mark in MARKS.items()
        if folder == prefix or folder.startswith(prefix + "/")
    )


@pytest.fixture(autouse=True)
def heard_loggers() -> None:
    """Our loggers at their defaults, whatever an earlier test in the same process has silenced."""
    logging.disable(logging.NOTSET)
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if name.partition(".")[0] == "moldau" and isinstance(logger, logging.Logger):
            logger.disabled = False
            if logger.level != logging.NOTSET:
                logger.setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test's time limit is a signal, which Python looks at between two of its own steps. A call
    into librdkafka that never returns, in the last test's end too, ends the worker here, with the
    stacks of its threads.
    """
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(_limit_s(item) + DEAF_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit_s(item: pytest.Item) -> float:
    """What the test says itself, or the configuration."""
    marker = item.get_closest_marker("timeout")
    return float(item.config.getini("timeout") if marker is None else marker.args[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """File by file; but all files with Spark to one worker. Each other would start its own Java
    machine, and Spark gives its Python processes ten seconds to begin, however busy it is here. All
    tidy tests to one as well: each other would parse every file of the repository once more.
    """
    from xdist.scheduler import LoadFileScheduling

    class FilesAndFolders(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((each for each in ONE_WORKER if scope.startswith(each + "/")), scope)

    return FilesAndFolders(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def _turn(path: Path) -> int:
    if not path.is_relative_to(HERE):
        return len(LONGEST_FIRST)
    name = path.relative_to(HERE).as_posix()
    places = (
        place
        for place, prefix in enumerate(LONGEST_FIRST)
        if name == prefix or name.startswith(prefix + "/")
    )
    return next(places, len(LONGEST_FIRST))
