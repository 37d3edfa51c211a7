"""The databases, each with the tables of the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.spark.results.databases import CREATE, postgres, postgres_programs


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL of our own; without its programs the test skips."""
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed here")
    # Not in pytest's directory: a socket's path is short, and others may look into it.
    with (
        tempfile.TemporaryDirectory(prefix="moldau-pg-") as directory,
        postgres(Path(directory)) as url,
    ):
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL, with empty tables behind it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/results.db"
    else:
        url = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        names = {**CREATE, "moldau_batches": "", "moldau_offsets": ""}
        for name in names:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
        for statement in CREATE.values():
            connection.exec_driver_sql(statement.format(offset='"offset"'))
    yield url
    engine.dispose()
