"""What every format offers, and which format a schema of a registry has.

Owns the ids' codecs, which are kept. Invariant: what a format's library raises becomes one
SerializationError that says what was wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from moldau.client.errors import SerializationError
from moldau.runtime.fault_words import words_of
from moldau.schema_registry.framing import unframed
from moldau.schema_registry.kept import Kept
from moldau.schema_registry.registry import Schema, SchemaRegistry

MAX_KEPT_CODECS: Final = 200
#: What the formats' libraries raise for data or values that do not fit a schema.
MISFITS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError),
    *(RecursionError, TypeError, ValueError, struct.error),
)


class Codec(Protocol):
    """Data of one schema. Every method raises SerializationError."""

    @property
    def name(self) -> str | None:
        """The full name of the schema's record or message, if it has one."""

    def encode(self, value: object) -> bytes:
        """The data of a value, behind the schema's id."""

    def decode(self, data: bytes) -> object:
        """The value of what follows the schema's id."""

    def encode_json(self, value: object) -> bytes:
        """As `encode`, of the value's JSON form."""

    def decode_json(self, data: bytes) -> object:
        """As `decode`, in the value's JSON form."""


@contextmanager
def misfits_told(what: str) -> Iterator[None]:
    """Whatever a library raises is a SerializationError."""
    try:
        yield
    except SerializationError:
        raise
    except MISFITS as error:
        raise SerializationError(f"{what}: {words_of(error)}") from error


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


class Codecs:
    """The codecs of a registry's schemas, by id. Usable from several threads."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._kept = Kept(MAX_KEPT_CODECS)

    def of_id(self, schema_id: int, kind: str | None = None) -> Codec:
        """The codec of a schema, which has to be of that kind.

        Raises:
            SchemaRegistryError: the registry cannot be asked, or has no such schema.
            SerializationError: the schema is broken, or of another kind.
        """
        found, codec = self._kept.get(schema_id, lambda: self._make(schema_id))
        if kind not in (None, found):
            raise SerializationError(f"schema {schema_id} is of kind {found}, not {kind}")
        return codec

    def of_data(self, data: bytes, kind: str | None = None) -> tuple[Codec, bytes]:
        """The codec of a key or value in the wire format, and what follows the schema's id. Raises
        as `of_id`.
        """
        schema_id, rest = unframed(data)
        return self.of_id(schema_id, kind), rest

    def _make(self, schema_id: int) -> tuple[str, Codec]:
        schema = self._registry.schema(schema_id)
        return schema.kind, codec_of(schema, self._registry.referenced(schema))
