"""The examples of docs/client.md do what they say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.tidy.sources import ROOT
from tests.unit.schema_registry.registry_server import registry_server

DOCUMENT = ROOT / "docs" / "client.md"
ADDRESS = "localhost:9092"
REGISTRY = "http://localhost:8081"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def blocks(document: Path) -> list[tuple[int, str]]:
    """Line number and code of each example."""
    text = document.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in BLOCK.finditer(text)]


def compiled(document: Path, line: int, code: str) -> CodeType:
    """With `await` at the top level allowed, as in a notebook; errors name the document's line."""
    return compile(
        "\n" * (line - 1) + code,
        str(document),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )


async def run(code: CodeType, names: dict[str, Any]) -> None:
    """Run one example; it shares its names with those before it."""
    result = eval(code, names)
    if inspect.isawaitable(result):
        async with asyncio.timeout(BLOCK_DEADLINE_S):
            await result


def test_every_example_of_the_client_documentation_runs(
    node: Cluster, capsys: pytest.CaptureFixture[str]
):
    examples = blocks(DOCUMENT)
    assert len(examples) >= 12
    names: dict[str, Any] = {"__name__": "example"}

    async def run_all(registry_url: str) -> None:
        for line, code in examples:
            code = code.replace(REGISTRY, registry_url).replace(ADDRESS, node.bootstrap_server)
            try:
                await run(compiled(DOCUMENT, line, code), names)
            except Exception as error:
                error.add_note(f"in the example at {DOCUMENT.name}:{line}")
                raise

    with registry_server() as registry:
        asyncio.run(run_all(registry.url))
    # What the recipes promise, seen from outside.
    count = len(names["database"].execute("SELECT * FROM results").fetchall())
    stored = names["database"].execute("SELECT SUM(next) FROM positions").fetchone()[0]
    assert count == stored > 0
    assert all(value.isupper() or value.isdigit() for value in _values(names["results"]))
    with Admin(node.bootstrap_server) as admin:
        assert {"flights", "delays", "columns", "results", "orders"} <= set(admin.list_topics())
    assert "did you mean linger" in capsys.readouterr().out


def _values(results: dict[Any, list[Any]]) -> list[bytes]:
    values = [record.value for records in results.values() for record in records]
    assert values
    return [re.sub(rb"[^a-zA-Z0-9]", b"", value) for value in values]
