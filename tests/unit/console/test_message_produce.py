"""The command that writes the record that the page writes."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from moldau.cli.record_formats import InputRecord, JsonFormat
from moldau.console.own.message_produce import command_of
from tests.unit.console.command_lines import parsed


def written(topic: str, body: dict[str, Any]) -> InputRecord:
    """What the command makes of the line that it is given."""
    line = command_of(topic, body)
    assert line is not None
    words = shlex.split(line)
    assert words[:2] == ["printf", "%s"]
    assert words[3] == "|"
    made = parsed(shlex.join(words[4:]))
    assert (made.words, made.given["topic"]) == ("produce", topic)
    found = JsonFormat().record(words[2].encode())
    assert found is not None
    return found


@pytest.mark.parametrize("topic", ["orders", "-odd", "a.b"])
def test_the_command_writes_the_same_record(topic: str) -> None:
    body = {
        "key": {"encoding": "utf-8", "text": "it's $HOME"},
        "value": {"encoding": "base64", "text": "/wA="},
        "headers": [
            {"name": "h=1", "value": {"encoding": "utf-8", "text": "<b>\n"}},
            {"name": "h=1", "value": None},
        ],
        "partition": 3,
        "timestamp_ms": 1_600_000_000_000,
    }
    assert written(topic, body) == InputRecord(
        b"\xff\x00",
        b"it's $HOME",
        [("h=1", b"<b>\n"), ("h=1", None)],
        3,
        1_600_000_000_000,
    )


def test_a_tombstone_has_a_command() -> None:
    body: dict[str, Any] = {"key": {"encoding": "utf-8", "text": "k"}, "value": None, "headers": []}
    assert written("t", body) == InputRecord(None, b"k")


def test_a_long_record_has_none() -> None:
    value = {"encoding": "utf-8", "text": json.dumps(["x" * 100] * 100)}
    assert command_of("t", {"value": value}) is None
