"""Every name in docs/migration.md's tables exists: there in the other library, and in Moldau."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import pytest

from moldau import client
from moldau.client import AdminConfig, ConsumerConfig, ProducerConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its resources the old way
    import kafka

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
NAME = re.compile(r"`([A-Za-z_.]+)`")


def tables() -> dict[str, list[list[str]]]:
    """Rows by the head of the first column; a cell as the names in it."""
    found: dict[str, list[list[str]]] = {}
    head = ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = cells[0]
            found[head] = []
        elif not set(line) <= set("|-"):
            found[head].append([" ".join(NAME.findall(cell)) for cell in cells[:2]])
    return found


def names(head: str, column: int) -> list[str]:
    rows = tables()[head]
    assert rows, head
    return [name for row in rows for name in row[column].split()]


def members_of(*modules: object) -> Callable[[str], bool]:
    """Whether `Class.method` is in one of the modules."""

    def has(name: str) -> bool:
        kind, _, member = name.partition(".")
        found = [getattr(module, kind) for module in modules if hasattr(module, kind)]
        fields = [getattr(each, "__dataclass_fields__", {}) for each in found]
        return bool(found) and (
            not member
            or any(hasattr(each, member) for each in found)
            or any(member in each for each in fields)
        )

    return has


def arguments_of(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in inspect.signature(kind).parameters}


def is_setting_of_librdkafka(name: str) -> bool:
    """Its own check of a configuration; the library makes no connection yet."""
    errors: list[str] = []
    values = ("1", "none", "consistent", "PLAIN", "/dev/null")
    for value in values:
        for kind in (confluent_kafka.Producer, confluent_kafka.Consumer):
            config: dict[str, Any] = {"group.id": "g", name: value}
            try:
                kind(config).close()
            except confluent_kafka.KafkaException as error:
                errors.append(str(error))
            else:
                return True
    return all("No such configuration property" not in error for error in errors)


def missing(asked: Iterable[str], exists: Callable[[str], bool]) -> list[str]:
    return [name for name in asked if not exists(name)]


@pytest.mark.parametrize(
    ("head", "modules"),
    [
        ("aiokafka", (aiokafka, aiokafka.admin)),
        ("confluent-kafka", (confluent_kafka, confluent_kafka.admin)),
        ("kafka-python", (kafka,)),
    ],
)
def test_the_calls_exist_on_both_sides(head: str, modules: tuple[object, ...]):
    assert missing(names(head, 0), members_of(*modules)) == []
    assert missing(names(head, 1), members_of(client)) == []


@pytest.mark.parametrize("head", ["aiokafka", "confluent-kafka", "kafka-python"])
def test_the_settings_exist_on_both_sides(head: str):
    theirs: Callable[[str], bool] = is_setting_of_librdkafka
    if head == "aiokafka":
        theirs = arguments_of(aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer).__contains__
    elif head == "kafka-python":
        theirs = {
            **kafka.KafkaProducer.DEFAULT_CONFIG,
            **kafka.KafkaConsumer.DEFAULT_CONFIG,
        }.__contains__
    ours = {name for kind in (AdminConfig, ConsumerConfig, ProducerConfig) for name in kind.KEYS}
    head += "'s setting"
    assert missing(names(head, 0), theirs) == []
    assert missing((name.replace(".", "_") for name in names(head, 1)), ours.__contains__) == []


def test_the_versions_are_those_that_are_looked_at():
    text = PAGE.read_text()
    assert f"aiokafka {aiokafka.__version__}" in text
    assert f"confluent-kafka {confluent_kafka.__version__}" in text
    assert f"kafka-python {kafka.__version__}" in text
