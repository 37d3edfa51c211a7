"""`…/topics/{topic}/messages/live`: a live tail for people, as server-sent events.

Owns the rate at which records are shown, and the progress that is said each second. Invariants:
records come no faster than the client takes them; those beyond the rate are counted, not shown; the
id of each event is the position behind it, so that a client that gives the last one goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from moldau.client import ConsumerRecord, KafkaError, TopicPartition
from moldau.console.calls import Call, Stream
from moldau.console.own.message_query import (
    FILTER_PARAMETERS,
    FORMAT_PARAMETERS,
    MESSAGES,
    Asked,
    asked,
    from_parameter,
)
from moldau.console.own.records import (
    AT_ONCE,
    BUFFER_BYTES,
    EVENTS,
    FETCH_BYTES,
    LAST_EVENT_ID,
    MAX_ID_CHARACTERS,
    PART_BYTES,
)
from moldau.console.problems import Problem, problem_of
from moldau.console.reading import Budget, resumed, server_event, start_offsets
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import INTEGER

if TYPE_CHECKING:
    from moldau.client import Consumer

USUAL_RATE: Final = 200
MAX_RATE: Final = 5_000
SHOWN_BYTES: Final = 16 << 10
"""A key, a value and a header are cut there."""
SECOND_S: Final = 1.0


@dataclass(eq=False)
class Tail:
    """What a live tail has read and shown.

    Attributes:
        rate: records shown in a second at most.
        read: everything that has come, whether it is wanted or not.
        dropped: records that are wanted and were not shown.
    """

    asked: Asked
    rate: int
    read: Budget
    positions: dict[TopicPartition, int]
    dropped: int = 0
    _second_began_s: float = field(init=False)
    _came_in_second: int = 0

    def __post_init__(self) -> None:
        self._second_began_s = self.read.began_s

    def events(
        self, found: Mapping[TopicPartition, list[ConsumerRecord[bytes, bytes]]], now_s: float
    ) -> Iterator[bytes]:
        """The events of records and of the second that has passed, some of them at a time."""
        part = bytearray()
        for partition, records in found.items():
            for record in records:
                self.positions[partition] = record.offset + 1
                part += self._event(record)
                if len(part) >= PART_BYTES:
                    yield bytes(part)
                    part.clear()
        part += self._progress(now_s)
        if part:
            yield bytes(part)

    def wait_s(self, now_s: float) -> float:
        """How long it is until the next progress."""
        return max(0.0, self._second_began_s + SECOND_S - now_s)

    def catch_up(self, consumer: Consumer[bytes, bytes]) -> None:
        """Note the positions behind what was read and has no records."""
        for partition, position in consumer.positions().items():
            self.positions[partition] = max(self.positions.get(partition, 0), position.offset)

    def _event(self, record: ConsumerRecord[bytes, bytes]) -> bytes:
        self.read.take(record)
        is_wanted = self.asked.is_wanted
        if is_wanted is not None and not is_wanted(record):
            return b""
        self._came_in_second += 1
        if self._came_in_second > self.rate:
            self.dropped += 1
            return b""
        return server_event("record", orjson.dumps(self.asked.form(record)), self.positions)

    def _progress(self, now_s: float) -> bytes:
        elapsed_s = now_s - self._second_began_s
        if elapsed_s < SECOND_S:
            return b""
        report = {
            "read": {
                "records": self.read.read_records,
                "bytes": self.read.read_bytes,
                "seconds": round(now_s - self.read.began_s, 3),
            },
            "dropped": self.dropped,
            "rate_s": round(self._came_in_second / elapsed_s, 1),
        }
        self._second_began_s, self._came_in_second = now_s, 0
        return server_event("progress", orjson.dumps(report), self.positions)


async def follow_messages(call: Call) -> web.StreamResponse:
    """The records of a topic as they come, those that the filters want."""
    query, now_s = call.query, call.site.settings.now_s
    wanted = await asked(call, SHOWN_BYTES)
    call.line.goes_on()
    last_id = call.request.headers.get(LAST_EVENT_ID)
    if last_id and len(last_id) > MAX_ID_CHARACTERS:
        raise Problem(422, f"{LAST_EVENT_ID} is too long")
    names = wanted.partitions.values()
    positions = await start_offsets(
        wanted.clients.admin, names, query["from"], read_committed=wanted.is_committed
    )
    if last_id:
        positions |= resumed(last_id, names)
    settings = {
        "isolation_level": wanted.isolation,
        "fetch_buffer_bytes": BUFFER_BYTES,
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "auto_offset_reset": "earliest",  # what was deleted before it was read is left out
    }
    tail = Tail(wanted, query["rate"], Budget(None, None, None, now_s()), dict(positions))
    stream = Stream(call, EVENTS, {"X-Accel-Buffering": "no"})
    async with wanted.clients.consumer(**settings) as consumer:
        consumer.assign(names)
        for partition, at in positions.items():
            consumer.seek(partition, at)
        await stream.begin()
        try:
            await _follow(call, stream, consumer, tail)
            problem = Problem(401, "login needed: the session has ended")
        except KafkaError as error:
            problem = problem_of(error)
        document = problem.document(call.request.path, is_confluents=False)
        await stream.write(server_event("problem", orjson.dumps(document), tail.positions))
    return await stream.end()


async def _follow(call: Call, stream: Stream, consumer: Consumer[bytes, bytes], tail: Tail) -> None:
    """Write what comes, for as long as the person is let in. Raises: KafkaError."""
    now_s = call.site.settings.now_s
    while not call.is_over():
        found = await consumer.getmany(AT_ONCE, tail.wait_s(now_s()) * 1_000)
        if not found:
            tail.catch_up(consumer)
        for part in tail.events(found, now_s()):
            await stream.write(part)


_RATE: Final[Mapping[str, Any]] = {**INTEGER, "minimum": 1, "maximum": MAX_RATE}
ROUTES: Final = (
    Route(
        method="GET",
        path=f"{MESSAGES}/live",
        handler=follow_messages,
        name="followMessages",
        summary="A live tail of a topic: server-sent events, with the progress each second",
        needs="Read on the topic",
        query=(
            from_parameter("latest"),
            *FILTER_PARAMETERS,
            *FORMAT_PARAMETERS,
            Parameter("rate", "Show at most so many records a second.", _RATE, default=USUAL_RATE),
        ),
        content_type=EVENTS,
        is_stream=True,
    ),
)
