"""Our serializers and Confluent's, with one registry: what either writes the other reads."""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference as ConfluentReference
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import avro as confluent_avro
from confluent_kafka.schema_registry import json_schema as confluent_json
from confluent_kafka.schema_registry import protobuf as confluent_protobuf
from confluent_kafka.serialization import MessageField, SerializationContext

from moldau.client import SerializationError
from moldau.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
)
from moldau.schema_registry.codec import Codecs
from moldau.schema_registry.formats import codec_of
from moldau.schema_registry.protobuf import ProtobufCodec

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(180)]

PURCHASE = {
    "type": "record",
    "name": "Purchase",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "notes", "type": ["null", {"type": "map", "values": "string"}], "default": None},
    ],
}
MONEY = 'syntax = "proto3"; package shop; message Money { int32 cents = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Unused { string a = 1; }
message Order {
  message Line { string text = 1; }
  int64 id = 1;
  Money price = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
}
"""
VALUE = {
    "id": uuid.UUID(int=7),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    "price": Decimal("12.34"),
    "kind": "B",
    "notes": {"a": "b"},
}


@pytest.fixture
def ours(registry_url: str) -> SchemaRegistry:
    return SchemaRegistry(registry_url)


@pytest.fixture
def theirs(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro(ours: SchemaRegistry, theirs: SchemaRegistryClient, topic: str) -> None:
    text = json.dumps(PURCHASE)
    write = AvroSerializer[Any](ours, text)
    their_write = confluent_avro.AvroSerializer(theirs, text)
    their_read = confluent_avro.AvroDeserializer(theirs)
    data = write.serialize(topic, VALUE)
    assert their_write(VALUE, context(topic)) == data
    assert their_read(data, context(topic)) == VALUE
    assert AvroDeserializer[Any](ours).deserialize(topic, data) == VALUE


def test_avro_with_a_reference(
    ours: SchemaRegistry, theirs: SchemaRegistryClient, topic: str
) -> None:
    subject = f"{topic}-purchase"
    ours.register(subject, Schema(json.dumps(PURCHASE)))
    both = {
        "type": "record",
        "name": f"Basket{uuid.uuid4().hex[:6]}",
        "fields": [
            {"name": "first", "type": "shop.Purchase"},
            {"name": "rest", "type": {"type": "array", "items": "shop.Purchase"}},
        ],
    }
    text = json.dumps(both)
    write = AvroSerializer[Any](
        ours, text, references=(SchemaReference("shop.Purchase", subject, 1),)
    )
    value = {"first": VALUE, "rest": [VALUE, VALUE]}
    data = write.serialize(topic, value)
    references = [ConfluentReference("shop.Purchase", subject, 1)]
    their_write = confluent_avro.AvroSerializer(theirs, ConfluentSchema(text, "AVRO", references))
    assert their_write(value, context(topic)) == data
    assert confluent_avro.AvroDeserializer(theirs)(data, context(topic)) == value
    assert AvroDeserializer[Any](ours).deserialize(topic, data) == value
    codec, rest = Codecs(ours, codec_of).of_data(data)
    assert codec.encode_json(codec.decode_json(rest)) == rest


def test_protobuf(ours: SchemaRegistry, theirs: SchemaRegistryClient, topic: str) -> None:
    """With messages that are nested, imports, and one of the standard files of Protobuf."""
    used = {"shop/money.proto": Schema(MONEY, "PROTOBUF")}
    both = ProtobufCodec(Schema(ORDER, "PROTOBUF"), used)
    for name, value in (
        ("shop.Order", {"id": "5", "price": {"cents": 7}, "at": "2026-01-01T00:00:00Z"}),
        ("shop.Order.Line", {"text": "x"}),
    ):
        message: Any = both.decode(both.of_message(name).encode_json(value))
        kind: Any = type(message)
        their_write = confluent_protobuf.ProtobufSerializer(
            kind, theirs, {"use.deprecated.format": False}
        )
        data = ProtobufSerializer[Any](ours, kind).serialize(topic, message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert their_write(message, context(topic)) == data
            their_read = confluent_protobuf.ProtobufDeserializer(
                kind, {"use.deprecated.format": False}, theirs
            )
            assert their_read(data, context(topic)) == message
        assert ProtobufDeserializer[Any](ours, kind).deserialize(topic, data) == message
        codec, rest = Codecs(ours, codec_of).of_data(data)
        assert codec.encode(codec.decode(rest)) == rest


def test_json_schema(ours: SchemaRegistry, theirs: SchemaRegistryClient, topic: str) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Count",
        "type": "object",
        "properties": {"count": {"type": "integer"}},
        "required": ["count"],
    }
    text, value = json.dumps(schema), {"count": 3}
    data = JsonSchemaSerializer[Any](ours, text).serialize(topic, value)
    their_write = confluent_json.JSONSerializer(text, theirs)
    written = their_write(value, context(topic))
    assert written[:5] == data[:5]
    assert confluent_json.JSONDeserializer(text)(data, context(topic)) == value
    assert JsonSchemaDeserializer[Any](ours).deserialize(topic, written) == value


def test_what_the_registry_refuses(ours: SchemaRegistry, topic: str) -> None:
    with pytest.raises(SchemaRegistryError, match="404"):
        ours.schema(2_000_000)
    with pytest.raises(SchemaRegistryError, match="404"):
        ours.latest(f"{topic}-gone")
    with pytest.raises(SchemaRegistryError, match=r"register a schema under .*: 42"):
        ours.register(f"{topic}-value", Schema("{"))
    with pytest.raises(SerializationError):
        AvroSerializer[Any](ours, "{").serialize(topic, {})
