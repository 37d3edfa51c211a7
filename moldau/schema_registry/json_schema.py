"""JSON Schema: JSON behind a schema's id, checked by `jsonschema` when it is written or read.

Invariant: a reference is looked up among the schemas that the registry has, never fetched from the
address that it looks like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import jsonschema
import jsonschema.validators
import orjson
import referencing
import referencing.exceptions
import referencing.jsonschema

from moldau.client.errors import SerializationError
from moldau.schema_registry.codec import Codecs, Format, misfits_told
from moldau.schema_registry.registry import Schema, SchemaRegistry
from moldau.schema_registry.serializer import SchemaSerializer

Value = TypeVar("Value")
KIND: Final = "JSON"


class JsonSchemaCodec:
    """Data of one schema. Raises: SerializationError: the schema is no JSON Schema."""

    def __init__(self, schema: Schema, referenced: Mapping[str, Schema]) -> None:
        with misfits_told("the JSON Schema"):
            document = json.loads(schema.text)
            resources = [
                (
                    name,
                    referencing.Resource.from_contents(
                        json.loads(each.text), default_specification=referencing.jsonschema.DRAFT7
                    ),
                )
                for name, each in referenced.items()
            ]
            kind = jsonschema.validators.validator_for(document, jsonschema.Draft7Validator)
            try:
                kind.check_schema(document)
            except jsonschema.SchemaError as error:
                raise SerializationError(f"the JSON Schema: {error.message}") from error
            known: referencing.Registry[Any] = referencing.Registry().with_resources(resources)
            self._validator = kind(document, registry=known)
        title = document.get("title") if isinstance(document, dict) else None
        self.name: str | None = None if title is None else str(title)

    def encode(self, value: object) -> bytes:
        self.check(value)
        with misfits_told("the value has no JSON form"):
            return orjson.dumps(value)

    def decode(self, data: bytes) -> object:
        with misfits_told("the data are no JSON"):
            return orjson.loads(data)

    encode_json = encode
    decode_json = decode

    def check(self, value: Any) -> None:
        """Raises: SerializationError: the value does not fit"""
        try:
            worst = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise SerializationError(
                f"the JSON Schema refers to {error.ref!r}, which the registry does not name"
            ) from error
        if worst is not None:
            raise SerializationError(
                f"the value does not fit the JSON Schema: {worst.json_path}: {worst.message}"
            )


class JsonSchemaSerializer(SchemaSerializer[Value]):
    """Values to JSON behind a schema's id, if they fit the schema."""

    format = Format(KIND, JsonSchemaCodec)


class JsonSchemaDeserializer(Generic[Value]):
    """JSON behind a schema's id to values.

    Args:
        from_dict: makes a value of what the JSON says.
        validates: whether what was written is checked against its schema once more.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        from_dict: Callable[[Any], Value] | None = None,
        validates: bool = True,
    ) -> None:
        self._codecs = Codecs(registry, JsonSchemaCodec, KIND)
        self._from_dict = from_dict
        self._validates = validates

    def deserialize(self, topic: str, data: bytes) -> Value:
        """Raises: SerializationError, SchemaRegistryError"""
        codec, rest = self._codecs.of_data(data)
        value: Any = codec.decode(rest)
        if self._validates:
            codec.check(value)
        return value if self._from_dict is None else self._from_dict(value)
