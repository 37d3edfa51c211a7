"""What the table says of each client, and how a cell is checked.

Owns `cells.toml`, from which docs/compatibility.md has the tables. Invariant: a cell says "yes", or
it has a reason; either is tested.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.interop.security_matrix.clients import Client
from tests.interop.security_matrix.front import CLOSED, FAULTS, Front

FILE: Final = Path(__file__).with_name("cells.toml")


@dataclass(frozen=True)
class Row:
    """A client or a tool.

    Attributes:
        refusals: what it says of each fault of its ways; of a topic and a group without the
            right. An ellipsis stands for what may differ.
        gaps: why it does not come that way, by the way's name.
        says: what it says instead, by the way's name.
    """

    refusals: dict[str, str]
    gaps: dict[str, str]
    says: dict[str, str]


def rows(kind: str, *, is_kafka: bool) -> dict[str, Row]:
    """The rows of `clients` or `tools`; with Apache Kafka's words where it has others."""
    found = {}
    for name, table in _load()[kind].items():
        gaps = {way: gap for gap in table.get("gap", ()) for way in gap["ways"]}
        refusals = table["refusals"]
        others = table.get("kafka", {})
        assert others.keys() <= refusals.keys() | gaps.keys(), f"{name}: kafka replaces nothing"
        others = others if is_kafka else {}
        found[name] = Row(
            {reason: others.get(reason, text) for reason, text in refusals.items()},
            {way: gap["reason"] for way, gap in gaps.items()},
            {way: others.get(way, gap["says"]) for way, gap in gaps.items()},
        )
    return found


def faults_of(row: Row) -> list[str]:
    """The faults of those ways that the client has."""
    return [name for name, fault in FAULTS.items() if fault.way not in row.gaps]


def has_parts(said: str, text: str) -> bool:
    """Whether all parts of a text, between its ellipses, were said in that order."""
    at = 0
    for part in text.split(" … "):
        at = said.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def columns(kind: str) -> list[str]:
    """The names that the table has of `ways`, `tool_ways` or `refusals`."""
    return list(_load()[kind])


def check(front: Front, client: Client, row: Row, way: str) -> None:
    """Write, transact, read in a group, and be refused what no ACL allows; or say why not."""
    access = front.access(way)
    topic = front.topic()
    if way in row.gaps:
        said = client.refusal(access, topic)
        assert has_parts(said, row.says[way]), said
        return
    client.write(access, topic, [b"1", b"2"])
    client.transact(access, topic, topic, [b"3"])
    assert sorted(client.read(access, topic, topic, 3)) == [b"1", b"2", b"3"]
    for kind, said in (
        ("topic", client.refusal(access, CLOSED)),
        ("group", client.refusal(access, topic, CLOSED)),
    ):
        assert has_parts(said, row.refusals[kind]), said


def _load() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
