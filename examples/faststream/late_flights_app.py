"""Copies late flights from one topic to another, with FastStream and librdkafka.

    faststream run late_flights_app:app

`BOOTSTRAP_SERVERS` names the cluster (localhost:9092), `PREFIX` begins the names of the topics.
"""

from __future__ import annotations

import os

from faststream import FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel

LATE_MIN = 15
PREFIX = os.environ.get("PREFIX", "")

broker = KafkaBroker(os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"))
app = FastStream(broker)
late_flights = broker.publisher(PREFIX + "late-flights")


class Flight(BaseModel):
    """A record of both topics, as JSON."""

    flight: str
    delay_min: int


@broker.subscriber(PREFIX + "flights", group_id="late-flights", auto_offset_reset="earliest")
async def sort_out(flight: Flight) -> None:
    """Copy the flight if it is late."""
    if flight.delay_min >= LATE_MIN:
        await late_flights.publish(flight)
