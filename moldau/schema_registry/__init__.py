"""Avro, Protobuf and JSON Schema through a schema registry, in Confluent's wire format.

Serializers and deserializers for the client's producers and consumers, and the registry's client
behind them. Needs the packages of `moldau[schema-registry]`, each when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.schema_registry.avro import AvroDeserializer as AvroDeserializer
    from moldau.schema_registry.avro import AvroSerializer as AvroSerializer
    from moldau.schema_registry.framing import framed as framed
    from moldau.schema_registry.framing import unframed as unframed
    from moldau.schema_registry.json_schema import JsonSchemaDeserializer as JsonSchemaDeserializer
    from moldau.schema_registry.json_schema import JsonSchemaSerializer as JsonSchemaSerializer
    from moldau.schema_registry.protobuf import ProtobufDeserializer as ProtobufDeserializer
    from moldau.schema_registry.protobuf import ProtobufSerializer as ProtobufSerializer
    from moldau.schema_registry.registry import RegisteredSchema as RegisteredSchema
    from moldau.schema_registry.registry import Schema as Schema
    from moldau.schema_registry.registry import SchemaReference as SchemaReference
    from moldau.schema_registry.registry import SchemaRegistry as SchemaRegistry
    from moldau.schema_registry.registry import SchemaRegistryError as SchemaRegistryError
    from moldau.schema_registry.subjects import record_name as record_name
    from moldau.schema_registry.subjects import topic_name as topic_name
    from moldau.schema_registry.subjects import topic_record_name as topic_record_name

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
