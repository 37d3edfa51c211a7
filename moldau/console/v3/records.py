"""`…/topics/{topic_name}/records`: records are produced, as many as one request has.

A body is of JSON objects one after the other, each a record; the answer has one object for each, in
their order, while the body still comes. Invariants: what has not been acknowledged, and what has
not been read by the client, is bounded; a record that fails says so and stops no other one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from moldau.client import BufferFull, KafkaError
from moldau.console.calls import JSON, Call, Stream
from moldau.console.concatenated import JsonObjects, NotObjects
from moldau.console.problems import Problem, as_confluents, confluent_number, problem_of
from moldau.console.routes import Route
from moldau.console.schemas import (
    ANY,
    INTEGER,
    STRING,
    check,
    named,
    nullable,
    one_of,
    record,
)
from moldau.console.v3.shapes import BASE, MAX_NUMBER

if TYPE_CHECKING:
    from moldau.client import Delivery, Producer

MAX_OBJECT_BYTES: Final = 4 << 20
"""One record in JSON; Base64 makes a megabyte 1.4."""
MAX_UNDER_WAY: Final = 1_000
"""Records of one request without an acknowledgement."""
MAX_UNREAD_BYTES: Final = 1 << 20
"""Reports of one request that its client has not read."""
MAX_TIME_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds since 1970."""
BINARY, TEXT, TYPE_JSON = "BINARY", "STRING", "JSON"
SENT: Final = 200

_DATA: Final = {
    "type": ["object", "null"],
    "properties": {"type": nullable(one_of(BINARY, TYPE_JSON, TEXT)), "data": ANY},
}
RECORD: Final = record(
    {},
    {
        "partition_id": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_NUMBER},
        "headers": {
            "type": ["array", "null"],
            "maxItems": 10_000,
            "items": record({"name": STRING}, {"value": nullable(STRING)}),
        },
        "key": _DATA,
        "value": _DATA,
        "timestamp": {"type": ["string", "integer", "null"]},
    },
)
_REPORTED: Final = {
    "type": ["object", "null"],
    "properties": {"type": nullable(STRING), "size": INTEGER},
}
REPORT: Final = named(
    "ProduceResponse",
    record(
        {"error_code": INTEGER},
        {
            "cluster_id": STRING,
            "topic_name": STRING,
            "partition_id": INTEGER,
            "offset": INTEGER,
            "timestamp": nullable(STRING),
            "key": _REPORTED,
            "value": _REPORTED,
            "message": STRING,
        },
    ),
)


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One record as bytes, and what its parts were in JSON."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None
    key_type: str | None
    value_type: str | None


def record_of(raw: bytes) -> NewRecord:
    """The record of a JSON object. Raises: Problem."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"a record is no JSON: {error}") from None
    check(given, RECORD, "the record")
    key, key_type = _part(given.get("key"), "key")
    value, value_type = _part(given.get("value"), "value")
    headers = tuple(
        (each["name"], _decoded(each.get("value"), f"header {each['name']}"))
        for each in given.get("headers") or ()
    )
    timestamp_ms = _time_ms(given.get("timestamp"))
    return NewRecord(
        key, value, headers, given.get("partition_id"), timestamp_ms, key_type, value_type
    )


def _part(given: Mapping[str, Any] | None, what: str) -> tuple[bytes | None, str | None]:
    """The bytes of a key or value, and its type."""
    if given is None:
        return None, None
    kind, data = given.get("type"), given.get("data")
    if kind is None:
        raise Problem(422, f"the {what} needs a type: {BINARY}, {TYPE_JSON} or {TEXT}")
    if kind == TYPE_JSON:
        return (None if "data" not in given else orjson.dumps(data)), kind
    if data is not None and not isinstance(data, str):
        raise Problem(422, f"the {what}'s data has to be text, as its type is {kind}")
    if kind == TEXT:
        return (None if data is None else data.encode()), kind
    return _decoded(data, what), kind


def _decoded(text: str | None, what: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"the {what} is no Base64") from None


def _time_ms(given: str | int | None) -> int | None:
    """Milliseconds since 1970 of a time as ISO 8601 has it."""
    if given is None or isinstance(given, int):
        return given
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise Problem(422, "the timestamp is not like 2026-11-30T22:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _time_text(timestamp_ms: int) -> str | None:
    """The time as ISO 8601 has it; None for one that it does not have: after the year 9999."""
    if timestamp_ms > MAX_TIME_MS:
        return None
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(eq=False)
class _Reports:
    """The outcomes of records in their order, and their way to the client."""

    call: Call
    cluster_id: str
    stream: Stream
    _under_way: asyncio.Queue[tuple[NewRecord, Delivery] | Problem | None] = field(
        default_factory=lambda: asyncio.Queue(MAX_UNDER_WAY)
    )
    _unread: bytearray = field(default_factory=bytearray)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _is_complete: bool = False

    async def add(self, sent: tuple[NewRecord, Delivery] | Problem | None) -> None:
        """A record that was sent, or why it was not; None: nothing more comes."""
        await self._under_way.put(sent)

    async def collect(self) -> None:
        """Wait for the outcomes, one after the other."""
        while (sent := await self._under_way.get()) is not None:
            report = orjson.dumps(await self._report(sent))
            while len(self._unread) > MAX_UNREAD_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
            self._unread += report + b"\n"
            self._changed.set()
        self._is_complete = True
        self._changed.set()

    async def write(self) -> None:
        """Write what has come, as the client reads it."""
        while not (self._is_complete and not self._unread):
            await self._changed.wait()
            self._changed.clear()
            part = bytes(self._unread)
            if part:
                self._unread.clear()
                self._has_room.set()
                await self.stream.write(part)

    async def _report(self, sent: tuple[NewRecord, Delivery] | Problem) -> dict[str, Any]:
        if isinstance(sent, Problem):
            return _refused(sent)
        made, delivery = sent
        try:
            found = await delivery
        except KafkaError as error:
            return _refused(problem_of(error))
        return {
            "error_code": SENT,
            "cluster_id": self.cluster_id,
            "topic_name": found.topic,
            "partition_id": found.partition,
            "offset": found.offset,
            "timestamp": _time_text(found.timestamp_ms),
            "key": _size(made.key, made.key_type),
            "value": _size(made.value, made.value_type),
        }


def _size(data: bytes | None, kind: str | None) -> dict[str, Any] | None:
    return None if kind is None else {"type": kind, "size": len(data or b"")}


def _refused(problem: Problem) -> dict[str, Any]:
    shown = as_confluents(problem)
    return {"error_code": confluent_number(shown), "message": shown.detail}


async def produce(call: Call) -> web.StreamResponse:
    """Produce the records of the body."""
    clients, cluster_id = await call.clients(), await call.cluster_id()
    name = call.path["topic_name"]
    await clients.admin.describe_topics([name])  # none is made by a name that is mistyped
    producer = await clients.producer()
    stream = Stream(call, JSON)
    await stream.begin()
    reports = _Reports(call, cluster_id, stream)
    working = [asyncio.create_task(each) for each in (reports.collect(), reports.write())]
    try:
        await _send_all(call, producer, name, reports)
        await reports.add(None)
        await asyncio.gather(*working)
    finally:
        for each in working:
            each.cancel()
        await asyncio.wait(working)
    return await stream.end()


async def _send_all(
    call: Call, producer: Producer[bytes, bytes], name: str, reports: _Reports
) -> None:
    """Send each record as soon as it has come."""
    objects = JsonObjects(MAX_OBJECT_BYTES)
    try:
        async for part in call.chunks():
            for raw in objects.feed(part):
                await reports.add(await _send(producer, name, raw))
            if call.is_over():
                await reports.add(Problem(401, "the session has ended"))
                return
        objects.end()
    except NotObjects as error:
        await reports.add(Problem(400, str(error)))


async def _send(
    producer: Producer[bytes, bytes], name: str, raw: bytes
) -> tuple[NewRecord, Delivery] | Problem:
    try:
        made = record_of(raw)
        while True:
            try:
                delivery = producer.send_nowait(
                    name,
                    made.value,
                    key=made.key,
                    headers=made.headers,
                    partition=made.partition,
                    timestamp_ms=made.timestamp_ms,
                )
            except BufferFull:
                await producer.wait_for_room()
                continue
            return made, delivery
    except Problem as problem:
        return problem
    except KafkaError as error:
        return problem_of(error)


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{BASE}/topics/{{topic_name}}/records",
        handler=produce,
        name="produceRecord",
        summary="Produce records: JSON objects one after the other, and a report for each",
        needs="Write and Describe on the topic",
        answer=REPORT,
        reads_body=True,
        is_stream=True,
    ),
)
