"""`…/topics/{topic}/records`: records as they come, for programs.

Server-sent events, whose ids are the positions behind each record, so that a client that shows the
last one (`Last-Event-ID`) goes on exactly there; or lines of JSON over one long GET, for `curl -N`.
Invariants: nothing is read from the cluster faster than the client takes it; a client that has
gone, or whose login has ended, is read for no longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from moldau.client import ConsumerRecord, KafkaError, TopicPartition
from moldau.console.calls import Call, Stream
from moldau.console.problems import Problem, problem_of
from moldau.console.reading import (
    FROM,
    Budget,
    end_offsets,
    partitions_of,
    resumed,
    server_event,
    shown_record,
    start_offsets,
)
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, one_of

if TYPE_CHECKING:
    from moldau.client import Consumer

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
SSE, NDJSON = "sse", "ndjson"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LAST_EVENT_ID: Final = "Last-Event-ID"
MAX_ID_CHARACTERS: Final = 1 << 20
MAX_PARTITIONS: Final = 1_000
AT_ONCE: Final = 500
"""Records that are taken from the consumer at a time."""
PART_BYTES: Final = 64 * 1024
"""So much is written at a time."""
BEAT_S: Final = 5.0
"""A stream without a record shows so often that it goes on."""
BUFFER_BYTES: Final = str(512 << 10)
"""What a reader's consumer holds of records that have not been written."""
FETCH_BYTES: Final = str(256 << 10)
"""What it asks a broker for at a time; a larger batch comes whole."""
MAX_SHOWN_BYTES: Final = 16 << 20


@dataclass(eq=False)
class _Form:
    """How records are written.

    Attributes:
        is_events: as server-sent events; else as lines.
        limit_bytes: of a key, a value, a header that is shown.
    """

    is_events: bool
    limit_bytes: int
    positions: dict[TopicPartition, int]

    def record(self, record: ConsumerRecord[bytes, bytes]) -> bytes:
        """A record, and where to go on behind it."""
        self.positions[record.topic_partition] = record.offset + 1
        return self._event("record", orjson.dumps(shown_record(record, self.limit_bytes)))

    def beat(self, consumer: Consumer[bytes, bytes]) -> bytes:
        """That the stream goes on, and from where: what was read may have no records."""
        for partition, position in consumer.positions().items():
            at = self.positions.get(partition, 0)
            self.positions[partition] = max(at, position.offset)
        return self._event("progress", b"{}") if self.is_events else b"\n"

    def end(self, report: dict[str, Any]) -> bytes:
        """What was read, as the last thing."""
        return self._event("end", orjson.dumps({"read": report}))

    def problem(self, problem: Problem, path: str) -> bytes:
        """Why nothing more comes."""
        document = problem.document(path, is_confluents=False)
        return self._event("problem", orjson.dumps({"problem": document}))

    def _event(self, name: str, data: bytes) -> bytes:
        if not self.is_events:
            return data + b"\n"
        return server_event(name, data, self.positions)


async def stream_records(call: Call) -> web.StreamResponse:
    """The records of a topic, from where the client says or was."""
    clients, query = await call.clients(), call.query
    is_committed = query["isolation"] == COMMITTED
    partitions = await partitions_of(clients.admin, call.path["topic"], query["partition"])
    if len(partitions) > MAX_PARTITIONS:
        raise Problem(422, f"choose at most {MAX_PARTITIONS} partitions")
    call.line.goes_on()  # what the cluster takes is not the client's time
    last_id = call.request.headers.get(LAST_EVENT_ID)
    positions = await start_offsets(
        clients.admin,
        partitions,
        "earliest" if last_id else query["from"],
        read_committed=is_committed,
    )
    if last_id:
        if len(last_id) > MAX_ID_CHARACTERS:
            raise Problem(422, f"{LAST_EVENT_ID} is too long")
        positions |= resumed(last_id, partitions)
    ends = None
    if query["until_end"]:
        ends = await end_offsets(clients.admin, partitions, read_committed=is_committed)
    budget = Budget(
        query["max_records"], query["max_bytes"], query["max_seconds"], call.site.settings.now_s()
    )
    form = _Form(_wants_events(call), query["max_value_bytes"], dict(positions))
    stream = Stream(call, EVENTS if form.is_events else LINES, {"X-Accel-Buffering": "no"})
    settings = {
        "isolation_level": query["isolation"],
        "fetch_buffer_bytes": BUFFER_BYTES,
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": FETCH_BYTES,
    }
    call.line.goes_on()
    async with clients.consumer(**settings) as consumer:
        consumer.assign(partitions)
        for partition, at in positions.items():
            consumer.seek(partition, at)
        await stream.begin()
        try:
            await _write_all(call, stream, consumer, form, budget, ends)
        except KafkaError as error:
            problem = problem_of(error)
            if call.is_over():
                problem = Problem(401, "login needed: the session has ended")
            await stream.write(form.problem(problem, call.request.path))
    return await stream.end()


async def _write_all(
    call: Call,
    stream: Stream,
    consumer: Consumer[bytes, bytes],
    form: _Form,
    budget: Budget,
    ends: dict[TopicPartition, int] | None,
) -> None:
    """Write records as they come, until the budget or the end. Raises: KafkaError."""
    now_s = call.site.settings.now_s
    while True:
        if call.is_over():
            problem = Problem(401, "login needed: the session has ended")
            await stream.write(form.problem(problem, call.request.path))
            return
        if _has_reached(consumer, ends) or budget.is_spent(now_s()):
            break
        wait_s = budget.left_s(now_s(), BEAT_S if ends is None else 0.2)
        found = await consumer.getmany(budget.left_records(AT_ONCE), wait_s * 1000)
        if not found:
            if ends is None:
                await stream.write(form.beat(consumer))
            continue
        for part in _parts(found, form, budget, ends):
            await stream.write(part)
    report = budget.report(now_s(), is_complete=budget.stopped_by == "end")
    await stream.write(form.end(report))


def _parts(
    found: dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]],
    form: _Form,
    budget: Budget,
    ends: dict[TopicPartition, int] | None,
) -> Iterator[bytes]:
    """What is written for records, some at a time."""
    part = bytearray()
    for partition, records in found.items():
        for record in records:
            if ends is not None and record.offset >= ends[partition]:
                continue
            if budget.size_bytes is not None and budget.read_bytes >= budget.size_bytes:
                break
            budget.take(record)
            part += form.record(record)
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def _has_reached(consumer: Consumer[bytes, bytes], ends: dict[TopicPartition, int] | None) -> bool:
    """Whether everything up to the ends has been read."""
    if ends is None:
        return False
    positions = consumer.positions()
    return all(
        end == 0 or (partition in positions and positions[partition].offset >= end)
        for partition, end in ends.items()
    )


def _wants_events(call: Call) -> bool:
    if call.query["format"] is not None:
        return bool(call.query["format"] == SSE)
    return EVENTS in call.request.headers.get("Accept", "")


def _at_least(number: int, most: int | None = None) -> dict[str, Any]:
    return {**INTEGER, "minimum": number} | ({} if most is None else {"maximum": most})


PARAMETERS: Final = (
    Parameter(
        "from",
        "Where to begin: earliest, latest, offset:N, timestamp:MS, or last:N of each partition.",
        {"type": "string", "pattern": FROM},
        default="latest",
    ),
    Parameter("partition", "Only these, separated by commas.", array(STRING, most=MAX_PARTITIONS)),
    Parameter(
        "isolation", "As consumers have it.", one_of(COMMITTED, UNCOMMITTED), default=COMMITTED
    ),
)
ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/clusters/{cluster_id}/topics/{topic}/records",
        handler=stream_records,
        name="streamRecords",
        summary="Records as they come: server-sent events, or a line of JSON for each",
        needs="Read on the topic",
        query=(
            *PARAMETERS,
            Parameter(
                "format",
                "sse or ndjson; without it server-sent events where `Accept` asks for them.",
                one_of(SSE, NDJSON),
            ),
            Parameter(
                "until_end",
                "Whether to stop where the topic ends now.",
                BOOLEAN,
                default=False,
            ),
            Parameter("max_records", "Stop after so many records.", _at_least(1)),
            Parameter("max_bytes", "Stop after so many bytes of keys and values.", _at_least(1)),
            Parameter("max_seconds", "Stop after so many seconds.", _at_least(1, 86_400)),
            Parameter(
                "max_value_bytes",
                "Cut keys, values and headers there.",
                _at_least(0, MAX_SHOWN_BYTES),
                default=MAX_SHOWN_BYTES,
            ),
        ),
        content_type=LINES,
        is_stream=True,
    ),
)
