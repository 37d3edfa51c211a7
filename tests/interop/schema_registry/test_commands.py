"""`moldau produce` and `moldau consume` with a real registry, Confluent's clients beside them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.system.processes import run_cli

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(180)]

USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "mail", "type": ["null", "string"], "default": None},
        ],
    }
)
PROTO = """syntax = "proto3";
message First { int32 a = 1; }
message User { int64 id = 1; string mail = 2; }
"""
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["id"],
    }
)


class Commands:
    """Runs our commands at one cluster and one registry."""

    def __init__(self, bootstrap: str, registry_url: str) -> None:
        self._bootstrap = bootstrap
        self._environment = {"MOLDAU_SCHEMA_REGISTRY": registry_url}

    def run(self, command: str, *arguments: str, given: str = "", status: int = 0) -> str:
        """What the command prints; what it complains of when it is to fail."""
        where = ("-b", self._bootstrap)
        done = run_cli(command, *arguments, *where, given=given.encode(), environ=self._environment)
        assert done.status == status, done.errors
        return done.errors if status else done.output


@pytest.fixture
def commands(bootstrap: str, registry_url: str) -> Commands:
    return Commands(bootstrap, registry_url)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize(
    ("value_format", "suffix", "schema", "message"),
    [
        ("avro", "avsc", USER, ""),
        ("protobuf", "proto", PROTO, "#User"),
        ("json-schema", "json", JSON, ""),
    ],
)
def test_there_and_back(
    commands: Commands,
    topic: str,
    tmp_path: Path,
    value_format: str,
    suffix: str,
    schema: str,
    message: str,
) -> None:
    file = tmp_path / f"user.{suffix}"
    file.write_text(schema)
    typed = ("--value-format", value_format)
    commands.run(
        "produce", topic, "--create", *typed, "--value-schema", f"{file}{message}",
        given='{"id": 1, "mail": "a"}\n{"id": 2}\n',
    )  # fmt: skip
    begin = ("--from-beginning", "--until-end")
    shown = commands.run("consume", topic, *begin, "--value-format", "schema", "--json")
    values = [json.loads(line)["value"] for line in shown.splitlines()]
    assert [int(each["id"]) for each in values] == [1, 2]
    # What is read can be written again, with the registry's newest schema: the same values.
    latest = ("--value-schema", f"latest{message}")
    commands.run("produce", topic, "--format", "json", *typed, *latest, given=shown)
    again = commands.run("consume", topic, *begin, *typed)
    lines = again.splitlines()
    assert lines[:2] == lines[2:]
    error = commands.run("produce", topic, *typed, *latest, given="[]\n", status=1)
    assert f"line 1: the value as {value_format}: " in error
    assert error.count("\n") == 1


def test_with_confluents_clients(
    commands: Commands, bootstrap: str, registry_url: str, topic: str
) -> None:
    with SchemaRegistryClient({"url": registry_url}) as registry:
        _with_confluents_clients(commands, bootstrap, registry, topic)


def _with_confluents_clients(
    commands: Commands, bootstrap: str, registry: SchemaRegistryClient, topic: str
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": bootstrap})
    write = AvroSerializer(registry, USER)
    producer.produce(topic, write({"id": 5, "mail": None}, context), b"\0\0\0\7")
    producer.flush()
    begin = ("--from-beginning", "--until-end")
    shown = commands.run(
        "consume", topic, *begin, "--key-format", "integer", "--value-format", "avro",
        "--format", "%k %v\n",
    )  # fmt: skip
    assert shown == '7 {"id":5,"mail":null}\n'
    commands.run(
        "produce", topic, "--value-format", "avro", given='{"id": 6, "mail": {"string": "m"}}\n'
    )
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read, found = AvroDeserializer(registry), []
    try:
        while len(found) < 2:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None
                found.append(read(message.value(), context))
    finally:
        consumer.close()
    assert found == [{"id": 5, "mail": None}, {"id": 6, "mail": "m"}]


def test_what_is_not_in_the_format_is_named_with_its_place(commands: Commands, topic: str) -> None:
    commands.run("produce", topic, "--create", given="plain\n")
    begin = ("--from-beginning", "--until-end")
    error = commands.run("consume", topic, *begin, "--value-format", "avro", status=1)
    assert f"{topic}, partition 0, offset 0: the value as avro: it was not written with" in error
