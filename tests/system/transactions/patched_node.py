"""`python -m tests.system.transactions.patched_node CONFIG …`: a broker with an injected bug.

Owns the bugs; which one is in the environment variable BUG_VARIABLE. Must not: be started by
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
from tests.kit.injected_bugs import InjectedBug, Patch, table

BUG_VARIABLE: Final = "MOLDAU_TEST_BUG"
COMMAND: Final = (sys.executable, "-m", "tests.system.transactions.patched_node")


def aborted_ones_not_named(patch: Patch) -> None:
    patch.setattr(Log, "aborted_transactions", lambda *_: [])


def stable_offset_is_high_watermark(patch: Patch) -> None:
    patch.setattr(Log, "last_stable_offset", property(lambda log: log.high_watermark))


def marker_of_one_partition_aborts(patch: Patch) -> None:
    append: Callable[..., Any] = Partition.append_marker

    def append_marker(partition: Partition, *arguments: Any, is_commit: bool, **more: Any) -> Any:
        where = partition.topic_partition
        is_hit = where.partition == 0 and not where.topic.startswith("__")
        return append(partition, *arguments, is_commit=is_commit and not is_hit, **more)

    patch.setattr(Partition, "append_marker", append_marker)


def group_markers_abort(patch: Patch) -> None:
    complete: Callable[..., Any] = CoordinatorRuntime.complete_transaction

    def complete_transaction(
        runtime: CoordinatorRuntime[Any], partition_index: int, end: TransactionEnd, done: Any
    ) -> Any:
        return complete(runtime, partition_index, end._replace(is_commit=False), done)

    patch.setattr(CoordinatorRuntime, "complete_transaction", complete_transaction)


def upgrade_forgets_what_is_read(patch: Patch) -> None:
    """A group that changes to KIP-848 in a rebalance takes its members for owners of nothing."""
    upgraded: Callable[..., Any] = Migration._upgraded

    def forgetful(migration: Migration, classic_group: ClassicGroup) -> Any:
        members = upgraded(migration, classic_group)
        if classic_group.state is ClassicGroupState.STABLE:
            return members
        return [replace(member, assigned={}) for member in members]

    patch.setattr(Migration, "_upgraded", forgetful)


BUGS: Final = table(
    InjectedBug(aborted_ones_not_named),
    InjectedBug(stable_offset_is_high_watermark),
    InjectedBug(marker_of_one_partition_aborts),
    InjectedBug(group_markers_abort),
    InjectedBug(upgrade_forgets_what_is_read),
)

if __name__ == "__main__":
    BUGS[os.environ[BUG_VARIABLE]].inject_for_good()
    sys.exit(main())
