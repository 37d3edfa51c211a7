"""`make soak-topics MINUTES=n SEED=n`: topics come and go under everything that reads and writes.

Three brokers as real processes; topics are deleted, created again, grown, moved and led by others
at random while producers write and readers of all kinds read, each kind in its own process.
After each round everything rests: each reader must have every record that the live topics hold, and
all of it is compared with the account (see `account.py`). Ends with status 1 when a promise was
broken.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from demo.transactions_check import read_messages
from moldau.client import Admin
from moldau.spark_connector.errors import JavaNotFound
from moldau.spark_connector.pipelines.embedded_spark import java_home
from moldau.testing import Cluster
from tests.kit.repeated_lines import repeated_in
from tests.kit.soaks import Say, say, seed_of, soak_parser
from tests.kit.waiting import until_async
from tests.spark.results.databases import postgres_programs
from tests.system.topics.account import Account, Fate, Promise, Reader, Reports
from tests.system.topics.bugs import BUG_VARIABLE
from tests.system.topics.changes import Changes
from tests.system.topics.events import LOSS, NOTE, READ, READY, WRONG, Tail, event_of, reader_of
from tests.system.topics.pauses import pause
from tests.system.topics.stores import DIRECTORY_VARIABLE, POSTGRES
from tests.system.topics.writers import BlockingWriter, PlainWriter, TransactionalWriter

REPOSITORY: Final = Path(__file__).parents[3]
PROCESS: Final = "tests.system.topics.process"
CONFIG: Final = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
TOPICS: Final = ("alpha", "beta", "gamma")
ROUND_S: Final = 25.0
STUCK_S: Final = 240.0
"""How long a reader that lacks records may get no further: Spark may have to start first."""
LOOK_S: Final = 0.2
END_S: Final = 60.0
SHOWN_NOTES: Final = 8
REST_S: Final = 180.0
READY_S: Final = 600.0


SPARK: Final = "spark"


class Face(NamedTuple):
    """What a reader promises."""

    name: str
    promise: Promise
    reports: Reports
    is_committed_only: bool


EXACTLY, AT_LEAST = Promise.EXACTLY_ONCE, Promise.AT_LEAST_ONCE
KINDS: Final[Mapping[str, tuple[Face, ...]]] = MappingProxyType(
    {
        "assigned": (Face("assigned", EXACTLY, Reports.BY_TOPIC, True),),
        "blocking": (Face("blocking", EXACTLY, Reports.BY_PARTITION, False),),
        "classic-group": (Face("classic-group", AT_LEAST, Reports.AT_MOST_ONCE, False),),
        "consumer-group": (Face("consumer-group", AT_LEAST, Reports.AT_MOST_ONCE, True),),
        "stores": (
            Face("store-reader", EXACTLY, Reports.BY_DRIVER, True),
            Face("sql-results", EXACTLY, Reports.NEVER, True),
            Face("sql-results-without-ids", EXACTLY, Reports.WHEN_MET, True),
            Face("unique-rows", EXACTLY, Reports.NEVER, True),
            Face(f"sql-results{POSTGRES}", EXACTLY, Reports.NEVER, True),
            Face(f"unique-rows{POSTGRES}", EXACTLY, Reports.NEVER, True),
            Face("redis-results", EXACTLY, Reports.NEVER, True),
        ),
        SPARK: (
            Face("spark-sql", EXACTLY, Reports.BY_OFFSET, True),
            Face(f"spark-sql{POSTGRES}", EXACTLY, Reports.NEVER, True),
            Face("spark-unique", EXACTLY, Reports.NEVER, True),
            Face("spark-redis", EXACTLY, Reports.NEVER, True),
            Face("spark-redis-offsets", AT_LEAST, Reports.NEVER, True),
        ),
    }
)
"""The processes, and the readers in each."""


@dataclass
class Outcome:
    """What one run came to."""

    seed: int
    seconds: float = 0.0
    rounds: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    readers: dict[str, str] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """The lines to be printed."""
        counts = ", ".join(f"{what} {count:,}" for what, count in sorted(self.counts.items()))
        lines = [
            f"seed {self.seed}: {self.seconds / 60:.1f} minutes, {self.rounds} rounds: {counts}"
        ]
        lines += [f"{name}: {text}" for name, text in self.readers.items()]
        lines += [f"noted {count}: {what}" for what, count in self.notes.most_common(SHOWN_NOTES)]
        lines += self.problems
        lines.append(f"{self.problem_count} promises broken")
        return lines


class ReaderProcess:
    """One process of readers, whose events are taken into the account."""

    def __init__(
        self, kind: str, bootstrap: str, directory: Path, account: Account, bug: str | None
    ) -> None:
        self.kind = kind
        has_postgres = postgres_programs() is not None
        self.readers = {
            face.name: Reader(*face)
            for face in KINDS[kind]
            if has_postgres or not face.name.endswith(POSTGRES)
        }
        account.readers |= self.readers
        self._account = account
        out = directory / f"{kind}.events"
        environment = {**os.environ, DIRECTORY_VARIABLE: str(directory)}
        if bug is not None:
            environment[BUG_VARIABLE] = bug
        with out.open("wb") as stdout, (directory / f"{kind}.errors").open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROCESS, kind, bootstrap, *TOPICS],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                cwd=REPOSITORY,
                env=environment,
            )
        self._tail = Tail(out)
        self.is_ready = False
        self.notes: Counter[str] = Counter()

    def take(self) -> None:
        """Take what has come into the account."""
        for fields in self._tail.new():
            match fields:
                case [kind, *_] if kind in (READ, LOSS) and reader_of(fields) in self.readers:
                    self.readers[reader_of(fields)].events.append(event_of(fields))
                case [kind, _, text] if kind == NOTE and text == READY:
                    self.is_ready = True
                case [kind, name, text] if kind == NOTE:
                    self.notes[f"{name}: {text[:100]}"] += 1
                case [kind, name, text] if kind == WRONG:
                    self._account.wrong(f"{name}: {text}")
                case _:
                    self._account.wrong(f"{self.kind} says {fields}")

    def end(self) -> None:
        """End the process, and take the last events."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.take()
        self._tail.close()
        if status:
            self._account.wrong(f"the process {self.kind} ended with status {status}")


class Soak:
    """One run."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        seed: int,
        kinds: list[str],
        bug: str | None,
        say: Say,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self.account = Account(TOPICS)
        dice = Random(seed)
        bootstrap = cluster.bootstrap_server
        self._changes_seed = Random(dice.random())
        self._writers = [
            PlainWriter("plain", self.account, dice.random(), bootstrap),
            TransactionalWriter("transactional", self.account, dice.random(), bootstrap),
            BlockingWriter("blocking-writer", self.account, dice.random(), bootstrap),
        ]
        self._bug = bug
        self._kinds = kinds
        self._directory = directory
        self.processes: list[ReaderProcess] = []
        self.outcome = Outcome(seed)

    async def run(self, seconds: float) -> Outcome:
        """Rounds until the time is over."""
        begin = time.monotonic()
        async with Admin(self._cluster.bootstrap_server) as admin:
            changes = Changes(self._cluster, admin, self.account, self._changes_seed)
            await changes.begin()
            self.processes = [
                ReaderProcess(
                    kind, self._cluster.bootstrap_server, self._directory, self.account, self._bug
                )
                for kind in self._kinds
            ]
            try:
                for writer in self._writers:
                    await writer.probe()
                await until_async(
                    self._are_ready, what="the readers have begun", deadline_s=READY_S
                )
                begin = time.monotonic()
                while time.monotonic() - begin < seconds and not self.account.problem_count:
                    left = seconds - (time.monotonic() - begin)
                    await self._round(changes, min(ROUND_S, max(left, 5.0)))
            finally:
                for writer in self._writers:
                    await writer.rest()
                await asyncio.to_thread(self._end)
                for writer in self._writers:
                    await writer.close()
        self.outcome.seconds = time.monotonic() - begin
        self._sum_up(changes)
        return self.outcome

    async def _are_ready(self) -> bool:
        for process in self.processes:
            process.take()
        return all(process.is_ready for process in self.processes)

    async def _round(self, changes: Changes, seconds: float) -> None:
        for writer in self._writers:
            await writer.start()
        await changes.run(seconds, restarts=True)
        async with asyncio.timeout(REST_S):
            for writer in self._writers:
                await writer.rest()
            for writer in self._writers:
                for record in await writer.probe():
                    if record.acknowledged_at is None or record.fate is not Fate.COMMITTED:
                        self.account.wrong(f"{writer.name}: the cluster rests, and {record}")
        self.account.check_outcomes()
        held = {}
        for name in TOPICS:
            for isolation in ("read_committed", "read_uncommitted"):
                log = await asyncio.to_thread(self._read, name, isolation)
                held[name, isolation == "read_committed"] = log
                self.account.check_held(name, log, all_kinds=isolation == "read_uncommitted")
        await self._catch_up(held)
        for reader in self.account.readers.values():
            self.account.check_gaps(reader)
            self.account.check_losses(reader)
        self.outcome.rounds += 1
        self._say(
            f"round {self.outcome.rounds}: {len(self.account.records):,} records, "
            f"{changes.counts['create again']} topics created again, "
            f"{self.account.problem_count} promises broken"
        )

    def _read(self, topic: str, isolation: str) -> list[tuple[int, int, int]]:
        messages = read_messages(self._cluster.bootstrap_server, topic, isolation)
        return [(each.partition(), each.offset(), int(each.value())) for each in messages]

    async def _catch_up(self, held: Mapping[tuple[str, bool], list[tuple[int, int, int]]]) -> None:
        """Wait until every reader has what the live topics hold."""
        end, left = time.monotonic() + STUCK_S, sys.maxsize
        while True:
            for process in self.processes:
                process.take()
            behind = {}
            for name, reader in self.account.readers.items():
                self.account.check_reads(reader)
                for topic in TOPICS:
                    count = self.account.missing(
                        reader, topic, held[topic, reader.is_committed_only]
                    )
                    if count:
                        behind[name, topic] = count
            if not behind:
                return
            if sum(behind.values()) < left:
                end, left = time.monotonic() + STUCK_S, sum(behind.values())
            if time.monotonic() > end or self.account.problem_count:
                for (name, topic), count in behind.items():
                    self.account.wrong(
                        f"{name}: {count} of {len(held[topic, False])} records that {topic} holds "
                        "were not read"
                    )
                return
            await pause(LOOK_S)

    def _end(self) -> None:
        for process in self.processes:
            process.end()
        for reader in self.account.readers.values():
            self.account.check_reads(reader)
            self.account.check_gaps(reader)

    def _sum_up(self, changes: Changes) -> None:
        account, outcome = self.account, self.outcome
        outcome.problems, outcome.problem_count = account.problems, account.problem_count
        outcome.counts = account.counts + changes.counts
        records = account.records.values()
        outcome.counts["records"] = len(account.records)
        outcome.counts["acknowledged"] = sum(each.acknowledged_at is not None for each in records)
        errors = Counter(each.error for each in records if each.error is not None)
        outcome.counts += Counter({f"failed with {name}": n for name, n in errors.items()})
        for process in self.processes:
            outcome.notes += process.notes
        for name, reader in account.readers.items():
            read_count = sum(len(places) for places in reader.seen.values())
            outcome.readers[name] = (
                f"{read_count:,} records read ({reader.promise.value}), {reader.repeated_count:,} "
                f"again, {reader.report_count:,} losses reported, {reader.unreported_count:,} "
                "changes without a report"
            )


def soak(
    minutes: float,
    seed: int,
    directory: Path,
    *,
    kinds: list[str] | None = None,
    bug: str | None = None,
    say: Say = print,
) -> Outcome:
    """One run on its own cluster; the events of the readers go to the directory."""
    with Cluster(brokers=3, controllers=1, config=CONFIG) as cluster:
        run = Soak(cluster, directory, seed, kinds or [*KINDS], bug, say)
        outcome = asyncio.run(run.run(minutes * 60))
        repeated = repeated_in({each: cluster.node(each).log_path for each in cluster.node_ids})
    outcome.problems += repeated
    outcome.problem_count += len(repeated)
    return outcome


def _has_java() -> bool:
    """Whether Spark can run; says why not."""
    try:
        java_home()
    except JavaNotFound as error:
        print(f"without Spark: {error}", flush=True)
        return False
    return True


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make soak-topics", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--readers", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--bug", default=None, help="one of bugs.py, in the readers' processes")
    parser.add_argument("--directory", type=Path, default=None, help="keep the readers' events")
    options = parser.parse_args()
    seed = seed_of(options)
    say(f"make soak-topics MINUTES={options.minutes:g} SEED={seed}")
    kinds = [kind for kind in options.readers if kind != SPARK or _has_java()]
    if postgres_programs() is None:
        print("PostgreSQL is not installed here: without it", flush=True)
    with tempfile.TemporaryDirectory(prefix="moldau-soak-topics-") as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        outcome = soak(
            options.minutes,
            seed,
            directory,
            kinds=kinds,
            bug=options.bug,
            say=say,
        )
    for line in outcome.lines():
        say(line)
    return int(outcome.problem_count > 0)


if __name__ == "__main__":
    sys.exit(main())
