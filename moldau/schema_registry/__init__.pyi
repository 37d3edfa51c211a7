"""Written by tools/package_names.py (`make fmt`): do not edit."""

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
