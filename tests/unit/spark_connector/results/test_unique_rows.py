"""Rows by a unique (topic, partition, offset), on SQLite, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from moldau.spark_connector.results import InvalidResults, UniqueRows

COLUMNS = ("topic", "partition", "offset", "amount")
KEYS = {
    "primary": "PRIMARY KEY (topic, partition, offset)",
    "constraint": "UNIQUE (partition, topic, offset)",
}


def made(tmp_path: Path, *statements: str) -> str:
    url = f"sqlite:///{tmp_path}/rows.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()
    return url


def create(extra: str) -> str:
    return (
        "CREATE TABLE it (topic TEXT, partition INTEGER, offset INTEGER, amount INTEGER"
        + (f", {extra}" if extra else "")
        + ")"
    )


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"topic": "in", "partition": 0, "offset": n, "amount": n} for n in range(first, end)]


def amounts(url: str) -> list[int]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT amount FROM it ORDER BY offset")
        result = [row[0] for row in found]
    engine.dispose()
    return result


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.promise("results-unique")
def test_a_row_that_comes_again_changes_nothing(tmp_path: Path, key: str):
    url = made(tmp_path, create(key))
    unique = UniqueRows(url, "it")
    unique.check_table(COLUMNS)
    unique.write_rows(iter(rows(0, 2_500)), COLUMNS)
    again = [{**row, "amount": -1} for row in rows(2_000, 2_510)]
    unique.write_rows(iter(again), COLUMNS)
    assert amounts(url) == [*range(2_500), *[-1] * 10]


def test_a_unique_index_will_do(tmp_path: Path):
    url = made(tmp_path, create(""), "CREATE UNIQUE INDEX i ON it (offset, topic, partition)")
    UniqueRows(url, "it").check_table(COLUMNS)
    UniqueRows(url, "it").write_rows(iter(rows(0, 3) + rows(0, 3)), COLUMNS)
    assert amounts(url) == [0, 1, 2]


@pytest.mark.parametrize(
    "statements",
    [
        (create(""),),
        (create("UNIQUE (topic, partition)"),),
        (create("UNIQUE (topic, partition, offset, amount)"),),
        (create(""), "CREATE INDEX i ON it (topic, partition, offset)"),
    ],
)
def test_a_table_without_that_key_is_refused(tmp_path: Path, statements: tuple[str, ...]):
    with pytest.raises(InvalidResults, match="no unique key on exactly topic, partition, of"):
        UniqueRows(made(tmp_path, *statements), "it").check_table(COLUMNS)


def test_a_table_that_lacks_a_column_or_is_missing_is_refused(tmp_path: Path):
    url = made(tmp_path, create(KEYS["primary"]))
    with pytest.raises(InvalidResults, match="it has no column delay"):
        UniqueRows(url, "it").check_table((*COLUMNS, "delay"))
    with pytest.raises(InvalidResults, match="there is no table other"):
        UniqueRows(url, "other").check_table(COLUMNS)


@pytest.mark.promise("created-again-ids")
def test_a_topic_that_was_created_again_has_rows_of_its_own(tmp_path: Path):
    url = made(tmp_path, create("topicId TEXT, PRIMARY KEY (topic, partition, offset, topicId)"))
    columns = (*COLUMNS, "topicId")
    unique = UniqueRows(url, "it")
    unique.check_table(columns)
    for topic_id in ("A" * 22, "B" * 22, None, None):
        unique.write_rows(iter([{**row, "topicId": topic_id} for row in rows(0, 2)]), columns)
    assert amounts(url) == [0, 0, 0, 1, 1, 1]
    assert unique.skipped_count == 2  # a null is the same as another


@pytest.mark.promise("created-again-unique")
def test_rows_with_ids_need_a_key_with_ids(tmp_path: Path):
    url = made(tmp_path, create("topicId TEXT, PRIMARY KEY (topic, partition, offset)"))
    with pytest.raises(InvalidResults, match="on exactly topic, partition, offset, topicId: with"):
        UniqueRows(url, "it").check_table((*COLUMNS, "topicId"))


@pytest.mark.promise("order-skipped")
def test_rows_that_existed_are_counted(tmp_path: Path):
    unique = UniqueRows(made(tmp_path, create(KEYS["primary"])), "it")
    assert unique.write_rows(iter(rows(0, 3)), COLUMNS) == 3
    assert unique.write_rows(iter(rows(1, 5)), COLUMNS) == 2
    assert unique.skipped_count == 2
