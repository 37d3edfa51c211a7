"""`make soak-client`: a million records through consume-transform-produce, exactly once.

Three brokers and one controller. Two processes (`exactly_once_app.py`) consume the input with this
project's consumer, transform each record and produce it with this project's transactional producer,
offsets included. The processes, brokers and coordinators are killed with SIGKILL. What
read_committed then sees is read with another client (librdkafka) and compared with the input,
record by record. Ends with status 1 when anything is lost, doubled, altered, or out of order within
a key.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from demo.enrichment import DEPARTURES
from demo.transactions import CONFIG
from demo.transactions_check import read_topic
from demo.transactions_stage import Killing, RestartedApplication, Stage
from moldau.testing import Cluster
from tests.kit.repeated_lines import repeated_in
from tests.kit.soaks import say, seed_of, soak_parser
from tests.system.client.exactly_once_app import transformed

KINDS: Final = ("application", "transaction coordinator", "broker", "group coordinator")
APPLICATIONS: Final = ("one", "two")
KEY_COUNT: Final = 1_000
SETTLE_S: Final = 240.0


class Records(list[tuple[bytes, bytes]]):
    """Key and value of `count` records; the value says which one it is."""

    def __init__(self, count: int) -> None:
        super().__init__(
            (b"%d" % (n % KEY_COUNT), b"%d record of the input" % n) for n in range(count)
        )


class ClientStage(Stage):
    """The stage of the transactional demo, with applications of this project's client."""

    def __init__(
        self, cluster: Cluster, protocol: str, per_transaction: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(cluster, protocol, per_transaction, say)
        self._per_transaction = per_transaction

    def start(self, name: str) -> None:
        """Start an application."""
        command = [
            *(sys.executable, "-m", "tests.system.client.exactly_once_app"),
            *(f"--protocol={self._protocol}", f"--records={self._per_transaction}"),
            *(self._cluster.bootstrap_server, name),
        ]
        self._applications[name] = RestartedApplication(command, self._say)


@dataclass
class Outcome:
    """What one run came to."""

    input_count: int = 0
    read_count: int = 0
    lost_count: int = 0
    doubled_count: int = 0
    altered_count: int = 0
    reordered_count: int = 0
    aborted_count: int = 0
    committed_count: int = 0
    seconds: float = 0.0
    killed: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_exactly_once(self) -> bool:
        """Whether each input record has made exactly one record, in order within its key."""
        wrong = self.lost_count + self.doubled_count + self.altered_count + self.reordered_count
        return not self.complaints and wrong == 0 and self.read_count == self.input_count

    def lines(self) -> Iterator[str]:
        """The lines to be printed."""
        yield f"input records             {self.input_count:>10,}"
        yield f"read under read_committed {self.read_count:>10,}"
        yield f"lost                      {self.lost_count:>10,}"
        yield f"doubled                   {self.doubled_count:>10,}"
        yield f"altered                   {self.altered_count:>10,}"
        yield f"out of order within a key {self.reordered_count:>10,}"
        yield f"aborted (read_uncommitted) {self.aborted_count:>9,}"
        killed = ", ".join(f"{kind} {count}" for kind, count in sorted(self.killed.items()))
        rate = self.input_count / max(self.seconds, 0.001)
        yield (
            f"{self.committed_count:,} transactions in {self.seconds:.1f} s "
            f"({rate:,.0f} records/s), killed: {killed}"
        )
        yield from self.complaints
        yield "exactly once" if self.is_exactly_once else "NOT exactly once"


def run(
    record_count: int,
    *,
    seed: int,
    kill_count: int,
    per_transaction: int,
    protocol: str = "classic",
    say: Callable[[str], None] = print,
) -> Outcome:
    """The whole thing on its own cluster."""
    outcome = Outcome(input_count=record_count)
    records = Records(record_count)
    with (
        Cluster(brokers=3, controllers=1, config=CONFIG) as cluster,
        ClientStage(cluster, protocol, per_transaction, say) as stage,
    ):
        stage.load(records)
        begin = time.monotonic()
        for name in APPLICATIONS:
            stage.start(name)
        for killing in plan(random.Random(seed), kill_count, record_count):
            stage.wait_consumed(killing.at_count, SETTLE_S)
            stage.kill(killing)
            outcome.killed[killing.kind] += 1
        stage.wait_consumed(record_count, SETTLE_S)
        outcome.seconds = time.monotonic() - begin
        outcome.complaints += stage.stop()
        outcome.committed_count = stage.committed_count
        outcome.complaints += stage.complaints
        check(cluster.bootstrap_server, records, outcome)
        logs = {each: cluster.node(each).log_path for each in cluster.node_ids}
        outcome.complaints += repeated_in(logs)
    return outcome


def plan(dice: random.Random, count: int, record_count: int) -> list[Killing]:
    """Who is killed, and when: each kind as often as the others, at random moments."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    dice.shuffle(kinds)
    moments = sorted(dice.uniform(0.02, 0.9) for _ in range(count))
    return [
        Killing(kind, int(moment * record_count), dice.random())
        for kind, moment in zip(kinds, moments, strict=True)
    ]


def check(bootstrap: str, records: Records, outcome: Outcome) -> None:
    """Compare what is visible with what the input must have made."""
    expected = {transformed(value): number for number, (_, value) in enumerate(records)}
    seen = bytearray(len(records))
    last: dict[bytes, int] = {}
    for key, value in read_topic(bootstrap, DEPARTURES, "read_committed"):
        outcome.read_count += 1
        number = expected.get(value)
        if number is None or key != records[number][0]:
            outcome.altered_count += 1
            continue
        outcome.doubled_count += seen[number]
        seen[number] = 1
        outcome.reordered_count += last.get(key, -1) > number
        last[key] = number
    outcome.lost_count = len(records) - sum(seen)
    everything = sum(1 for _ in read_topic(bootstrap, DEPARTURES, "read_uncommitted"))
    outcome.aborted_count = everything - outcome.read_count


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make soak-client", "Exactly once, whatever is killed.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--per-transaction", type=int, default=2_000, help="records, at most")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    options = parser.parse_args()
    seed = seed_of(options)
    say(f"seed {seed}")
    outcome = run(
        options.records,
        seed=seed,
        kill_count=options.kills,
        per_transaction=options.per_transaction,
        protocol=options.protocol,
        say=say,
    )
    for line in outcome.lines():
        say(line)
    return 0 if outcome.is_exactly_once else 1


if __name__ == "__main__":
    sys.exit(main())
