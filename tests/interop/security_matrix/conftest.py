"""The node of the matrix: ours, or Apache Kafka's with MOLDAU_SECURITY_MATRIX=kafka.

Against Apache Kafka the same tests show that the expectations are Kafka's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.java.tools import JavaTools, missing
from tests.interop.security_matrix.front import Front, java_options, running
from tests.interop.security_matrix.java_client import JavaClient
from tests.kit.identity_provider import IdentityProvider

IS_KAFKA = os.environ.get("MOLDAU_SECURITY_MATRIX", "") == "kafka"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="session")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running_provider:
        yield running_provider


@pytest.fixture(scope="session")
def tools(home: Path, provider: IdentityProvider) -> Iterator[JavaTools]:
    """A JVM that may read the tokens of the matrix."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    options = java_options(home, provider)
    with (home / "java.log").open("wb") as errors, JavaTools(errors, options) as started:
        yield started


@pytest.fixture(scope="session")
def front(
    home: Path, provider: IdentityProvider, request: pytest.FixtureRequest
) -> Iterator[Front]:
    java = request.getfixturevalue("tools") if IS_KAFKA else None
    with running(home, provider, java) as started:
        yield started


@pytest.fixture(scope="session")
def java_client(tools: JavaTools, home: Path) -> JavaClient:
    return JavaClient(tools, home)
