"""`…/topics/{topic}/messages/produce`: one record, as a person types it."""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Mapping
from typing import Any, Final

import orjson

from moldau.console.calls import Call, Reply
from moldau.console.own.commands import command, option
from moldau.console.own.message_query import MESSAGES
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import INTEGER, STRING, array, named, nullable, one_of, record

UTF_8, BASE64 = "utf-8", "base64"
MAX_BODY_BYTES: Final = 4 << 20
"""A record in JSON; Base64 makes a megabyte 1.4."""
MAX_HEADERS: Final = 1_000
MAX_COMMAND_CHARACTERS: Final = 4_096
"""Longer ones are not shown: they are no text for a shell."""
PRODUCE_LIMIT_S: Final = 25.0
"""More than a producer's own limit for a delivery, so that its error is the answer."""

_GIVEN: Final = nullable(record({"encoding": one_of(UTF_8, BASE64), "text": STRING}))
BODY: Final = record(
    {"value": _GIVEN},
    {
        "partition": nullable({**INTEGER, "minimum": 0, "maximum": 2**31 - 1}),
        "key": _GIVEN,
        "headers": array(record({"name": STRING}, {"value": _GIVEN}), most=MAX_HEADERS),
        "timestamp_ms": nullable({**INTEGER, "minimum": 0, "maximum": 2**63 - 1}),
    },
)


async def produce_message(call: Call) -> Reply:
    """Write one record, and say where it is."""
    body, topic, clients = call.body, call.path["topic"], await call.clients()
    key, value = _bytes(body.get("key"), "key"), _bytes(body["value"], "value")
    headers = [
        (each["name"], _bytes(each.get("value"), f"header {each['name']}"))
        for each in body.get("headers") or ()
    ]
    described = (await clients.admin.describe_topics([topic]))[topic]
    partition = body.get("partition")
    if partition is not None and partition >= len(described.partitions):
        last = len(described.partitions) - 1
        raise Problem(422, f"the topic has no partition {partition}; it has 0 to {last}")
    producer = await clients.producer()
    found = await producer.send(
        topic,
        value,
        key=key,
        headers=headers,
        partition=partition,
        timestamp_ms=body.get("timestamp_ms"),
    )
    return Reply(
        {
            "partition": found.partition,
            "offset": found.offset,
            "timestamp_ms": found.timestamp_ms if found.timestamp_ms >= 0 else None,
            "command": command_of(topic, body),
        }
    )


def command_of(topic: str, body: Mapping[str, Any]) -> str | None:
    """The command that writes the same record; None for one that is too long to be typed."""
    line: dict[str, object] = {}
    for name in ("key", "value"):
        line |= _as_line(name, body.get(name))
    headers = [
        {"key": each["name"], **_as_line("value", each.get("value"))}
        for each in body.get("headers") or ()
    ]
    if headers:
        line["headers"] = headers
    for name, own_name in (("partition", "partition"), ("timestamp_ms", "timestamp")):
        if body.get(name) is not None:
            line[own_name] = body[name]
    text = orjson.dumps(line).decode()
    if len(text) > MAX_COMMAND_CHARACTERS:
        return None
    writing = command("produce", *option("--format", "json"), names=(topic,))
    return f"printf %s {shlex.quote(text)} | {writing}"


def _as_line(name: str, given: Mapping[str, str] | None) -> dict[str, object]:
    """A key, a value or a header's value as `moldau produce --format json` reads it."""
    if given is None:
        return {name: None}
    return {name if given["encoding"] == UTF_8 else f"{name}_base64": given["text"]}


def _bytes(given: Mapping[str, str] | None, what: str) -> bytes | None:
    """The bytes of a key, a value or a header. Raises: Problem."""
    if given is None:
        return None
    if given["encoding"] == UTF_8:
        return given["text"].encode()
    try:
        return base64.b64decode(given["text"], validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"the {what} is no Base64") from None


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{MESSAGES}/produce",
        handler=produce_message,
        name="produceMessage",
        summary="Produce one record",
        needs="Write and Describe on the topic",
        body=BODY,
        max_body_bytes=MAX_BODY_BYTES,
        time_limit_s=PRODUCE_LIMIT_S,
        answer=named(
            "ProducedMessage",
            record(
                {
                    "partition": INTEGER,
                    "offset": INTEGER,
                    "timestamp_ms": nullable(INTEGER),
                    "command": nullable(STRING),
                }
            ),
        ),
    ),
)
