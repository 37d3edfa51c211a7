"""A web service that writes flights into a topic, and answers from what it has read of the topic.

    uvicorn flights_api:app

`BOOTSTRAP_SERVERS` names the cluster (localhost:9092), `FLIGHTS_TOPIC` the topic (flights).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from moldau.client import Consumer, Producer, TopicPartition


class Flight(BaseModel):
    """What a client posts."""

    flight: str
    carrier: str
    delay_min: int


class Delays:
    """How many flights of each carrier there were, and their delays in all."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.sums: dict[str, int] = defaultdict(int)

    async def follow(self, consumer: Consumer) -> None:
        """Count every flight of the topic, until cancelled."""
        async for record in consumer:
            flight = json.loads(record.value)
            self.counts[flight["carrier"]] += 1
            self.sums[flight["carrier"]] += flight["delay_min"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """A producer and a consumer for as long as the service runs. Each instance of the service reads
    the whole topic, so the consumer has no group.
    """
    servers = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")
    topic = os.environ.get("FLIGHTS_TOPIC", "flights")
    delays = Delays()
    async with (
        Producer(servers) as producer,
        Consumer(servers, auto_offset_reset="earliest") as consumer,
    ):
        partitions = await producer.partitions_for(topic)
        consumer.assign([TopicPartition(topic, each) for each in partitions])
        reading = asyncio.create_task(delays.follow(consumer))
        app.state.topic, app.state.producer = topic, producer
        app.state.delays, app.state.reading = delays, reading
        yield
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


app = FastAPI(lifespan=lifespan)


@app.post("/flights", status_code=201)
async def add(flight: Flight) -> dict[str, int]:
    """Answer when the record is acknowledged, with where it is."""
    written = await app.state.producer.send(
        app.state.topic, flight.model_dump_json().encode(), key=flight.carrier.encode()
    )
    return {"partition": written.partition, "offset": written.offset}


@app.get("/carriers/{carrier}")
async def mean_delay(carrier: str) -> dict[str, float]:
    """The mean delay of a carrier's flights so far."""
    if app.state.reading.done():
        raise HTTPException(503, f"the topic is read no more: {app.state.reading.exception()!r}")
    delays: Delays = app.state.delays
    if carrier not in delays.counts:
        raise HTTPException(404, f"no flight of {carrier} so far")
    count = delays.counts[carrier]
    return {"flights": count, "mean_delay_min": delays.sums[carrier] / count}
