"""Every route, with values that fit its schemas and with others: no fault of the server."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from moldau.console.routes import Route
from moldau.console.tables import ROUTES
from tests.system.console.site import Site

CASES: Final = 12
TEXTS: Final = (
    *("", "a", "flights", "-", "*", "__consumer_offsets", "ü/ü", "<script>alert(1)</script>"),
    *("a" * 300, "a\0b", "..", "%2e%2e", "'; DROP TABLE", "\u202e", "null", "0", "-1", "1e9"),
    *("LITERAL", "ANY", "TOPIC", "retention.ms", "earliest", "offset:5", "timestamp:0"),
)
NUMBERS: Final = (0, 1, 2, -1, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, 1.5)
ODD: Final = (None, True, [], {}, "x", 3, [[[[]]]], {"a": {"b": []}})


class Dice:
    """Values for schemas: most of them fit."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        if self._random.random() < 0.08 or depth > 5:
            return self._random.choice(ODD)
        if "enum" in schema and self._random.random() < 0.9:
            return self._random.choice(schema["enum"])
        kinds = schema.get("type", ["string", "integer", "null", "boolean"])
        kind = self._random.choice([kinds] if isinstance(kinds, str) else kinds)
        if kind == "object":
            return self._members(schema, depth)
        if kind == "array":
            count = self._random.randrange(4)
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
        if kind in ("integer", "number"):
            return self._random.choice(NUMBERS)
        return {"boolean": self._random.random() < 0.5, "null": None}.get(kind, self.text())

    def _members(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        return {
            name: self.value(each, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if self._random.random() < (0.95 if name in needed else 0.4)
        }

    def text(self) -> str:
        return self._random.choice(TEXTS)

    def path(self, route: Route, cluster_id: str) -> str:
        parts = []
        for segment in route.segments:
            if segment == "{cluster_id}":
                name = cluster_id if self._random.random() < 0.95 else self.text()
                parts.append(quote(name, safe=""))
            elif segment.startswith("{"):
                parts.append(quote(self.text() or "x", safe=""))
            else:
                parts.append(segment)
        return "/" + "/".join(parts)

    def query(self, route: Route) -> str:
        pairs = []
        for each in route.query:
            if each.is_required or self._random.random() < 0.5:
                value = self.value(each.schema)
                shown = value if isinstance(value, str) else json.dumps(value)
                pairs.append(f"{each.name}={quote(shown)}")
        return "&".join(pairs)


@pytest.mark.parametrize("route", [r for r in ROUTES if not r.is_stream], ids=lambda r: r.name)
async def test_no_request_is_a_fault_of_the_server(open_site: Site, route: Route) -> None:
    seed = zlib.crc32(route.name.encode())
    dice, cluster_id = Dice(seed), await open_site.cluster_id()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        for number in range(CASES):
            url = f"{open_site.origin}{dice.path(route, cluster_id)}?{dice.query(route)}"
            body = None if route.body is None else json.dumps(dice.value(route.body)).encode()
            headers = {"Content-Type": "application/json"}
            async with session.request(
                route.method, URL(url, encoded=True), data=body, headers=headers
            ) as answer:
                shown = await answer.text()
                assert answer.status < 500, (seed, number, url, body, shown)
                if answer.status >= 400:
                    document = json.loads(shown)
                    assert document["status"] == answer.status
                    assert document["detail"].isprintable()
    log = await asyncio.to_thread(open_site.cluster.node().log_path.read_text)
    assert "Traceback" not in log
