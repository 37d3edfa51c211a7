"""Avro: values as dictionaries, by `fastavro`; their JSON form by `avro_json`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import fastavro
import fastavro.schema

from moldau.client.errors import SerializationError
from moldau.schema_registry import avro_json
from moldau.schema_registry.codec import Codecs, Format, misfits_told
from moldau.schema_registry.registry import Schema, SchemaRegistry
from moldau.schema_registry.serializer import SchemaSerializer

Value = TypeVar("Value")
KIND = "AVRO"


class AvroCodec:
    """Data of one schema. Raises: SerializationError: the schema is no Avro schema."""

    def __init__(self, schema: Schema, referenced: Mapping[str, Schema]) -> None:
        with misfits_told("the Avro schema"):
            self._named: dict[str, Any] = {}
            for each in (*referenced.values(), schema):
                document = json.loads(each.text)
                self._parsed: Any = _parse(document, self._named)
            if referenced:
                self._parsed = _parse(_complete(self._parsed, self._named, set()), {})
        is_record = isinstance(self._parsed, dict) and "name" in self._parsed
        self.name: str | None = str(self._parsed["name"]) if is_record else None

    def encode(self, value: object) -> bytes:
        out = io.BytesIO()
        with misfits_told("the value does not fit the Avro schema"):
            fastavro.schemaless_writer(out, self._parsed, value)
        return out.getvalue()

    def decode(self, data: bytes) -> object:
        return _decoded(self._parsed, data)

    def read(self, data: bytes, expected: Any) -> object:
        """As `decode`, resolved to the schema that a reader expects."""
        return _decoded(self._parsed, data, expected)

    def encode_json(self, value: object) -> bytes:
        with misfits_told("the value does not fit the Avro schema"):
            return avro_json.encode_json(self._parsed, self._named, value)

    def decode_json(self, data: bytes) -> object:
        with misfits_told("the data do not fit the Avro schema"):
            return avro_json.decode_json(self._parsed, self._named, data)


def _parse(document: Any, named: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(document, named_schemas=named)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SerializationError(f"the Avro schema: {error}") from error


def _complete(schema: Any, named: Mapping[str, Any], defined: set[str]) -> Any:
    """A schema with each type that it uses written out where it is used first."""
    if isinstance(schema, list):
        return [_complete(each, named, defined) for each in schema]
    if isinstance(schema, str):
        if schema not in named or schema in defined:
            return schema
        schema = named[schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema and schema["name"] in named:
        if schema["name"] in defined:
            return schema["name"]
        defined.add(schema["name"])
    found: dict[str, Any] = {}
    for name, each in schema.items():
        if name in ("type", "items", "values"):
            found[name] = _complete(each, named, defined)
        elif name == "fields":
            found[name] = [
                {**field, "type": _complete(field["type"], named, defined)} for field in each
            ]
        elif not name.startswith("__"):
            found[name] = each
    return found


def _decoded(parsed: Any, data: bytes, expected: Any = None) -> Any:
    source = io.BytesIO(data)
    with misfits_told("the data do not fit the Avro schema"):
        value = fastavro.schemaless_reader(source, parsed, expected)
    if left := len(data) - source.tell():
        raise SerializationError(f"the data do not fit the Avro schema: {left} bytes are left")
    return value


class AvroSerializer(SchemaSerializer[Value]):
    """Values to Avro's bytes behind a schema's id."""

    format = Format(KIND, AvroCodec)


class AvroDeserializer(Generic[Value]):
    """Avro's bytes behind a schema's id to values, with the schema they were written with.

    Args:
        schema: what readers expect (Avro's schema resolution fills in what is new); None for each
            value as its writer has it.
        from_dict: makes a value of a dictionary.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, object] | None = None,
        *,
        from_dict: Callable[[Any], Value] | None = None,
    ) -> None:
        self._codecs = Codecs(registry, AvroCodec, KIND)
        self._from_dict = from_dict
        self._reader: Any = None
        if schema is not None:
            with misfits_told("the Avro schema"):
                document = json.loads(schema) if isinstance(schema, str) else dict(schema)
                self._reader = _parse(document, {})

    def deserialize(self, topic: str, data: bytes) -> Value:
        """Raises: SerializationError, SchemaRegistryError"""
        codec, rest = self._codecs.of_data(data)
        value: Any = codec.decode(rest) if self._reader is None else codec.read(rest, self._reader)
        return value if self._from_dict is None else self._from_dict(value)
