"""Reads the committed facts about Apache Kafka 4.3's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class KeyFacts(NamedTuple):
    """One line of kafka_4_3_keys.txt."""

    kind: str
    name: str
    type: str
    default: str
    update_mode: str
    importance: str
    internal: bool


class ValueFacts(NamedTuple):
    """One line of kafka_4_3_values.txt."""

    kind: str
    name: str
    accepted: dict[str, str | None]
    rejected: list[str]


def key_facts() -> list[KeyFacts]:
    """Every key of the release."""
    return [KeyFacts(*row[:6], row[6] == "true") for row in _rows("kafka_4_3_keys.txt")]


def value_facts() -> list[ValueFacts]:
    """What the release makes of typical and boundary values."""
    return [
        ValueFacts(row[0], row[1], json.loads(row[2]), json.loads(row[3]))
        for row in _rows("kafka_4_3_values.txt")
    ]


def _rows(name: str) -> list[list[str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]
