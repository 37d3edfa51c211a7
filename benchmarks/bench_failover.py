"""The active controller is killed: time until the next topic creation succeeds.

Three controllers and a broker, Kafka's default quorum timeouts, `kill -9` of the active controller,
then one client that creates a topic through the broker, and tries again as long as it is refused.
What is measured runs from just before the kill to the successful answer. Between two kills the
killed controller is started again and catches up.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.clusters import (
    ONE_BROKER,
    THREE_CONTROLLERS,
    ClusterProcesses,
    KafkaCluster,
    MoldauCluster,
)
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.nodes import kafka_jars, temporary_directory
from benchmarks.wire import CREATE_TOPICS_VERSION, CREATED, create_topic_request, until_accepted

KILLS: Final = 20
KAFKA_KILLS: Final = 10
LIMIT_S: Final = 3.0
LIMIT_OF_DESIGN_S: Final = 2.0


def run(effort: Effort) -> Report:
    """Kill ours, then Kafka's."""
    report = Report("Active controller killed: time to the next created topic")
    ours = _failovers(MoldauCluster, effort.count(KILLS, least=2))
    table = Table(("seconds", "kills", "minimum / median / maximum"))
    table.add("Moldau", str(len(ours.values)), ours.text())
    report.targets.append(at_most("next creation ≤ 3 s after kill -9", ours, LIMIT_S))
    report.targets.append(at_most("controller failover ≤ 2 s", ours, LIMIT_OF_DESIGN_S))
    if effort.with_kafka and kafka_jars() is not None:
        theirs = _failovers(KafkaCluster, effort.count(KAFKA_KILLS, least=2))
        table.add("Apache Kafka", str(len(theirs.values)), theirs.text())
    report.tables.append(table)
    return report


def _failovers(kind: type[ClusterProcesses], count: int) -> Spread:
    seconds = []
    with (
        temporary_directory() as directory,
        kind(directory, controller_ids=THREE_CONTROLLERS, broker_ids=ONE_BROKER) as cluster,
    ):
        for number in range(count):
            active = cluster.active_controller()
            begin = time.perf_counter()
            cluster.kill(active)
            _create(cluster, f"after-kill-{number}")
            seconds.append(time.perf_counter() - begin)
            cluster.launch(active)
            cluster.wait_until_serving()
    return Spread.of(seconds)


def _create(cluster: ClusterProcesses, topic: str) -> None:
    with cluster.connect() as wire:
        until_accepted(
            lambda: wire.ask(create_topic_request(topic, 1), CREATE_TOPICS_VERSION).topics[0],
            CREATED,
        )
