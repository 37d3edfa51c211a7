"""`python -m tests.system.transactions.soak --minutes N --seed S`: transactions, faults, verdict.

Three controllers and three brokers as real processes (with --everything four brokers, whose
replicas and leaders are moved about); random transactions over 5 keys of 4 partitions, and groups
of both protocols that consume, transform and produce, of whose members a third change between the
protocols again and again; a random fault every few seconds. In the end every partition of a group
must have an owner, and the checker must find no anomaly in the history. Ends with status 1
otherwise.
"""

from __future__ import annotations

import contextlib
import faulthandler
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.protocol.types import TopicPartition
from tests.kit.soaks import (
    SECURE_HELP,
    Say,
    add_fault_options,
    chosen_faults,
    fault_run,
    soak_parser,
)
from tests.kit.waiting import until
from tests.system.quorum.hosts import why_not
from tests.system.replication.chaos_cluster import BROKER_IDS, DEADLINE_S, ChaosCluster, running
from tests.system.replication.nemesis import BROKER_FAULTS, CONTROLLER_FAULTS
from tests.system.security.secured_chaos import SecuredChaosCluster, rotating
from tests.system.transactions.checker import check
from tests.system.transactions.faults import (
    GROUP_KEY,
    TRANSACTION_KEY,
    Mover,
    TransactionNemesis,
)
from tests.system.transactions.findings import Findings
from tests.system.transactions.local_cluster import FAULTS, running_here
from tests.system.transactions.migrating_members import DIRECTIONS
from tests.system.transactions.raw_sender import transaction_version
from tests.system.transactions.workload import Workload, new_setting, topics_with_counts

INTERNAL: Final = {"__consumer_offsets": 6, "__transaction_state": 6}
CONFIG: Final = {
    "offsets.topic.num.partitions": str(INTERNAL["__consumer_offsets"]),
    "offsets.topic.replication.factor": "3",
    "offsets.topic.segment.bytes": "1048576",
    "transaction.state.log.num.partitions": str(INTERNAL["__transaction_state"]),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.segment.bytes": "1048576",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.consumer.migration.policy": "bidirectional",
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    # Segments are cleaned while brokers die.
    "log.cleaner.backoff.ms": "2000",
}
DISK_BYTES: Final = 512 * 2**20
DIRECTORY_COUNT: Final = 2
TOPIC_CONFIG: Final = {"segment.bytes": "1048576", "retention.ms": "-1"}
FOUR_BROKERS: Final = (*BROKER_IDS, 4)
SETTLE_DEADLINE_S: Final = 240.0
#: Start, settling and reading take less beyond the minutes of faults.
STUCK_AFTER_S: Final = 900.0
LOOK_S: Final = 0.5
TRACED_CASES: Final = 3
EXPECTED: Final = ("committed", "aborted", "visible", "polled", "offset commits", "offset reads")
"""What must have happened in every run."""


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    seed: int
    minutes: float
    faults: dict[str, int] = field(default_factory=dict)
    moves: dict[str, int] = field(default_factory=dict)
    migrations: dict[str, int] = field(default_factory=dict)
    ended_by_itself: int = 0
    longest_stall_s: float = 0.0
    owned_after_s: float | None = None
    findings: Findings = field(default_factory=Findings)
    details: str = ""
    notes: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What never happened, so that the run says nothing about it."""
        missing = [what for what in EXPECTED if not self.findings.counts.get(what, 0)]
        for way in DIRECTIONS:
            missing += [what for what in (way, f"groups {way}") if not self.migrations.get(what, 0)]
        return missing

    @property
    def is_good(self) -> bool:
        """Whether everything was exactly once, and everything recovered."""
        return self.findings.is_clean and not self.complaints and not self.missing

    def line(self) -> str:
        """The result in one line."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        moves = ", ".join(f"{name} {count}" for name, count in sorted(self.moves.items()))
        counts = ", ".join(f"{name} {count:,}" for name, count in self.findings.counts.items())
        migrations = ", ".join(f"{way} {count}" for way, count in sorted(self.migrations.items()))
        owned = "never" if self.owned_after_s is None else f"after {self.owned_after_s:.1f} s"
        return (
            f"seed {self.seed}, {self.minutes:g} minutes: {counts}; faults "
            f"{sum(self.faults.values())} ({faults}){f', moved: {moves}' if moves else ''}, ended "
            f"by itself {self.ended_by_itself}; members changed: {migrations}; all partitions "
            f"owned {owned}; {self.findings.summary()}; longest time without a commit "
            f"{self.longest_stall_s:.1f} s"
        )


@contextlib.contextmanager
def _cluster(
    directory: Path, *, is_everything: bool, keeps_disks: bool, is_secured: bool
) -> Iterator[ChaosCluster]:
    if why_not():
        assert not is_everything, why_not()
        assert not is_secured, why_not()
        with running_here(directory, CONFIG) as here:
            yield here
        return
    brokers = FOUR_BROKERS if is_everything else BROKER_IDS
    with running(
        directory,
        CONFIG,
        disk_bytes=DISK_BYTES,
        broker_ids=brokers,
        keeps_disks=keeps_disks,
        directory_count=DIRECTORY_COUNT,
        kind=SecuredChaosCluster if is_secured else ChaosCluster,
    ) as cluster:
        yield cluster


def soak(
    directory: Path,
    *,
    seed: int,
    minutes: float,
    say: Say,
    only: frozenset[str] = frozenset(),
    is_everything: bool = False,
    keep_history: Path | None = None,
    keeps_disks: bool = False,
    is_secured: bool = False,
) -> Outcome:
    """Run it.

    Args:
        only: the faults to use; all that can be made here when empty.
        is_everything: with reassignments and elections beside the faults; needs hosts of their own.
        keep_history: the history is pickled there.
        keeps_disks: the brokers' disks are copied before they vanish.
        is_secured: with certificates, users and ACLs, which change during the run.
    """
    if why_not():
        only = (only or FAULTS) & FAULTS
    outcome = Outcome(seed, minutes)
    with _cluster(
        directory, is_everything=is_everything, keeps_disks=keeps_disks, is_secured=is_secured
    ) as cluster:
        topics = topics_with_counts()
        for name, count in topics.items():
            cluster.create_topic(name, count, TOPIC_CONFIG)
        run = cluster.hosts.from_hub
        version = run(transaction_version, cluster.bootstrap)
        say(f"transaction.version {version}")
        setting = new_setting(cluster.bootstrap, seed, run=run)
        workload = Workload(setting, has_version_2=version >= 2)
        everywhere = {**topics, **INTERNAL}
        keys = [(TRANSACTION_KEY, each.name) for each in (*workload.writers, *workload.pipelines)]
        nemesis = TransactionNemesis(
            cluster,
            seed,
            [*keys, *((GROUP_KEY, group) for group in workload.groups)],
            missing=lambda without: [
                text
                for name, count in everywhere.items()
                for text in cluster.out_of_sync(name, count, without)
            ],
            say=say,
            only=only,
        )
        partitions = [TopicPartition(t, p) for t, count in everywhere.items() for p in range(count)]
        mover = Mover(setting, partitions, cluster.broker_ids, say) if is_everything else None
        with workload:
            try:
                with rotating(cluster, seed, say, outcome.complaints):
                    _under_faults(workload, nemesis, mover, minutes * 60, outcome)
                say("no more faults: everything has to settle")
                outcome.complaints += workload.settle(SETTLE_DEADLINE_S)
            finally:
                _count(outcome, workload, nemesis, mover)
        if keep_history is not None:
            keep_history.write_bytes(pickle.dumps(_plain(setting.history)))
        outcome.findings = check(setting.history)
        outcome.details = outcome.findings.details(setting.history)
        outcome.complaints += [*cluster.stop_all(), *cluster.unexpected()]
    return outcome


def _plain(history: object) -> dict[str, object]:
    return {name: value for name, value in vars(history).items() if not name.startswith("_")}


def _under_faults(
    workload: Workload,
    nemesis: TransactionNemesis,
    mover: Mover | None,
    seconds: float,
    outcome: Outcome,
) -> None:
    until(
        lambda: workload.committed_count > 0 or workload.complaints,
        what="the first committed transaction",
        deadline_s=DEADLINE_S,
    )
    nemesis.start()
    if mover is not None:
        mover.start()
    never = threading.Event()
    begin = last = time.monotonic()
    count = workload.committed_count
    while (now := time.monotonic()) < begin + seconds:
        if nemesis.complaints or workload.complaints:
            break
        never.wait(LOOK_S)
        outcome.longest_stall_s = max(outcome.longest_stall_s, now - last)
        if workload.committed_count > count:
            count, last = workload.committed_count, now
    if mover is not None:
        mover.finish()
    nemesis.finish()


def _count(
    outcome: Outcome, workload: Workload, nemesis: TransactionNemesis, mover: Mover | None
) -> None:
    outcome.faults = {**nemesis.faults, "aimed at a coordinator": nemesis.aimed_count}
    outcome.migrations = dict(workload.migrations)
    outcome.owned_after_s = workload.owned_after_s
    outcome.ended_by_itself = sum(nemesis.ended.values())
    outcome.complaints += [*nemesis.complaints, *workload.complaints]
    for client in (*workload.writers, *workload.pipelines):
        for text, count in client.notes.items():
            outcome.notes[text] = outcome.notes.get(text, 0) + count
    if mover is not None:
        outcome.moves = dict(mover.done)
        outcome.complaints += mover.complaints


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make soak-transactions", "Transactions and groups under faults.")
    faults = (*BROKER_FAULTS, *CONTROLLER_FAULTS)
    add_fault_options(parser, faults)
    parser.add_argument(
        "--everything", action="store_true", help="reassignments and elections, too, as root"
    )
    parser.add_argument("--history", type=Path, help="pickle the history into this file")
    parser.add_argument("--secure", action="store_true", help=SECURE_HELP)
    options = parser.parse_args()
    reason = why_not()
    if reason and (options.everything or options.secure):
        print(f"cannot run here: {reason}", file=sys.stderr)
        return 2
    only = chosen_faults(parser, options, faults)
    # A client library that does not return shows where, and the run ends.
    faulthandler.dump_traceback_later(options.minutes * 60 + STUCK_AFTER_S, exit=True)
    with fault_run(options) as (directory, seed, say):
        outcome = soak(
            directory,
            seed=seed,
            minutes=options.minutes,
            say=say,
            only=only,
            is_everything=options.everything,
            keep_history=options.history,
            keeps_disks=options.keep is not None,
            is_secured=options.secure,
        )
    for text, count in sorted(outcome.notes.items(), key=lambda item: -item[1]):
        print(f"{count:6} {text}")
    if outcome.details:
        print(outcome.details)
    print(outcome.line())
    # Last: a report that shows only the end of a long output must show why.
    for text in outcome.complaints:
        print(text)
    if outcome.missing:
        print(f"never happened: {', '.join(outcome.missing)}")
    print("exactly once" if outcome.is_good else "NOT KEPT")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
