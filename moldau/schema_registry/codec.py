"""What every format offers.

Owns the ids' codecs, which are kept. Invariant: what a format's library raises becomes one
SerializationError that says what was wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

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


CodecT = TypeVar("CodecT", bound=Codec)


@contextmanager
def misfits_told(what: str) -> Iterator[None]:
    """Whatever a library raises is a SerializationError."""
    try:
        yield
    except SerializationError:
        raise
    except MISFITS as error:
        raise SerializationError(f"{what}: {words_of(error)}") from error


class Format(NamedTuple):
    """A kind of schema, and what makes the codec of one, with those that it refers to."""

    kind: str
    codec: Callable[[Schema, Mapping[str, Schema]], Codec]


class Codecs(Generic[CodecT]):
    """The codecs of a registry's schemas, by id. Usable from several threads.

    Args:
        make: makes the codec of a schema, with those that it refers to.
        kind: of which kind the schemas have to be; None for any.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        make: Callable[[Schema, Mapping[str, Schema]], CodecT],
        kind: str | None = None,
    ) -> None:
        self.registry = registry
        self.make = make
        self._kind = kind
        self._kept = Kept(MAX_KEPT_CODECS)

    def of_id(self, schema_id: int) -> CodecT:
        """The codec of a schema.

        Raises:
            SchemaRegistryError: the registry cannot be asked, or has no such schema.
            SerializationError: the schema is broken, or of another kind.
        """
        return self._kept.get(schema_id, lambda: self._made(schema_id))

    def of_data(self, data: bytes) -> tuple[CodecT, bytes]:
        """The codec of a key or value in the wire format, and what follows the schema's id. Raises
        as `of_id`.
        """
        schema_id, rest = unframed(data)
        return self.of_id(schema_id), rest

    def _made(self, schema_id: int) -> CodecT:
        schema = self.registry.schema(schema_id)
        if self._kind not in (None, schema.kind):
            raise SerializationError(
                f"schema {schema_id} is of kind {schema.kind}, not {self._kind}"
            )
        return self.make(schema, self.registry.referenced(schema))
