"""A registry in this process, and its client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.schema_registry import SchemaRegistry
from tests.unit.schema_registry.registry_server import RegistryServer, registry_server


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> SchemaRegistry:
    return SchemaRegistry(server.url, timeout_ms=5_000)
