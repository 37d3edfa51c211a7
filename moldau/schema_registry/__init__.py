"""Avro, Protobuf and JSON Schema through a schema registry, in Confluent's wire format.

Serializers and deserializers for the client's producers and consumers, and the registry's client
behind them. Needs the packages of `moldau[schema-registry]`, each when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.schema_registry.avro import AvroDeserializer, AvroSerializer
    from moldau.schema_registry.framing import framed, unframed
    from moldau.schema_registry.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
    from moldau.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from moldau.schema_registry.registry import (
        RegisteredSchema,
        Schema,
        SchemaReference,
        SchemaRegistry,
        SchemaRegistryError,
    )
    from moldau.schema_registry.subjects import record_name, topic_name, topic_record_name

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JsonSchemaDeserializer",
    "JsonSchemaSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "RegisteredSchema",
    "Schema",
    "SchemaReference",
    "SchemaRegistry",
    "SchemaRegistryError",
    "framed",
    "record_name",
    "topic_name",
    "topic_record_name",
    "unframed",
]

at_first_use(
    globals(),
    """
    schema_registry.avro: AvroDeserializer AvroSerializer
    schema_registry.framing: framed unframed
    schema_registry.json_schema: JsonSchemaDeserializer JsonSchemaSerializer
    schema_registry.protobuf: ProtobufDeserializer ProtobufSerializer
    schema_registry.registry: RegisteredSchema Schema SchemaReference SchemaRegistry
    schema_registry.registry: SchemaRegistryError
    schema_registry.subjects: record_name topic_name topic_record_name
    """,
)
