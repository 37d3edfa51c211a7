"""`python -m tests.system.replication.soak --minutes N --seed S`: load, faults, and the verdict.

Three controllers and three brokers as real processes on hosts of their own; idempotent producers
with acks=all on a topic with replication factor 3 and min.insync.replicas 2; a random fault every
few seconds. In the end nothing that was acknowledged may be lost, doubled, altered or out of order
within its key, and the three replicas must hold the same bytes. Ends with status 1 otherwise.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

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
from tests.system.replication.chaos_cluster import DEADLINE_S, ChaosCluster, running
from tests.system.replication.checker import Findings, check
from tests.system.replication.load import Load, end_offsets, read_to
from tests.system.replication.nemesis import BROKER_FAULTS, CONTROLLER_FAULTS, Nemesis
from tests.system.replication.replica_logs import differences
from tests.system.security.secured_chaos import SecuredChaosCluster, rotating

TOPIC: Final = "soak"
PARTITION_COUNT: Final = 6
PRODUCER_COUNT: Final = 3
KEYS_PER_PRODUCER: Final = 12
RATE: Final = 300.0
DISK_BYTES: Final = 256 * 2**20
#: Partitions are spread over them, and the nemesis takes them away.
DIRECTORY_COUNT: Final = 2
#: Small, so that segments roll and are opened again while brokers die.
TOPIC_CONFIG: Final = {"segment.bytes": "1048576"}
#: One consumer reads from the leaders, one from the nearest replica (KIP-392).
READER_RACKS: Final = (None, "rack-2")
FAULTS: Final = (*BROKER_FAULTS, *CONTROLLER_FAULTS)
FLUSH_DEADLINE_S: Final = 240.0


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    seed: int
    minutes: float
    handed_count: int = 0
    acknowledged_count: int = 0
    refused_count: int = 0
    read_count: int = 0
    consumed_count: int = 0
    longest_stall_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    ended_by_itself: int = 0
    findings: Findings = field(default_factory=Findings)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the promise was kept, and everything recovered."""
        return self.findings.is_clean and not self.complaints and self.acknowledged_count > 0

    def line(self) -> str:
        """The result in one line."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}, {self.minutes:g} minutes: sent {self.handed_count:,}, "
            f"acknowledged {self.acknowledged_count:,}, given up {self.refused_count:,}, "
            f"read {self.read_count:,}, by live consumers {self.consumed_count:,}; "
            f"faults {sum(self.faults.values())} ({faults}), ended by itself "
            f"{self.ended_by_itself}; {self.findings.summary()}; "
            f"longest stall {self.longest_stall_s:.1f} s"
        )


def soak(
    directory: Path,
    *,
    seed: int,
    minutes: float,
    say: Say,
    only: frozenset[str] = frozenset(),
    rate: float = RATE,
    keeps_disks: bool = False,
    is_secured: bool = False,
) -> Outcome:
    """Run it.

    Args:
        only: the faults to use; all when empty.
        rate: records per second, of all producers together.
        keeps_disks: the brokers' disks are copied before they vanish.
        is_secured: with certificates, users and ACLs, which change during the run.
    """
    outcome = Outcome(seed, minutes)
    with running(
        directory,
        disk_bytes=DISK_BYTES,
        keeps_disks=keeps_disks,
        directory_count=DIRECTORY_COUNT,
        kind=SecuredChaosCluster if is_secured else ChaosCluster,
    ) as cluster:
        cluster.create_topic(TOPIC, PARTITION_COUNT, TOPIC_CONFIG)
        load = Load(
            *(cluster.hosts.from_hub, cluster.bootstrap, TOPIC),
            partition_count=PARTITION_COUNT,
            producer_count=PRODUCER_COUNT,
            keys_per_producer=KEYS_PER_PRODUCER,
            rate=rate,
            reader_racks=READER_RACKS,
            seed=seed,
        )
        nemesis = Nemesis(
            cluster,
            seed,
            TOPIC,
            missing=lambda without: cluster.out_of_sync(TOPIC, PARTITION_COUNT, without),
            say=say,
            only=only,
        )
        try:
            with load:
                with rotating(cluster, seed, say, outcome.complaints):
                    _under_faults(load, nemesis, minutes * 60)
                say("no more faults: everything has to settle")
                _settle(cluster, load, outcome)
        finally:
            _count(outcome, load, nemesis)
        for number, reader in enumerate(load.readers, start=1):
            if reader.errors:
                say(f"reader {number} was told: {dict(reader.errors)}")
        try:
            _judge(cluster, load, outcome)
        except (KafkaException, TimeoutError) as error:
            outcome.complaints.append(f"cannot be read in the end: {error}")
    return outcome


def _under_faults(load: Load, nemesis: Nemesis, seconds: float) -> None:
    until(
        lambda: load.ledger.acknowledged_count > 0,
        what="the first acknowledgement",
        deadline_s=DEADLINE_S,
    )
    nemesis.start()
    end = time.monotonic() + seconds
    never = threading.Event()
    while time.monotonic() < end and not nemesis.complaints and not load.complaints:
        never.wait(0.5)
    nemesis.finish()


def _settle(cluster: ChaosCluster, load: Load, outcome: Outcome) -> None:
    """All replicas in sync, every record answered, the consumers at the end."""
    try:
        cluster.wait_in_sync(TOPIC, PARTITION_COUNT)
        # A producer that has failed for good holds no other one up.
        deadline_s = 0.0 if load.complaints else FLUSH_DEADLINE_S
        unanswered_count = load.finish_producers(deadline_s)
        if unanswered_count:
            outcome.complaints.append(f"{unanswered_count} records were never answered")
        if load.complaints:
            return  # a consumer that was thrown back may never get there
        ends = cluster.hosts.from_hub(end_offsets, cluster.bootstrap, TOPIC, PARTITION_COUNT)
        for number, reader in enumerate(load.readers, start=1):
            until(
                lambda reader=reader: reader.has_read(ends),  # type: ignore[misc]
                what=f"consumer {number} at the end",
                deadline_s=DEADLINE_S,
            )
    except (KafkaException, TimeoutError) as error:
        outcome.complaints.append(str(error))
        load.finish_producers(0.0)  # What is sent behind the ends is not judged.


def _judge(cluster: ChaosCluster, load: Load, outcome: Outcome) -> None:
    ends = cluster.hosts.from_hub(end_offsets, cluster.bootstrap, TOPIC, PARTITION_COUNT)
    final = cluster.hosts.from_hub(read_to, cluster.bootstrap, TOPIC, ends, DEADLINE_S)
    outcome.read_count = len(final)
    outcome.findings = check(load.ledger, final, [reader.records for reader in load.readers])
    outcome.complaints += cluster.stop_all()
    for number in range(PARTITION_COUNT):
        partition = f"{TOPIC}-{number}"
        found = [cluster.replica_directories(each, partition) for each in cluster.broker_ids]
        if all(len(places) == 1 for places in found):
            outcome.complaints += differences([place for [place] in found])
        else:
            outcome.complaints.append(f"{partition} is not in one directory per broker: {found}")
    outcome.complaints += cluster.unexpected()


def _count(outcome: Outcome, load: Load, nemesis: Nemesis) -> None:
    ledger = load.ledger
    outcome.handed_count = ledger.handed_count
    outcome.acknowledged_count = ledger.acknowledged_count
    outcome.refused_count = ledger.refused_count
    outcome.consumed_count = sum(len(reader.records) for reader in load.readers)
    outcome.longest_stall_s = load.longest_stall_s
    outcome.faults = dict(nemesis.faults)
    outcome.ended_by_itself = sum(nemesis.ended.values())
    outcome.complaints += [*nemesis.complaints, *load.complaints]


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make soak", "Replication under load and faults.")
    add_fault_options(parser, FAULTS)
    parser.add_argument("--rate", type=float, default=RATE, help="records per second")
    parser.add_argument("--secure", action="store_true", help=SECURE_HELP)
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"cannot run here: {reason}", file=sys.stderr)
        return 2
    only = chosen_faults(parser, options, FAULTS)
    with fault_run(options) as (directory, seed, say):
        outcome = soak(
            directory,
            seed=seed,
            minutes=options.minutes,
            say=say,
            only=only,
            rate=options.rate,
            keeps_disks=options.keep is not None,
            is_secured=options.secure,
        )
    if not outcome.findings.is_clean:
        print(outcome.findings.details())
    print(outcome.line())
    # Last: a report that shows only the end of a long output must show why.
    for text in outcome.complaints:
        print(text)
    print("kept" if outcome.is_good else "NOT KEPT")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
