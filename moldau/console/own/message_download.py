"""`…/topics/{topic}/messages/download`: what a search finds, as a file.

JSON lines and CSV are written here, Arrow and Parquet by a child process (`table_child`). Owns the
lines of these files, and how many children there are. Invariants: no more is in memory than what
came with one fetch and one batch of a table; a file that is cut by the budget says so at its end;
one that could not be read to its end is broken off, so that no client takes it for whole.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final

import orjson
from aiohttp import web

from moldau.client import ConsumerRecord, KafkaError, TimestampType
from moldau.console.calls import Call, Stream
from moldau.console.own.message_forms import AUTO, BASE64, HEX, Form, record_form
from moldau.console.own.message_query import (
    BUDGET_PARAMETERS,
    FILTER_PARAMETERS,
    FORMAT_PARAMETERS,
    MESSAGES,
    asked,
    budget_of,
)
from moldau.console.own.message_search import EARLIEST, Search, first_parts, search_settings
from moldau.console.problems import RETRY, Problem
from moldau.console.reading import FROM, start_offsets
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import one_of
from moldau.console.table_child import ARROW, PARQUET, Row, Wanted, framed
from moldau.runtime.child_process import ChildLost, ChildProcess

JSON_LINES, CSV = "jsonl", "csv"
CONTENT_TYPES: Final = {
    JSON_LINES: "application/x-ndjson",
    CSV: "text/csv",
    ARROW: "application/vnd.apache.arrow.file",
    PARQUET: "application/vnd.apache.parquet",
}
RAW: Final = (AUTO, HEX)
"""Formats whose keys and values stay bytes in a table."""
CHILD: Final = "moldau.console.table_child"
MAX_CHILDREN: Final = 4
WHOLE_BYTES: Final = 1 << 30
"""A part of a record is not cut."""
READ_BYTES: Final = 256 << 10
LONGER: Final = 10
"""A download may take so many times as long as a search: its client takes it during that time."""
CSV_FIELDS: Final = (
    "partition",
    "offset",
    "timestamp_ms",
    "key_encoding",
    "key",
    "value_encoding",
    "value",
    "headers",
)
_CHILDREN: Final[set[ChildProcess]] = set()


@dataclass(eq=False)
class Rows:
    """What has been found and is not written yet: everything that is wanted."""

    found: list[Any] = field(default_factory=list)
    over: Collection[int] = ()

    def see(
        self, _partition: int, _record_offset: int, _time_ms: int, make: Callable[[], Any] | None
    ) -> None:
        """Keep what is wanted until it is taken."""
        if make is not None:
            self.found.append(make())

    def take(self) -> list[Any]:
        """What has been found since the last time."""
        found, self.found = self.found, []
        return found


@dataclass(eq=False)
class _File:
    """The answer, which begins with the first bytes of the file: until then a problem can be."""

    stream: Stream
    is_begun: bool = False

    async def write(self, part: bytes) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self.stream.begin()
        if part:
            await self.stream.write(part)


async def download_messages(call: Call) -> web.StreamResponse:
    """The records that a search finds, as a file."""
    query, kind = call.query, call.query["format"]
    wanted = await asked(call, WHOLE_BYTES)
    is_table = kind in (ARROW, PARQUET)
    if is_table and find_spec("pyarrow") is None:
        raise Problem(501, f"{kind} needs pyarrow: pip install 'moldau[arrow]'")
    are_texts = query["key_format"] not in RAW, query["value_format"] not in RAW
    budget = budget_of(call)
    if budget.seconds is not None and not query["max_seconds"]:
        budget.seconds *= LONGER
    starts = await start_offsets(
        wanted.clients.admin,
        wanted.partitions.values(),
        EARLIEST,
        read_committed=wanted.is_committed,
    )
    firsts = {each: starts[name] for each, name in wanted.partitions.items()}
    parts = await first_parts(wanted, query["from"], firsts)
    wanted = replace(wanted, form=_form(call, kind, are_texts))
    headers = {"Content-Disposition": f'attachment; filename="{wanted.topic}.{kind}"'}
    stream = Stream(call, CONTENT_TYPES[kind], headers)
    if kind != CSV:
        stream.response.charset = None
    file = _File(stream)
    call.line.goes_on()
    async with wanted.clients.consumer(**search_settings(wanted)) as consumer:
        consumer.assign(wanted.partitions.values())
        search = Search(call, wanted, consumer, budget, parts)
        try:
            if is_table:
                await _write_table(search, file, Wanted(kind, *are_texts))
            else:
                await _write_lines(search, file, kind)
            await file.write(b"")
        except (KafkaError, ChildLost) as error:
            if not file.is_begun:
                if isinstance(error, KafkaError):
                    raise
                raise Problem(503, f"the table could not be made: {error}", *RETRY) from None
            if call.request.transport is not None:
                call.request.transport.abort()
            return stream.response
    return await stream.end()


def _form(
    call: Call, kind: str, are_texts: tuple[bool, bool]
) -> Callable[[ConsumerRecord[bytes, bytes]], Any]:
    """What becomes of a record in a file of this kind."""
    formats = call.query["key_format"], call.query["value_format"]

    def whole(found: ConsumerRecord[bytes, bytes]) -> Form:
        return record_form(found, formats, WHOLE_BYTES, most_headers=None)

    if kind == JSON_LINES:
        return lambda found: orjson.dumps(whole(found)) + b"\n"
    if kind == CSV:
        return lambda found: csv_line(csv_fields(whole(found)))
    if not any(are_texts):
        return lambda found: table_row(found, None, are_texts)
    return lambda found: table_row(found, whole(found), are_texts)


def csv_fields(form: Form) -> tuple[object, ...]:
    """A record as a line of CSV; what is null has no encoding."""
    key, value = form["key"], form["value"]
    headers = [[each["name"], each["value"] and each["value"]["text"]] for each in form["headers"]]
    return (
        form["partition"],
        form["offset"],
        form["timestamp_ms"],
        None if key is None else key["encoding"],
        None if key is None else key["text"],
        None if value is None else value["encoding"],
        None if value is None else value["text"],
        orjson.dumps(headers).decode() if headers else None,
    )


def csv_line(fields: Iterable[object]) -> bytes:
    """A line of CSV (RFC 4180)."""
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue().encode()


def table_row(
    record: ConsumerRecord[bytes, bytes], form: Form | None, are_texts: tuple[bool, bool]
) -> Row:
    """A record as a row of a table, whose texts are those of its form."""
    is_create = record.timestamp_type is TimestampType.CREATE_TIME
    return Row(
        record.partition,
        record.offset,
        record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "create" if is_create else "append",
        _cell(record.key, form and form["key"], is_text=are_texts[0]),
        _cell(record.value, form and form["value"], is_text=are_texts[1]),
        tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
        record.leader_epoch if record.leader_epoch >= 0 else None,
    )


def _cell(data: bytes | None, form: Form | None, *, is_text: bool) -> bytes | str | None:
    if data is None:
        return None
    if not is_text or form is None:
        return bytes(data)
    if form["encoding"] == BASE64:
        return bytes(data).decode(errors="replace")
    return str(form["text"])


async def _write_lines(search: Search, file: _File, kind: str) -> None:
    """Write a line for each record, and one more where the budget ended the search."""
    rows = Rows()

    async def write() -> None:
        part = b"".join(rows.take())
        if part:
            await file.write(part)

    search.after_poll = write
    if kind == CSV:
        rows.found.append(csv_line(CSV_FIELDS))
    await search.forwards(rows)
    report = _report(search)
    if not report["is_complete"]:
        as_json = orjson.dumps({"read": report})
        rows.found.append(csv_line([as_json.decode()]) if kind == CSV else as_json + b"\n")
    await write()


async def _write_table(search: Search, file: _File, wanted: Wanted) -> None:
    """Have a child process write the table. Raises: Problem, ChildLost, KafkaError."""
    if len(_CHILDREN) >= MAX_CHILDREN:
        raise Problem(503, "too many tables are made at once", *RETRY)
    child = ChildProcess(CHILD)
    _CHILDREN.add(child)
    try:
        await child.write(framed(wanted))
        working = [
            asyncio.create_task(each) for each in (_feed(search, child), _pass_on(child, file))
        ]
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            for each in working:
                each.cancel()
            await asyncio.wait(working)
    finally:
        _CHILDREN.discard(child)
        await child.end()


async def _feed(search: Search, child: ChildProcess) -> None:
    """Give the child what the search finds. Raises: ChildLost, KafkaError."""
    rows = Rows()

    async def write() -> None:
        found = rows.take()
        if found:
            await child.write(framed(found))

    search.after_poll = write
    await search.forwards(rows)
    await child.write(framed(orjson.dumps(_report(search))))
    child.end_input()


async def _pass_on(child: ChildProcess, file: _File) -> None:
    """Give the client what the child writes. Raises: ChildLost, ConnectionError."""
    while part := await child.read_some(READ_BYTES):
        await file.write(part)


def _report(search: Search) -> dict[str, Any]:
    """What was read."""
    is_complete = all(part.at >= part.end for part in search.parts.values())
    if is_complete:
        search.budget.stopped_by = "end"
    now_s = search.call.site.settings.now_s()
    return search.budget.report(now_s, is_complete=is_complete)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{MESSAGES}/download",
        handler=download_messages,
        name="downloadMessages",
        summary="Records of a topic as a file, all that a search finds within its budget",
        needs="Read on the topic",
        query=(
            Parameter(
                "format",
                "JSON lines, CSV, Arrow or Parquet.",
                one_of(*CONTENT_TYPES),
                default=JSON_LINES,
            ),
            Parameter(
                "from",
                "Where to begin: as for messages, but last:N means that of each partition.",
                {"type": "string", "pattern": FROM},
                default=EARLIEST,
            ),
            *FILTER_PARAMETERS,
            *FORMAT_PARAMETERS,
            *BUDGET_PARAMETERS,
        ),
        content_type=CONTENT_TYPES[JSON_LINES],
        is_stream=True,
    ),
)
