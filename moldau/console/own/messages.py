"""`…/topics/{topic}/messages`: a page of records, searched within a budget; and one record whole.

Owns the form of a page. Invariants: a search takes no more than its budget and a fetch, and ends
when the client goes; what it has not read is behind `next`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from moldau.client import ConsumerRecord, TopicPartition
from moldau.console.calls import Call, Reply
from moldau.console.own.message_forms import columns_of, record_form
from moldau.console.own.message_query import (
    BUDGET_PARAMETERS,
    FILTER_PARAMETERS,
    FORMAT_PARAMETERS,
    MAX_LIMIT,
    MESSAGE,
    MESSAGES,
    READ,
    Asked,
    asked,
    budget_of,
    from_parameter,
    shown_share,
)
from moldau.console.own.message_ranges import (
    MAX_CURSOR,
    NEWEST,
    OLDEST,
    Newest,
    Oldest,
    Part,
    cursor_of,
    opened,
)
from moldau.console.own.message_search import (
    EARLIEST,
    FETCH_BYTES,
    WAIT_S,
    Search,
    first_parts,
    search_settings,
)
from moldau.console.problems import Problem
from moldau.console.reading import Budget, end_offsets, partitions_of, start_offsets
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import INTEGER, STRING, array, named, nullable, record

USUAL_LIMIT: Final = 50
SEARCH_LIMIT_S: Final = 90.0
"""More than any budget: what ends a search that hangs."""
ONE_WAIT_S: Final = 10.0
WHOLE_BYTES: Final = 32 << 20
"""A record that is shown whole in JSON has no more; its parts can be had in any size."""
KEY, VALUE, HEADER = "key", "value", "header:"


async def show_messages(call: Call) -> Reply:
    """A page of records."""
    query, budget = call.query, budget_of(call)
    limit, begin = query["limit"], query["from"]
    wanted = await asked(call, shown_share(limit))
    call.line.goes_on()
    kind, _, text = begin.partition(":")
    is_newest = kind == "last"
    if is_newest:
        limit = max(1, min(limit, int(text)))
    chooser = Newest(limit) if is_newest else Oldest(limit)
    parts = await _parts(wanted, begin, query["after"], is_newest=is_newest)
    is_within = True
    if not all(part.is_read for part in parts.values()):
        partitions = {each: wanted.partitions[each] for each in parts}
        async with wanted.clients.consumer(**search_settings(wanted)) as consumer:
            consumer.assign(partitions.values())
            narrowed = replace(wanted, partitions=partitions)
            search = Search(call, narrowed, consumer, budget, parts)
            if isinstance(chooser, Newest):
                is_within = await search.backwards(chooser)
            else:
                is_within = await search.forwards(chooser)
    return Reply(_page(call, budget, chooser, parts, is_within=is_within))


async def _parts(
    wanted: Asked, begin: str, after: str | None, *, is_newest: bool
) -> dict[int, Part]:
    """What is to be read of each partition."""
    admin, names = wanted.clients.admin, wanted.partitions
    starts = await start_offsets(
        admin, names.values(), EARLIEST, read_committed=wanted.is_committed
    )
    firsts = {each: starts[name] for each, name in names.items()}
    if after is not None:
        return opened(after, NEWEST if is_newest else OLDEST, names, firsts)
    parts = await first_parts(wanted, "latest" if is_newest else begin, firsts)
    if is_newest:
        for each, part in parts.items():
            part.start = firsts[each]
    return parts


def _page(
    call: Call,
    budget: Budget,
    chooser: Oldest | Newest,
    parts: Mapping[int, Part],
    *,
    is_within: bool,
) -> dict[str, Any]:
    for each, part in parts.items():
        chooser.close(each, part)
    kind = NEWEST if isinstance(chooser, Newest) else OLDEST
    is_complete = all(part.is_read for part in parts.values())
    if is_complete:
        budget.stopped_by = "end"
    elif is_within:
        budget.stopped_by = "limit"
    forms = chooser.chosen()
    return {
        "records": forms,
        "read": budget.report(call.site.settings.now_s(), is_complete=is_complete),
        "next": cursor_of(kind, parts),
        "columns": columns_of(forms),
    }


async def show_message(call: Call) -> Reply:
    """One record, or the bytes of a part of it."""
    clients, query, topic = await call.clients(), call.query, call.path["topic"]
    offset, part = query["offset"], query["part"]
    names = await partitions_of(clients.admin, topic, [str(query["partition"])])
    found = await _found(call, names[0], offset)
    if part is not None:
        return _download(found, part)
    size = sum(len(each or b"") for each in (found.key, found.value))
    size += sum(len(name) + len(value or b"") for name, value in found.headers)
    formats = query["key_format"], query["value_format"]
    if size > WHOLE_BYTES:
        raise Problem(413, f"the record has {size} bytes: download its parts")
    return Reply(record_form(found, formats, WHOLE_BYTES, most_headers=None))


async def _found(call: Call, name: TopicPartition, offset: int) -> ConsumerRecord[bytes, bytes]:
    """The record at an offset. Raises: Problem: 404; KafkaError."""
    clients = await call.clients()
    missing = Problem(
        404, f"partition {name.partition} of {name.topic} has no record at offset {offset}"
    )
    ends = await end_offsets(clients.admin, [name], read_committed=False)
    starts = await start_offsets(clients.admin, [name], EARLIEST, read_committed=False)
    if not starts[name] <= offset < ends[name]:
        raise missing
    settings = {
        "isolation_level": "read_uncommitted",
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": FETCH_BYTES,
    }
    now_s = call.site.settings.now_s
    until_s = now_s() + ONE_WAIT_S
    async with clients.consumer(**settings) as consumer:
        consumer.assign([name])
        consumer.seek(name, offset)
        while now_s() < until_s:
            for records in (await consumer.getmany(1, WAIT_S * 1_000)).values():
                if records[0].offset == offset:
                    return records[0]
                raise missing
            position = consumer.positions().get(name)
            if position is not None and position.offset > offset:
                raise missing  # the end of a transaction, or removed by compaction
    raise Problem(503, f"partition {name.partition} of {name.topic} gave no record in time")


def _download(found: ConsumerRecord[bytes, bytes], part: str) -> Reply:
    """The bytes of a part. Raises: Problem: 404, 422."""
    data: bytes | None
    if part == KEY:
        data = found.key
    elif part == VALUE:
        data = found.value
    elif part.startswith(HEADER):
        name = part.removeprefix(HEADER)
        values = [value for each, value in found.headers if each == name]
        if not values:
            raise Problem(404, f"the record has no header {name}")
        data = values[-1]
    else:
        raise Problem(422, "the parameter part has to be key, value or header:NAME")
    if data is None:
        raise Problem(404, f"the {part.partition(':')[0]} is null")
    file = f"{found.topic}-{found.partition}-{found.offset}-{part.partition(':')[0]}"
    disposition = f'attachment; filename="{file}"'
    return Reply(bytes(data), 200, {"Content-Disposition": disposition}, "application/octet-stream")


ROUTES: Final = (
    Route(
        method="GET",
        path=MESSAGES,
        handler=show_messages,
        name="listMessages",
        summary="Records of a topic: searched, filtered and cut, within a budget",
        needs="Read on the topic",
        query=(
            from_parameter("last:50"),
            *FILTER_PARAMETERS,
            *FORMAT_PARAMETERS,
            *BUDGET_PARAMETERS,
            Parameter(
                "limit",
                "At most so many records.",
                {**INTEGER, "minimum": 1, "maximum": MAX_LIMIT},
                default=USUAL_LIMIT,
            ),
            Parameter(
                "after",
                "The `next` of the page before.",
                {**STRING, "maxLength": MAX_CURSOR},
            ),
        ),
        answer=named(
            "MessagePage",
            record(
                {
                    "records": array(MESSAGE),
                    "read": READ,
                    "next": nullable(STRING),
                    "columns": array(STRING),
                }
            ),
        ),
        time_limit_s=SEARCH_LIMIT_S,
    ),
    Route(
        method="GET",
        path=f"{MESSAGES}/one",
        handler=show_message,
        name="getMessage",
        summary="One record whole, or the bytes of its key, its value or a header",
        needs="Read on the topic",
        query=(
            Parameter(
                "partition",
                "Its partition.",
                {**INTEGER, "minimum": 0, "maximum": 2**31 - 1},
                is_required=True,
            ),
            Parameter(
                "offset",
                "Its offset.",
                {**INTEGER, "minimum": 0, "maximum": 2**63 - 1},
                is_required=True,
            ),
            Parameter(
                "part",
                "key, value or header:NAME: only its bytes.",
                {**STRING, "maxLength": 70_000},
            ),
            *FORMAT_PARAMETERS,
        ),
        answer=MESSAGE,
    ),
)
