"""FastStream's own test broker, on a real node: `with_real=True`."""

from __future__ import annotations

import uuid

import pytest
from faststream.confluent import TestKafkaBroker


@pytest.fixture
def program(moldau_cluster, moldau_topics, monkeypatch):
    monkeypatch.setenv("BOOTSTRAP_SERVERS", moldau_cluster.bootstrap_server)
    monkeypatch.setenv("PREFIX", f"{uuid.uuid4().hex}-")
    import late_flights_app

    return late_flights_app


async def test_late_flights_are_copied(program):
    copied = []

    @program.broker.subscriber(
        program.PREFIX + "late-flights", group_id="test", auto_offset_reset="earliest"
    )
    async def hear(flight: program.Flight) -> None:
        copied.append(flight.flight)

    async with TestKafkaBroker(program.broker, with_real=True) as broker:
        for flight, delay_min in (("UA1545", 2), ("AA1141", 33)):
            sent = program.Flight(flight=flight, delay_min=delay_min)
            await broker.publish(sent, topic=program.PREFIX + "flights")
        await hear.wait_call(timeout=30)
    assert copied == ["AA1141"]
