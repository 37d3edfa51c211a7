"""The program against a real node, and against three brokers of which one dies."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, Producer
from late_flights import LateFlights


def send(servers: str, topic: str, **delays: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for flight, delay_min in delays.items():
        producer.produce(topic, json.dumps({"delay_min": delay_min}), key=flight)
    assert producer.flush(30) == 0


def keys_of(servers: str, topic: str, count: int) -> set[str]:
    """The keys of the first records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=30)
    finally:
        consumer.close()
    return {message.key().decode() for message in messages}


def run(servers: str, source: str, target: str, count: int) -> None:
    """The program, until it has taken so many flights."""
    with LateFlights(servers, source, target) as program:
        for _ in range(count):
            while not program.step():
                pass


def test_only_late_flights_are_copied(moldau_cluster, moldau_topics):
    servers, source, target = moldau_cluster.bootstrap_server, moldau_topics(3), moldau_topics()
    send(servers, source, UA1545=2, AA1141=33, B6725=-18, DL461=15)
    run(servers, source, target, 4)
    assert keys_of(servers, target, 2) == {"AA1141", "DL461"}


@pytest.mark.moldau(brokers=3)
def test_flights_are_copied_while_a_broker_is_dead(moldau_cluster, moldau_topics):
    servers, source, target = moldau_cluster.bootstrap_server, moldau_topics(3), moldau_topics()
    send(servers, source, UA1545=20)
    moldau_cluster.kill(3)
    try:
        send(servers, source, AA1141=33)
        run(servers, source, target, 2)
        assert keys_of(servers, target, 2) == {"UA1545", "AA1141"}
    finally:
        moldau_cluster.restart(3)
