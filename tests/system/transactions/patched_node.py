"""`python -m tests.system.transactions.patched_node CONFIG …`: a broker with a planted bug.

Owns the bugs; which one is in the environment variable PLANT_VARIABLE. Must not: be started by
anything but the tests that look for what it does. Invariant: it is the product's own node, through
its own main, but for one function.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from moldau.broker.__main__ import main
from moldau.broker.coordinator.core.result import TransactionEnd
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.migration import Migration
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.broker.replica.partition import Partition
from moldau.storage.log import Log

PLANT_VARIABLE: Final = "MOLDAU_TEST_PLANT"
COMMAND: Final = (sys.executable, "-m", "tests.system.transactions.patched_node")


def _name_no_aborted_ones() -> None:
    Log.aborted_transactions = lambda *_: []  # type: ignore[method-assign, assignment]


def _show_all_that_is_replicated() -> None:
    Log.last_stable_offset = property(lambda log: log.high_watermark)  # type: ignore[method-assign, assignment]


def _abort_in_one_partition() -> None:
    append: Callable[..., Any] = Partition.append_marker

    def append_marker(partition: Partition, *arguments: Any, is_commit: bool, **more: Any) -> Any:
        where = partition.topic_partition
        is_hit = where.partition == 0 and not where.topic.startswith("__")
        return append(partition, *arguments, is_commit=is_commit and not is_hit, **more)

    Partition.append_marker = append_marker  # type: ignore[method-assign, assignment]


def _abort_offsets() -> None:
    complete: Callable[..., Any] = CoordinatorRuntime.complete_transaction

    def complete_transaction(
        runtime: CoordinatorRuntime[Any], partition_index: int, end: TransactionEnd, done: Any
    ) -> Any:
        return complete(runtime, partition_index, end._replace(is_commit=False), done)

    CoordinatorRuntime.complete_transaction = complete_transaction  # type: ignore[method-assign]


def _forget_what_is_read() -> None:
    """A group that changes to KIP-848 in a rebalance takes its members for owners of nothing."""
    upgraded: Callable[..., Any] = Migration._upgraded

    def forgetful(migration: Migration, classic_group: ClassicGroup) -> Any:
        members = upgraded(migration, classic_group)
        if classic_group.state is ClassicGroupState.STABLE:
            return members
        return [replace(member, assigned={}) for member in members]

    Migration._upgraded = forgetful  # type: ignore[method-assign]


PLANTS: Final[dict[str, Callable[[], None]]] = {
    "aborted-ones-not-named": _name_no_aborted_ones,
    "stable-offset-is-high-watermark": _show_all_that_is_replicated,
    "marker-of-one-partition-aborts": _abort_in_one_partition,
    "group-markers-abort": _abort_offsets,
    "upgrade-forgets-what-is-read": _forget_what_is_read,
}


if __name__ == "__main__":
    PLANTS[os.environ[PLANT_VARIABLE]]()
    sys.exit(main())
