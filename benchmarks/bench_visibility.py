"""A change of metadata: does the next answer tell of it, and when does every broker?

A controller and three brokers of each, as processes. A round makes a topic, changes it in each way
and deletes it, all by one broker, which takes turns with the others. Every change is followed at
once by the question that shows it, to the same broker ("stale": the answer is without the change),
then to all brokers, one after the other without a pause, until each has shown it. Rounds of the two
clusters take turns, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.clusters import ClusterProcesses, clusters, in_changing_order
from benchmarks.figures import Effort, Report, Spread, Table, Target, at_most
from benchmarks.wire import CREATE_TOPICS_VERSION, Wire, create_topic_request
from moldau.protocol.error_responses import error_codes
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p33_alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.schema import Message

ROUNDS: Final = 200
WARM_UP_ROUNDS: Final = 60
"""Java has compiled what it needs by then."""

GIVE_UP_S: Final = 60.0
TIMEOUT_MS: Final = 30_000
TOPIC_RESOURCE: Final = 2
SET: Final = 0
KEY: Final = "retention.ms"
METADATA_VERSION: Final = 8
DESCRIBE_CONFIGS_VERSION: Final = 4
LIMIT: Final = 1.0
DIGITS: Final = 2
PERCENT: Final = 100


class Change(NamedTuple):
    """A request, the question that shows what it did, and how the answer shows it."""

    name: str
    request: Message
    version: int
    question: Message
    question_version: int
    is_seen: Callable[[Any], bool]


@dataclass(slots=True)
class _Times:
    """Of one kind of change: milliseconds from just before the request was sent."""

    answered: list[float] = field(default_factory=list)
    everywhere: list[float] = field(default_factory=list)
    stale_count: int = 0

    @property
    def after_answer(self) -> list[float]:
        """Milliseconds from the answer to the last broker's first answer with the change."""
        return [all_ - own for all_, own in zip(self.everywhere, self.answered, strict=True)]


_Side = dict[str, _Times]


def run(effort: Effort) -> Report:
    """Rounds by turns."""
    report = Report("Changes of metadata: visible to the next request, and on every broker")
    round_count = effort.count(ROUNDS, least=3)
    loads: list[float] = []
    with contextlib.ExitStack() as stack:
        sides = stack.enter_context(clusters(effort))
        wires = {side.name: stack.enter_context(_connected(side)) for side in sides}
        times: dict[str, _Side] = {side.name: {} for side in sides}
        for number in range(effort.count(WARM_UP_ROUNDS)):
            for side in in_changing_order(sides, number):
                _round(wires[side.name], f"warm-up-{number}", number, {})
        for number in range(round_count):
            for side in in_changing_order(sides, number):
                _round(wires[side.name], f"changed-{number}", number, times[side.name])
            loads.append(os.getloadavg()[0])
    _tell(report, times, round_count)
    report.notes.append(
        f"Load averages meanwhile (minimum / median / maximum): {Spread.of(loads).text()}."
    )
    if len(sides) == 1:
        report.notes.append(WITHOUT_KAFKA)
    return report


@contextlib.contextmanager
def _connected(cluster: ClusterProcesses) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(cluster.connect(each)) for each in cluster.broker_ids]


def _round(wires: Sequence[Wire], topic: str, number: int, times: _Side) -> None:
    """Every change once, by the broker whose turn it is."""
    asked = wires[number % len(wires)]
    for change in _changes(topic):
        found = times.setdefault(change.name, _Times())
        begin = time.perf_counter()
        errors = set(error_codes(asked.ask(change.request, change.version))) - {0}
        answered = time.perf_counter()
        assert not errors, f"{change.name}: errors {errors}"
        if not _is_seen(asked, change):
            found.stale_count += 1
        for wire in wires:
            while not _is_seen(wire, change):
                assert time.perf_counter() < begin + GIVE_UP_S, f"{change.name} never seen"
        found.everywhere.append((time.perf_counter() - begin) * 1000)
        found.answered.append((answered - begin) * 1000)


def _is_seen(wire: Wire, change: Change) -> bool:
    return change.is_seen(wire.ask(change.question, change.question_version))


def _changes(topic: str) -> Iterator[Change]:
    about = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    config = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[KEY]
            )
        ]
    )

    def has_partitions(count: int) -> Callable[[Any], bool]:
        return lambda found: len(found.topics[0].partitions) == count

    def has_value(value: str) -> Callable[[Any], bool]:
        return lambda found: any(each.value == value for each in found.results[0].configs)

    yield Change(
        "CreateTopics",
        create_topic_request(topic, 1),
        CREATE_TOPICS_VERSION,
        about,
        METADATA_VERSION,
        has_partitions(1),
    )
    grown = CreatePartitionsTopic(name=topic, count=2, assignments=None)
    yield Change(
        "CreatePartitions",
        CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS),
        2,
        about,
        METADATA_VERSION,
        has_partitions(2),
    )
    whole = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic,
        configs=[AlterableConfig(name=KEY, value="60001")],
    )
    yield Change(
        "AlterConfigs",
        AlterConfigsRequest(resources=[whole]),
        1,
        config,
        DESCRIBE_CONFIGS_VERSION,
        has_value("60001"),
    )
    single = incremental.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic,
        configs=[incremental.AlterableConfig(name=KEY, config_operation=SET, value="60002")],
    )
    yield Change(
        "IncrementalAlterConfigs",
        incremental.IncrementalAlterConfigsRequest(resources=[single]),
        1,
        config,
        DESCRIBE_CONFIGS_VERSION,
        has_value("60002"),
    )
    yield Change(
        "DeleteTopics",
        DeleteTopicsRequest(topic_names=[topic], timeout_ms=TIMEOUT_MS),
        4,
        about,
        METADATA_VERSION,
        lambda found: bool(found.topics[0].error_code),
    )


def _tell(report: Report, times: dict[str, _Side], round_count: int) -> None:
    table = Table(
        (
            "change",
            "broker",
            f"stale of {round_count}",
            "answered p50 / p90, ms",
            "on every broker p50 / p90, ms",
            "of that after the answer",
        )
    )
    kinds = list(next(iter(times.values())))
    for kind in kinds:
        for side, found in times.items():
            each = found[kind]
            table.add(kind, side, str(each.stale_count), *_cells([each]))
    ours, *peers = times.values()
    for side, found in times.items():
        stale_count = sum(each.stale_count for each in found.values())
        table.add(f"all {len(kinds)}", side, str(stale_count), *_cells(list(found.values())))
    report.tables.append(table)
    stale = Spread.of([float(each.stale_count) for each in ours.values()])
    report.targets.append(
        Target("stale answers after a change: 0", stale, max(stale.values) == 0, 0)
    )
    for theirs in peers:
        for what, of in (
            ("from the request", lambda each: each.everywhere),
            ("from the answer", lambda each: each.after_answer),
        ):
            ratios = [Spread.of(of(ours[kind])).per(Spread.of(of(theirs[kind]))) for kind in kinds]
            together = Spread(tuple(value for ratio in ratios for value in ratio.values))
            asked = f"a change on every broker, time {what}: ≤ Apache Kafka's"
            report.targets.append(at_most(asked, together, LIMIT))


def _cells(found: Sequence[_Times]) -> tuple[str, str, str]:
    """Of some kinds of changes together."""
    return (
        _text([value for each in found for value in each.answered]),
        _text([value for each in found for value in each.everywhere]),
        _text([value for each in found for value in each.after_answer]),
    )


def _text(values: Sequence[float]) -> str:
    p90 = statistics.quantiles(values, n=PERCENT)[89]
    return f"{statistics.median(values):.{DIGITS}f} / {p90:.{DIGITS}f}"
