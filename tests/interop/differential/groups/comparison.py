"""Many sequences to two running clusters, several at a time.

Owns: the lanes, the topics, and the tally. Invariant: sequences share topics and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.registry import request_class
from tests.interop.differential.asking import Node, Pair, build
from tests.interop.differential.clusters import CONFIG
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.groups.playing import Failure, Side, play
from tests.interop.differential.groups.sequences import TOPICS, Sequence
from tests.interop.differential.groups.shrinking import is_stable, shrink

LIST: Final = Path(__file__).with_name("differences.toml")
LANES: Final = 48
SHOWN_OF_A_KIND: Final = 1
MOST_KINDS: Final = 40
GROUP_SIZE: Final = "3"
SESSION_MS: Final = "1800000"

GROUP_CONFIG: Final = {
    **CONFIG,
    "offsets.topic.num.partitions": "1",
    "group.max.size": GROUP_SIZE,
    "group.consumer.max.size": GROUP_SIZE,
    "group.consumer.max.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignors": "range,uniform",
    "group.consumer.migration.policy": "bidirectional",
    "group.coordinator.append.linger.ms": "0",
    "group.coordinator.background.threads": "1",
    "num.network.threads": "1",
    "num.io.threads": "1",
}
"""Nothing waits for time, and both take requests one after the other."""


@dataclass
class Tally:
    """What a run played and found.

    Attributes:
        failures: by kind; the first of each shrunk.
        cuts: how many sequences each row of the list ended early.
        counts: of each kind.
        chance_count: sequences with ids of members that a cluster made up, by the order of which
            assignors and elections go: they differed, and then did not.
        unstable: other differences that playing the sequence again did not show.
    """

    differences: DifferenceList
    sequence_count: int = 0
    request_count: int = 0
    chance_count: int = 0
    cuts: Counter[str] = field(default_factory=Counter)
    counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    failures: dict[tuple[str, ...], list[Failure]] = field(default_factory=dict)
    unstable: list[Failure] = field(default_factory=list)

    @property
    def failure_count(self) -> int:
        """Sequences that differ, those included that did so once only."""
        return sum(self.counts.values()) + len(self.unstable)

    def __str__(self) -> str:
        return (
            f"{self.sequence_count} sequences, {self.request_count} requests, "
            f"{self.cuts.total()} cut, {self.chance_count} by chance, {self.failure_count} differ"
        )

    def cut_report(self) -> str:
        """Which rows of the list ended how many sequences."""
        return "\n".join(f"{count:6} {reason[:80]}" for reason, count in self.cuts.most_common())

    def report(self) -> str:
        """All kinds of differences, shrunk."""
        lines = []
        for kind, failures in sorted(self.failures.items(), key=lambda each: -self.counts[each[0]]):
            lines.append(f"{self.counts[kind]} sequences: {', '.join(kind)}")
            for failure in failures:
                lines += [f"  {failure.sequence.name}", str(failure)]
        for failure in self.unstable:
            lines += [f"only once, {failure.sequence.name}", str(failure)]
        return "\n".join(lines)


class Comparison:
    """Sequences on one pair of clusters."""

    def __init__(self, pair: Pair, tally: Tally) -> None:
        self._sides = [_side(node) for node in pair.nodes]
        self._tally = tally
        self._played_count = 0

    async def run(self, sequences: Iterable[Sequence]) -> None:
        """Play all of them, and shrink what differs."""
        waiting = iter(sequences)
        found: list[Failure] = []
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(LANES):
                    lanes.create_task(self._lane(waiting, found))
            for failure in found:
                await self._note(failure)
        finally:
            for side in self._sides:
                side.close()

    async def trace(self, sequence: Sequence) -> None:
        """Play one, and print every answer of both."""

        def show(number: int, answers: tuple[Any, ...]) -> None:
            print(number, sequence.steps[number])
            same = answers[0] == answers[1]
            for word, answer in zip(
                ("  both" if same else "  ours", " Kafka"), answers, strict=True
            ):
                if not (same and word == " Kafka"):
                    print(word, answer)

        self._played_count += 1
        prefix = f"t{self._played_count}"
        outcome = await play(sequence, prefix, self._sides, self._tally.differences, show)
        print(outcome.failure)

    async def _lane(self, waiting: Iterator[Sequence], found: list[Failure]) -> None:
        for sequence in waiting:
            failure = await self._play(sequence)
            self._tally.sequence_count += 1
            if failure is not None:
                found.append(failure)

    async def _play(self, sequence: Sequence) -> Failure | None:
        self._played_count += 1
        prefix = f"s{self._played_count}"
        outcome = await play(sequence, prefix, self._sides, self._tally.differences)
        self._tally.request_count += outcome.request_count
        if outcome.cut:
            self._tally.cuts[outcome.cut] += 1
        return outcome.failure

    async def _note(self, failure: Failure) -> None:
        tally, kind = self._tally, failure.kind
        tally.counts.setdefault(kind, 0)
        if not await is_stable(failure, self._play):
            if failure.has_made_ids:
                tally.chance_count += 1
            else:
                tally.unstable.append(failure)
            return
        tally.counts[kind] += 1
        shown = tally.failures.setdefault(kind, [])
        if len(shown) < SHOWN_OF_A_KIND and len(tally.failures) <= MOST_KINDS:
            shown.append(await shrink(failure, self._play))


def prepare(pair: Pair) -> None:
    """Make the topics and the coordinator."""
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1}
        for name, count in TOPICS.items()
    ]
    creation = build(request_class(ApiKey.CREATE_TOPICS), topics=topics, timeout_ms=30_000)
    question = build(request_class(ApiKey.FIND_COORDINATOR), coordinator_keys=["g"], key_type=0)
    for node in pair.nodes:
        answer: Any = node.ask(creation, 7)
        assert all(each.error_code == ErrorCode.NONE for each in answer.topics), answer
        node.ask(question, 4)
    pair.settle()
    for node in pair.nodes:
        while node.ask(question, 4).coordinators[0].error_code != ErrorCode.NONE:  # type: ignore
            node.settle()


def _side(node: Node) -> Side:
    return Side(node.name, node.bootstrap, {name: node.topic_ids[name] for name in TOPICS})
