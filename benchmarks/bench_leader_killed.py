"""A partition's leader is killed: time until a produce with acks=all succeeds again.

A controller and three brokers, replication factor 3, Kafka's default timeouts on both, `kill -9` of
the leader's broker. Two clients produce to the partition: a raw one that asks a survivor who leads
and tries at once, and confluent-kafka with its defaults, in the middle of a stream. Between two
kills the broker is started again and comes back into sync. Most of what is measured is the broker's
session: 9 s from its last heartbeat, which come every 2 s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.clusters import ClusterProcesses, clusters, in_changing_order
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.replicated_load import REPLICATION_FACTOR, VALUE
from benchmarks.wire import PRODUCE_VERSION, Wire, single_record
from moldau.cli.bench.figures import produce_request

KILLS: Final = 6
EMERGENCIES_ONLY: Final = 0
TOPIC: Final = "led"
PAUSE_S: Final = 0.005
STREAM_PAUSE_S: Final = 0.02
GIVE_UP_S: Final = 90.0
LIMIT: Final = 1.0


@dataclass(slots=True)
class _Seconds:
    """From just before each kill to the answer, by client."""

    raw: list[float] = field(default_factory=list)
    confluent: list[float] = field(default_factory=list)


def run(effort: Effort) -> Report:
    """Kills by turns."""
    report = Report("Leader of a partition killed: time to the next acknowledged produce")
    with clusters(effort) as sides:
        seconds = {cluster.name: _Seconds() for cluster in sides}
        for cluster in sides:
            with cluster.connect() as wire:
                wire.create_topic(TOPIC, replication_factor=REPLICATION_FACTOR)
        for number in range(effort.count(KILLS)):
            for cluster in in_changing_order(sides, number):
                _kill_leader(cluster, seconds[cluster.name])
    _tell(report, seconds)
    if len(sides) == 1:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _kill_leader(cluster: ClusterProcesses, seconds: _Seconds) -> None:
    cluster.wait_for_replicas(TOPIC, REPLICATION_FACTOR)
    with cluster.connect() as wire:
        leader_id = wire.partitions(TOPIC)[0].leader_id
    survivors = [each for each in cluster.broker_ids if each != leader_id]
    with _Stream(cluster) as stream:
        stream.wait_for_delivery(time.perf_counter())
        begin = time.perf_counter()
        cluster.kill(leader_id)
        _produce(cluster, survivors, leader_id)
        seconds.raw.append(time.perf_counter() - begin)
        seconds.confluent.append(stream.wait_for_delivery(begin) - begin)
    cluster.launch(leader_id)
    cluster.wait_until_serving()


def _produce(cluster: ClusterProcesses, survivors: Sequence[int], killed_id: int) -> None:
    """As a client does that wants it quickly: the broker that is said to lead is asked at once."""
    deadline = time.monotonic() + GIVE_UP_S
    with cluster.connect(survivors[0]) as first, cluster.connect(survivors[1]) as second:
        wires = dict(zip(survivors, (first, second), strict=True))
        while time.monotonic() < deadline:
            leader_id = first.partitions(TOPIC)[0].leader_id
            if leader_id in wires and _is_accepted(wires[leader_id]):
                return
            time.sleep(PAUSE_S)
    raise TimeoutError(f"{cluster.name}: no produce succeeds since {killed_id} was killed")


def _is_accepted(wire: Wire) -> bool:
    request = produce_request(TOPIC, {0: single_record(VALUE)})
    answer = wire.ask(request, PRODUCE_VERSION)
    return bool(answer.responses[0].partition_responses[0].error_code == 0)


class _Stream:
    """confluent-kafka producing a record every 20 ms from a thread. Use as a context."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._bootstrap = cluster.bootstrap
        self._name = cluster.name
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._is_ended = False
        self._news = threading.Condition()
        self._deliveries: list[tuple[float, float]] = []
        """Of every delivered record: when it was produced, when it was delivered."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended = True
        self._thread.join(GIVE_UP_S)

    def wait_for_delivery(self, after: float) -> float:
        """When the first record was delivered that was produced `after`. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: self._deliveries[-1:] > [(after, 0.0)], GIVE_UP_S):
                raise TimeoutError(f"{self._name}: confluent-kafka delivers nothing")
            return min(at for produced, at in self._deliveries if produced > after)

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "acks": "all", "log_level": EMERGENCIES_ONLY}
        )
        while not self._is_ended:
            produced = time.perf_counter()
            producer.produce(
                TOPIC,
                VALUE,
                partition=0,
                on_delivery=lambda error, _, produced=produced: self._delivered(error, produced),
            )
            producer.poll(STREAM_PAUSE_S)
        producer.flush(GIVE_UP_S)

    def _delivered(self, error: object, produced: float) -> None:
        if error is None:
            with self._news:
                self._deliveries.append((produced, time.perf_counter()))
                self._news.notify_all()


def _tell(report: Report, seconds: dict[str, _Seconds]) -> None:
    table = Table(("seconds", "kills", "raw client", "confluent-kafka"))
    spreads = {
        side: (Spread.of(found.raw), Spread.of(found.confluent)) for side, found in seconds.items()
    }
    for side, (raw, confluent) in spreads.items():
        table.add(side, str(len(raw.values)), raw.text(), confluent.text())
    if len(spreads) > 1:
        ours, theirs = spreads.values()
        ratios = [mine.per(peer) for mine, peer in zip(ours, theirs, strict=True)]
        table.add("ratio", "", *(ratio.text() for ratio in ratios))
        for client, ratio in zip(("raw client", "confluent-kafka"), ratios, strict=True):
            report.targets.append(
                at_most(f"leader killed, next produce, {client}: ≤ Apache Kafka's", ratio, LIMIT)
            )
    report.tables.append(table)
