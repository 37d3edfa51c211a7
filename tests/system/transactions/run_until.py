"""A short run of the workload on a cluster without faults, for tests with injected bugs.

Owns the run: until every client that matters has done enough. Must not: judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.waiting import until
from tests.system.transactions.checker import check
from tests.system.transactions.clients import ABORT_SHARE, Setting, TailReader
from tests.system.transactions.findings import Findings
from tests.system.transactions.workload import (
    Workload,
    WrapSender,
    new_setting,
    topics_with_counts,
)

CREATE_S: Final = 30.0
ENOUGH_DEADLINE_S: Final = 240.0


def create_topics(bootstrap: str) -> None:
    """The workload's topics, one replica each; nothing when they exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if set(topics_with_counts()) <= set(admin.list_topics(timeout=CREATE_S).topics):
        return
    new = [NewTopic(name, count, 1) for name, count in topics_with_counts().items()]
    for future in admin.create_topics(new, operation_timeout=CREATE_S).values():
        future.result(CREATE_S)


def run_until(
    bootstrap: str,
    seed: int,
    enough: Callable[[Workload], bool],
    *,
    groups: Sequence[str],
    has_version_2: bool,
    random_count: int = 2,
    faulty: Mapping[str, WrapSender] | None = None,
    extra: Callable[[Setting], Sequence[TailReader]] | None = None,
    settle_s: float = 60.0,
    abort_share: float = ABORT_SHARE,
) -> tuple[Setting, Findings, list[str]]:
    """Run until enough is done; the findings, and what did not settle."""
    create_topics(bootstrap)
    setting = new_setting(bootstrap, seed, pause_s=0.02, abort_share=abort_share)
    workload = Workload(
        setting,
        has_version_2=has_version_2,
        groups=groups,
        random_count=random_count,
        faulty=faulty,
        extra=extra(setting) if extra else (),
    )
    with workload:
        until(
            lambda: enough(workload) or workload.complaints,
            what="enough transactions",
            deadline_s=ENOUGH_DEADLINE_S,
        )
        missing = workload.settle(settle_s)
    return setting, check(setting.history), [*missing, *workload.complaints]
