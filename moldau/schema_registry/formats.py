"""Which format a schema of a registry has."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.client.errors import SerializationError
from moldau.schema_registry.codec import Codec
from moldau.schema_registry.registry import Schema


def codec_of(schema: Schema, referenced: Mapping[str, Schema]) -> Codec:
    """Raises: SerializationError: the schema is of a kind that is not known, or broken."""
    if schema.kind == "AVRO":
        from moldau.schema_registry.avro import AvroCodec

        return AvroCodec(schema, referenced)
    if schema.kind == "PROTOBUF":
        from moldau.schema_registry.protobuf import ProtobufCodec

        return ProtobufCodec(schema, referenced)
    if schema.kind == "JSON":
        from moldau.schema_registry.json_schema import JsonSchemaCodec

        return JsonSchemaCodec(schema, referenced)
    raise SerializationError(f"a schema of kind {schema.kind} is none of AVRO, PROTOBUF and JSON")
