"""The JVM of a whole test process; tests skip visibly where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.java.tools import JavaTools, missing


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    """Apache Kafka's tools."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    log: Path = tmp_path_factory.mktemp("java") / "jvm.log"
    with log.open("wb") as errors, JavaTools(errors) as tools:
        yield tools
