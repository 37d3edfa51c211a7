"""Loads on topics with three replicas: to the leaders' own brokers, or by confluent-kafka.

Owns one turn: a fresh topic with everything in sync, the load, the topic's end. Invariant: every
cluster gets the same requests over as many connections, one for each broker that leads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.clusters import ClusterProcesses
from benchmarks.nodes import HOST, warm_page_cache
from benchmarks.processes import run_load
from benchmarks.sender import SendOrder
from benchmarks.senders import SendersOrder, SendersOutcome
from moldau.cli.bench.figures import payload
from moldau.protocol.messages.p03_metadata import MetadataResponsePartition

REPLICATION_FACTOR: Final = 3
RECORD_BYTES: Final = 1024
IN_FLIGHT_COUNT: Final = 5
"""What Kafka's idempotent producers allow themselves."""

WARM_UP_SHARE: Final = 4
"""A quarter as many requests as are timed go before."""

TOPIC: Final = "replicated"
PATIENCE_S: Final = 60.0
VALUE: Final = payload(RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class Turn:
    """A topic that is ready: who leads what."""

    cluster: ClusterProcesses
    leaders: Mapping[int, list[int]]
    """Broker → the partitions it leads."""

    producer_id: int
    producer_epoch: int


@contextlib.contextmanager
def replicated_topic(cluster: ClusterProcesses, partition_count: int) -> Iterator[Turn]:
    """A topic of three replicas, all in sync, with a record; deleted with its files afterwards."""
    with cluster.connect() as wire:
        wire.create_topic(TOPIC, partition_count, replication_factor=REPLICATION_FACTOR)
        cluster.wait_for_replicas(TOPIC, REPLICATION_FACTOR)
        producer_id, producer_epoch = wire.producer_id()
        leaders = _by_leader(wire.partitions(TOPIC))
    for broker_id, partitions in leaders.items():
        with cluster.connect(broker_id) as wire:
            wire.produce_one_each(TOPIC, partitions, VALUE)
    yield Turn(cluster, leaders, producer_id, producer_epoch)
    cluster.delete_topic(TOPIC)


def _by_leader(partitions: list[MetadataResponsePartition]) -> dict[int, list[int]]:
    leaders: dict[int, list[int]] = {}
    for partition in partitions:
        leaders.setdefault(partition.leader_id, []).append(partition.partition_index)
    return leaders


def send(
    cluster: ClusterProcesses, *, partition_count: int, batch_bytes: int, request_count: int
) -> SendersOutcome:
    """One turn of the lean producer: `request_count` requests of one batch each, after a warm-up.

    The servers of the outcome are the brokers, by id.
    """
    warm_up_count = max(1, request_count // WARM_UP_SHARE)
    all_bytes = (warm_up_count + request_count) * batch_bytes * REPLICATION_FACTOR
    warm_page_cache(cluster.directory, all_bytes)
    with replicated_topic(cluster, partition_count) as turn:
        orders = []
        for broker_id, partitions in turn.leaders.items():
            share = len(partitions) / partition_count
            orders.append(
                SendOrder(
                    host=HOST,
                    port=cluster.port(broker_id),
                    server_pid=cluster.pid(broker_id),
                    topic=TOPIC,
                    record_bytes=RECORD_BYTES,
                    batch_bytes=batch_bytes,
                    warm_up_count=max(1, int(warm_up_count * share)),
                    request_count=max(1, int(request_count * share)),
                    in_flight_count=IN_FLIGHT_COUNT,
                    producer_id=turn.producer_id,
                    producer_epoch=turn.producer_epoch,
                    partitions=partitions,
                )
            )
        pids = {str(broker_id): cluster.pid(broker_id) for broker_id in cluster.broker_ids}
        return run_load("senders", SendersOrder(orders, pids), SendersOutcome)


def send_by_confluent(
    cluster: ClusterProcesses, *, partition_count: int, record_count: int
) -> float:
    """MB/s of record values that confluent-kafka gets acknowledged, acks=all, idempotent."""
    with replicated_topic(cluster, partition_count):
        seconds = confluent_seconds(cluster.bootstrap, TOPIC, partition_count, VALUE, record_count)
    return record_count * RECORD_BYTES / seconds / 1e6


def confluent_seconds(
    bootstrap: str, topic: str, partition_count: int, value: bytes, record_count: int
) -> float:
    """How long confluent-kafka takes until all of its records are acknowledged."""
    from confluent_kafka import Producer

    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    begin = time.perf_counter()
    for number in range(record_count):
        while True:
            try:
                producer.produce(
                    topic, value, partition=number % partition_count, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(PATIENCE_S)
    seconds = time.perf_counter() - begin
    assert not left, f"{left} records were not delivered"
    assert not failures, f"not delivered: {failures[0]}"
    return seconds
