"""Avro, Protobuf and JSON Schema through a schema registry, in Confluent's wire format.

Serializers and deserializers for the client's producers and consumers, and the registry's client
behind them. Needs the packages of `moldau[schema-registry]`, each when it is first used.
"""

from __future__ import annotations

from moldau.first_use import at_first_use

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
