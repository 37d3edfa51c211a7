"""The kind of a test: gate, real or long, and which real ones are the smoke of `make test`.

Owns: the one table. Must not: run anything. Invariant: every test is of exactly one kind. A mark
`real` or `long` at the test, its class or its module says so, else the longest row above its file
or function, else it is of the gate. A test that runs on the virtual machine as well as on real
loops (the mark `virtual_too`) is of the gate there, and one with that mark that needs no loop.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ON_VIRTUAL = "virtual"
"""The name that a test's turn on the virtual machine has in its parameters."""


class Kind(StrEnum):
    """How a failure is judged."""

    GATE = "gate"
    """Logic, on virtual time: red at once, on the slowest machine too."""
    REAL = "real"
    """Processes, sockets, clients of others: what fails is run again, alone."""
    LONG = "long"
    """For `make long`: minutes of load, of random seeds, of Spark."""


KINDS = {
    "client": Kind.REAL,
    "console": Kind.REAL,
    "deploy/test_image.py": Kind.LONG,
    "deploy/test_running.py": Kind.REAL,
    "interop": Kind.REAL,
    "interop/confluent/test_ownership.py": Kind.GATE,
    "interop/differential/test_comparing.py": Kind.GATE,
    "spark": Kind.REAL,
    "system": Kind.REAL,
    "system/client/test_exactly_once.py": Kind.GATE,
    "system/replication/test_checker.py": Kind.GATE,
    "system/topics/test_account.py": Kind.GATE,
    "system/transactions/test_checker.py": Kind.GATE,
    "system/transactions/test_checker_random.py": Kind.GATE,
}
"""What these folders and files have; the checkers of real runs are logic."""

SMOKE = (
    "interop/aiokafka/test_produce_consume.py::test_every_acks_level",
    "interop/aiokafka/test_transactions.py::test_commit_and_abort",
    "interop/confluent/test_produce_consume.py::test_every_acks_level",
    "interop/java/test_cluster_tools.py::test_console_producer_and_consumer",
    "interop/java/test_cluster_tools.py::test_kafka_topics",
    "interop/kafka_python/test_produce_consume.py::test_every_acks_level",
    "interop/kcat/test_kcat.py::test_every_codec",
    "spark/source/test_batch.py::test_every_record_is_a_row",
    "system/client/test_sync.py",
    "system/embedding/test_pytest_plugin.py::test_a_topic_of_its_own",
    "system/groups/test_consumer_protocol.py",
    "system/http/test_listener.py",
    "system/test_start_up.py",
    "unit/kit/test_rerun.py",
)
"""One node, each client and tool once, one batch of Spark, and the judge of runs itself."""


def kind_of(item: pytest.Item) -> Kind:
    """The kind of a collected test."""
    call = getattr(item, "callspec", None)
    if call is not None and ON_VIRTUAL in call.id.split("-"):
        return Kind.GATE
    if is_virtual_too(item) and not iscoroutinefunction(getattr(item, "function", None)):
        return Kind.GATE
    for kind in (Kind.LONG, Kind.REAL):
        if item.get_closest_marker(kind) is not None:
            return kind
    return kind_at(place_of(item))


def is_virtual_too(item: pytest.Item) -> bool:
    """Whether a real test runs on the virtual machine as well: a module's mark, which holds not for
    those that are marked `virtual_too(False)`.
    """
    mark = item.get_closest_marker("virtual_too")
    return mark is not None and mark.args != (False,)


def kind_at(place: str) -> Kind:
    """What the table says of `folder/test_file.py::test`, below tests/."""
    row = _row_above(place, tuple(KINDS))
    return Kind.GATE if row is None else KINDS[row]


def is_smoke(place: str) -> bool:
    """It is in the list."""
    return _row_above(place, SMOKE) is not None


def place_of(item: pytest.Item) -> str:
    """Where a test is, below tests/; its whole path if it is elsewhere."""
    return f"{_file_of(item.path)}::{item.nodeid.partition('::')[2]}"


@cache
def _file_of(path: Path) -> str:
    return (path.relative_to(TESTS) if path.is_relative_to(TESTS) else path).as_posix()


def _row_above(place: str, rows: tuple[str, ...]) -> str | None:
    """The longest row that names the place or something above it."""
    path, _, names = place.partition("::")
    of_file, of_functions = _rows_of(path, rows)
    if of_functions:
        parts = names.partition("[")[0].split("::")
        above = {place, *("::".join((path, *parts[: count + 1])) for count in range(len(parts)))}
        found = [row for row in of_functions if row in above]
        if found:
            return max(found, key=len)
    return of_file


@cache
def _rows_of(path: str, rows: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The longest row that names the file or a folder above it; those within the file."""
    above = {path, *(str(parent) for parent in Path(path).parents)}
    return (
        max((row for row in rows if row in above), key=len, default=None),
        tuple(row for row in rows if row.startswith(path + "::")),
    )
